"""Sample pictures for tests."""

from dataclasses import replace

from caseworker_cases.tools.plotting.composing import ChartKind, Format, Picture, Series

DAYS = tuple(range(734_000, 734_040))
RISING = tuple(100.0 + day for day in range(40))

LINE = Picture(
    kind=ChartKind.LINE,
    format=Format.PNG,
    title="AAPL: closing price",
    subtitle="Adjusted close",
    unit="USD",
    caption="Source: a test",
    days=DAYS,
    series=(Series("AAPL", RISING),),
)
COMPARISON = replace(
    LINE, series=tuple(Series(name, RISING) for name in ("AAPL", "FB", "GOOG", "IBM", "MSFT"))
)
DRAWDOWN = replace(
    LINE, kind=ChartKind.DRAWDOWN, series=(Series("AAPL", tuple(-float(day) for day in range(40))),)
)
CANDLES = replace(
    LINE,
    kind=ChartKind.CANDLES,
    series=(
        Series("open", RISING),
        Series("high", tuple(value + 2 for value in RISING)),
        Series("low", tuple(value - 2 for value in RISING)),
        Series("close", tuple(value + (-1) ** day for day, value in enumerate(RISING))),
    ),
)
EVERY_KIND = {"line": LINE, "comparison": COMPARISON, "drawdown": DRAWDOWN, "candles": CANDLES}
