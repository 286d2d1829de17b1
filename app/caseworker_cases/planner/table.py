"""The sentences that the built-in planner understands, and their tool calls."""

from typing import Final

from caseworker_cases.planner.sentences import rows_of

ROWS: Final = rows_of("""\
# Arithmetic
<what is>{expression}
    "What is (18 + 6) * (9 - 4)?" -> calculator {expression}
(add|sum) {numbers}
    "Sum 14, 28, 42 and 56." -> calculator sum({numbers})
add {a:number} to {b:number}
    "Add 5 to 12." -> calculator {b} + {a}
subtract {a:number} from {b:number}
    "Subtract 45.75 from 100." -> calculator {b} - {a}
multiply {a:number} (by|with) {b:number}
    "Multiply 12 by 7." -> calculator {a} * {b}
divide {a:number} by {b:number}
    "Divide 945 by 15." -> calculator {a} / {b}
<what is>remainder (when|of) {a:number} [is ]divided by {b:number}
    "What is the remainder when 1000 is divided by 7?" -> calculator mod({a}, {b})
<what is>difference between {a:number} and {b:number}
    "What is the difference between 587 and 1,003?" -> calculator abs({a} - {b})
<what is>{percent} of {number}
    "What is 17% of 2,340?" -> calculator {percent} / 100 * {number}
add {percent} [VAT |tax ]to {number}
increase {number} by {percent}
    "Add 19% VAT to 250." -> calculator {number} * (1 + {percent} / 100)
take {percent} off {number}
(decrease|reduce) {number} by {percent}
<what is>{number} (with|less) {percent} (off|discount)
    "Take 20% off 79.90." -> calculator {number} * (1 - {percent} / 100)
<what is>(percent|percentage) change from {a:number} to {b:number}
    "What is the percent change from 160 to 200?" -> calculator ({b} - {a}) / {a} * 100
(what|which) (percent|percentage) of {whole:number} is {part:number}
{part:number} is (what|which) (percent|percentage) of {whole:number}
    "What percent of 250 is 35?" -> calculator {part} / {whole} * 100
<what is>{multiple} {number}
    "What is two thirds of 96?" -> calculator {multiple} * {number}
<what is>{power} of {number}
    "What is the square of 12?" -> calculator ({number})^{power}
<what is>{function} of {number}
    "Find the square root of 625." -> calculator {function}({number})
<what is>{figure} of {numbers}
    "What is the average of 12, 15, 18 and 25?" -> calculator {figure}({numbers})
round {number} to {rounding}
    "Round 1234.5678 to the nearest whole number." -> calculator round({number}, {rounding})
how many {small:clock unit} are [there ]in {number} {large:clock unit}
    "How many hours are in 3 weeks?" -> calculator {number} * {large} / {small}
# Dates
(what|which) (day of the week|weekday|day) (is|was|will be) {date}
on (what|which) (day of the week|weekday|day) (does|did|will) {date} fall
    "What day of the week is September 8, 2025?" -> calendar weekday date={date}
(what|which) (day of the week|weekday) (is it|is|was it|was) {count} {unit} after {date}
    "What day of the week is 100 days after March 3, 2024?"
    -> calendar weekday date={date} amount={count} unit={unit}
(what|which) (day of the week|weekday) (is it|is|was it|was) {count back} {unit} before {date}
    "Which weekday was it 10 days before 2025-10-01?"
    -> calendar weekday date={date} amount={count back} unit={unit}
<which date is>{count} {unit} {direction} {date}
    "What date is 45 days after March 15, 2024?"
    -> calendar {direction} date={date} amount={count} unit={unit}
add {count} {unit} to {date}
    "Add 100 days to 2025-01-01." -> calendar add date={date} amount={count} unit={unit}
subtract {count} {unit} from {date}
    "Subtract 30 days from 2024-03-15."
    -> calendar subtract date={date} amount={count} unit={unit}
<which date is>{count} {unit} {ago}
    "What date was 90 days ago?"
    -> calendar {ago} date=today amount={count} unit={unit}
<which date is>day {direction} {date}
    "What is the day after February 28, 2024?"
    -> calendar {direction} date={date} amount=1 unit=days
how many {calendar unit} (are there|are|lie) between {start:date} and {end:date}
how many {calendar unit} (are there|is it) from {start:date} (to|until) {end:date}
<what is>number of {calendar unit} between {start:date} and {end:date}
<what is>number of {calendar unit} from {start:date} (to|until) {end:date}
    "How many days are between January 1, 2024 and December 25, 2024?"
    -> calendar difference date={start} end_date={end} unit={calendar unit}
how old [in years ]is someone on {end:date} who was born on {start:date}
    "How old is someone on 2024-06-15 who was born on 16 June 1990?"
    -> calendar until date={start} end_date={end} unit=years
(is|was|will) [the year ]{year} [be ]a leap year
    "Is 2024 a leap year?" -> calendar leap_year year={year}
how many days are [there ]in {month} {year}
how many days does {month} {year} have
<what is>number of days in {month} {year}
    "How many days are there in February 2024?"
    -> calendar days_in_month year={year} month={month}
how many days are [there ]in [the year ]{year}
how many days does [the year ]{year} have
<what is>number of days in {year}
    "How many days are in 2024?" -> calendar days_in_year year={year}
<which date is>(last day|end) of {month} {year}
    "What is the last day of February 2025?" -> calendar end_of_month year={year} month={month}
<which date is>(last day|end) of the month (of|for) {date}
    "Give me the end of the month for 2024-11-08." -> calendar end_of_month date={date}
<which date is>{ordinal} {weekday} (of|in) {month} {year}
    "When is the second Tuesday of October 2025?"
    -> calendar nth_weekday year={year} month={month} weekday={weekday} nth={ordinal}
<which date is>[(first|next) ]{weekday} after {date}
    "What is the date of the first Wednesday after 2025-04-10?"
    -> calendar weekday_after date={date} weekday={weekday}
<which date is>[(last|previous) ]{weekday} before {date}
    "What was the last Monday before June 1, 2024?"
    -> calendar weekday_before date={date} weekday={weekday}
(normalise|write) [the date ]{date}[ in full]
    "Write the date 24.12.2025 in full." -> calendar normalise date={date}
what (is today's date|is the date today|date is it)
    "What is today's date?" -> calendar today
what time is it[ now]
    "What time is it?" -> calendar now
what time is it in {zone}
    "What time is it in Asia/Tokyo?" -> calendar now timezone={zone}
multiply the number of days (between|from) {start:date} (and|to) {end:date} by {number}
    "Multiply the number of days between June 3, 2025 and June 10, 2025 by 49."
    -> calendar difference date={start} end_date={end} -> calculator ${result.1} * {number}
<what is>{percent} of the number of days (between|from) {start:date} (and|to) {end:date}
    "What is 25% of the number of days between 2024-01-01 and 2024-04-10?"
    -> calendar difference date={start} end_date={end} -> calculator {percent} / 100 * ${result.1}
how many days are [there ]in {year}, multiplied by {number}
multiply the number of days in {year} by {number}
    "How many days are in 2024, multiplied by 24?"
    -> calendar days_in_year year={year} -> calculator ${result.1} * {number}
# Stocks
<what is>{price} of {symbol} on {date}
<what is>{symbol}'s {price} on {date}
{symbol} {price} on {date}
    "What was the closing price of AAPL on 2013-01-02?"
    -> data_fetch_stock symbol={symbol} start={date} end={date} fields=[{price}]
at what price did {symbol} close on {date}
what did {symbol} close at on {date}
    "At what price did IBM close on March 15, 2005?"
    -> data_fetch_stock symbol={symbol} start={date} end={date} fields=[close]
what do {number} shares of {symbol} cost at the closing price of {date}
    "What do 15 shares of IBM cost at the closing price of 2011-08-08?"
    -> data_fetch_stock symbol={symbol} start={date} end={date} fields=[close]
    -> calculator {number} * ${result.1}
show the daily prices of {symbol} {period}
    "Show the daily prices of GOOG from 2010-01-04 to 2010-01-15."
    -> data_fetch_stock symbol={symbol} start={start} end={end}
<what is>{metric} of {symbol} {period}[[,] in percent]
<what is>{symbol}'s {metric} {period}[[,] in percent]
    "What was the total return of AAPL in 2009, in percent, rounded to 2 decimals?"
    -> numeric_analysis metric={metric} symbol={symbol} start={start} end={end}
<what is>{statistic} {close} of {symbol} {period}
<what is>{symbol}'s {statistic} {close} {period}
    "What was AAPL's highest raw closing price in 2012?"
    -> numeric_analysis metric={statistic} price={close} symbol={symbol} start={start} end={end}
<what is>correlation (of|between) the daily returns of {a:symbol} and {b:symbol} {period}
how strongly were the daily returns of {a:symbol} and {b:symbol} correlated {period}
    "How strongly were the daily returns of IBM and MSFT correlated in 2010?"
    -> numeric_analysis metric=correlation symbols=[{a}, {b}] start={start} end={end}
which had the (highest|higher) {metric} {period}, {a:symbol} or {b:symbol}
    "Which had the higher total return in 2011, IBM or MSFT?"
    -> numeric_analysis metric={metric} symbols=[{a}, {b}] start={start} end={end}
(plot|draw) the (closing price|closing prices|price|prices) of {symbol} {period}
(plot|draw) {symbol}'s (closing price|closing prices|price|prices) {period}
    "Plot the closing price of GOOG in 2009."
    -> plotter kind=line symbol={symbol} start={start} end={end}
(draw|plot) a chart that compares {a:symbol} and {b:symbol} {period}
plot {a:symbol} and {b:symbol} {period}
    "Draw a chart that compares AAPL and MSFT in 2010."
    -> plotter kind=line symbols=[{a}, {b}] start={start} end={end}
(draw|plot) (a candle chart|candles) of {symbol} {period}
    "Draw a candle chart of IBM in March 2009."
    -> plotter kind=candles symbol={symbol} start={start} end={end}
(draw|plot) the drawdown of {symbol} {period}
    "Plot the drawdown of AAPL in 2008."
    -> plotter kind=drawdown symbol={symbol} start={start} end={end}
""")
