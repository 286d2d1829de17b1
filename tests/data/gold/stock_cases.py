"""The right answers of the stock cases of ``cases.json``."""

from tests.data.gold import prices
from tests.data.gold.wording import number, rounded_float

ANSWERS = {
    "stock-close": number(prices.on("AAPL", "2013-01-02")),
    "stock-close-name": number(prices.on("IBM", "2005-03-15")),
    "stock-close-google": number(prices.on("GOOG", "2008-10-10")),
    "stock-open": number(prices.on("FB", "2012-05-18", "Open")),
    "stock-high": number(prices.on("MSFT", "2000-03-24", "High")),
    "stock-low": number(prices.on("AAPL", "2007-01-09", "Low")),
    "stock-volume": number(prices.on("IBM", "2010-05-06", "Volume")),
    "stock-adjusted": number(prices.on("GOOG", "2012-10-18", "Adj Close"), places=2),
    "stock-return-year": number(prices.total_return(prices.in_year("AAPL", 2009)), places=2),
    "stock-return-period": number(
        prices.total_return(prices.between("IBM", "2010-01-04", "2012-12-31")), places=2
    ),
    "stock-volatility": rounded_float(prices.volatility(prices.in_year("MSFT", 2011)), 2),
    "stock-drawdown": number(prices.deepest_fall(prices.in_year("AAPL", 2008)), places=2),
    "stock-best-day": number(max(prices.returns(prices.in_year("GOOG", 2011))), places=2),
    "stock-worst-day": number(min(prices.returns(prices.in_year("MSFT", 2000))), places=2),
    "stock-mean": number(prices.mean(prices.between("AAPL", "2011-06-01", "2011-06-30")), places=2),
    "stock-max-close": number(max(prices.in_year("AAPL", 2012, "Close"))),
    "stock-min-close": number(min(prices.in_year("IBM", 2002, "Close"))),
    "stock-median": number(
        prices.middle(prices.between("FB", "2012-09-01", "2012-09-30")), places=2
    ),
    "stock-correlation": rounded_float(
        prices.correlated(prices.in_year("IBM", 2010), prices.in_year("MSFT", 2010)), 2
    ),
    "stock-shares": number(15 * prices.on("IBM", "2011-08-08")),
}
