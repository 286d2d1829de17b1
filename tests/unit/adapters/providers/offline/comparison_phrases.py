"""Questions which stock comes first; the winners were found in the file itself.

Total returns of 2011 in percent: IBM 26.8, MSFT -4.8; of 2008: AAPL -56.2, GOOG -55.1, IBM -18.2,
MSFT -43.8. Volatility of 2008: AAPL 58.8, GOOG 54.7, IBM 36.0. The deepest falls of 2011: AAPL
13.9, MSFT 16.9.
"""

WINNERS = [
    ("Which did better in 2011, IBM or MSFT?", "IBM"),
    ("Which did worse in 2011, IBM or MSFT?", "MSFT"),
    ("Did IBM or Microsoft do better in 2011?", "IBM"),
    ("Which stock performed better in 2012, AAPL or GOOG?", "AAPL"),
    ("In 2011, which performed better: IBM or MSFT?", "IBM"),
    ("Between IBM and MSFT, which did best in 2011?", "IBM"),
    ("Which of Apple, Google and IBM was the most volatile in 2008?", "AAPL"),
    ("Which of Apple, Google and IBM was the least volatile in 2008?", "IBM"),
    ("Was Apple or IBM more volatile in 2008?", "AAPL"),
    ("In 2011, which had the larger maximum drawdown, Apple or Microsoft?", "MSFT"),
    ("Which had the worst drawdown in 2011, AAPL or MSFT?", "MSFT"),
    ("Which had the smaller drawdown in 2011, AAPL or MSFT?", "AAPL"),
    ("Which company had the lowest return in 2008: AAPL, GOOG, IBM or MSFT?", "AAPL"),
    ("Which rose the most in 2011 in percent, IBM or MSFT?", "IBM"),
    ("Who had the higher total return in 2011, MSFT or IBM?", "IBM"),
    ("Which had the higher annualised return from 2005 to 2010, IBM or MSFT?", "IBM"),
    ("Please tell me which did better in the first half of 2011, IBM or MSFT. Thanks!", "IBM"),
]

UNCLEAR = [
    ("Which fell the most in 2008: AAPL or IBM?", "lowest return or the largest drawdown"),
    ("Which gained more in 2011, IBM or MSFT?", "in percent or in dollars"),
    ("Which had the best volatility in 2008, AAPL or IBM?", "highest or the lowest"),
    ("Which had the better drawdown in 2008, AAPL or IBM?", "highest or the lowest"),
    ("Which did better, IBM or MSFT?", "over which period"),
    ("Which did better in 2011, IBM?", "2 to 5"),
    ("Which did better in 2011: AAPL, GOOG, IBM, MSFT, FB or TSLA?", "2 to 5"),
    ("Which did better on 2011-03-03, IBM or MSFT?", "name a period"),
    ("Which did better in 2011, IBM and MSFT or AAPL?", "together"),
    ("In 2010, which did better in 2011, IBM or MSFT?", "two periods"),
]

BEYOND = [
    "Which did better in 2011 than in 2010, IBM or MSFT?",
    "Which did not do better in 2011, IBM or MSFT?",
    "Which did better in 2011, IBM or bonds?",
    "which is better, IBM or MSFT?",
    "Which stock did better than IBM in 2011?",
    "Which will do better in 2030, IBM or MSFT?",
    "Which had the higher revenue in 2011, IBM or MSFT?",
    "By how much did IBM do better than MSFT in 2011?",
    "Which did better in 2011, IBM or MSFT, after taxes?",
]
