"""What the calendar can do, one entry an operation."""

import calendar
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType

from app.tools.dates import calculation, clock_operations, counting_operations
from app.tools.dates.inputs import Inputs
from app.tools.dates.refusal import unfit
from app.tools.dates.wording import MONTHS, counted, in_words, told_day, weekday_name
from app.tools.ports import ToolResult


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation: the arguments it needs, those it may also take, and what it does."""

    needs: frozenset[str]
    takes: frozenset[str]
    perform: Callable[[Inputs], ToolResult]


def perform(operation: str, inputs: Inputs) -> ToolResult:
    """Carry out an operation.

    Raises:
        DateRefusedError: it is unknown, an argument is missing, unused or unfit, or there is no
            such date.
    """
    chosen = OPERATIONS.get(operation)
    if chosen is None:
        raise unfit(f"'operation' must be one of {', '.join(OPERATIONS)}")
    given = inputs.args.keys() - {"operation", "timezone"}
    if missing := sorted(chosen.needs - given):
        raise unfit(f"operation {operation} needs {', '.join(missing)}")
    if unused := sorted(given - chosen.needs - chosen.takes):
        raise unfit(f"operation {operation} does not use {', '.join(unused)[:80]}; leave it out")
    return chosen.perform(inputs)


def _today(inputs: Inputs) -> ToolResult:
    return told_day(inputs.today())


def _normalise(inputs: Inputs) -> ToolResult:
    return told_day(inputs.day())


def _add(inputs: Inputs) -> ToolResult:
    if (unit := inputs.clock_unit()) is not None:
        return clock_operations.shifted(inputs, inputs.amount(), unit)
    return told_day(calculation.shifted(inputs.day(), inputs.amount(), inputs.unit()))


def _subtract(inputs: Inputs) -> ToolResult:
    if (unit := inputs.clock_unit()) is not None:
        return clock_operations.shifted(inputs, -inputs.amount(), unit)
    return told_day(calculation.shifted(inputs.day(), -inputs.amount(), inputs.unit()))


def _weekday(inputs: Inputs) -> ToolResult:
    day = inputs.day()
    if inputs.has("amount") or inputs.has("unit"):
        day = calculation.shifted(day, inputs.amount(), inputs.unit())
    # The answer to "which weekday" is its name alone; the whole date stands beside it.
    name = weekday_name(day)
    return {"value": name, "text": name, "iso": day.isoformat(), "date": in_words(day)}


def _difference(inputs: Inputs) -> ToolResult:
    start, end = sorted((inputs.day(), inputs.day("end_date")))
    return _distance(start, end, inputs) | {"date": start.isoformat(), "end_date": end.isoformat()}


def _until(inputs: Inputs) -> ToolResult:
    if not inputs.has("date") and not inputs.has("end_date"):
        raise unfit("operation until needs date, end_date or both")
    start, end = inputs.day_or_today("date"), inputs.day_or_today("end_date")
    result = _distance(min(start, end), max(start, end), inputs)
    if end < start:
        result |= {"value": _negative(result["value"]), "text": f"{result['text']} ago"}
    return result | {"date": start.isoformat(), "end_date": end.isoformat()}


def _negative(number: str) -> str:
    return number if number == "0" else f"-{number}"


def _distance(start: date, end: date, inputs: Inputs) -> ToolResult:
    """Count whole units from ``start`` to a later ``end``; the text also tells the rest."""
    if inputs.clock_unit() is not None:
        raise unfit("hours and shorter are counted by elapsed, between two dates with a time")
    unit = inputs.unit(default="days")
    if unit == "business_days":
        raise unfit(
            "business days between two dates are counted in several ways; use days, or"
            " count_business_days, which includes both dates"
        )
    days = (end - start).days
    if unit in {"months", "years"}:
        months, rest = calculation.whole_months_between(start, end)
        whole, left = divmod(months, 12) if unit == "years" else (months, 0)
        parts = [(whole, unit[:-1]), (left, "month"), (rest, "day")]
    else:
        whole, rest = divmod(days, 7) if unit == "weeks" else (days, 0)
        parts = [(whole, unit[:-1]), (rest, "day")]
    shown = [counted(number, name) for number, name in parts[1:] if number]
    text = " and ".join([counted(whole, parts[0][1]), *shown])
    return {"value": str(whole), "text": text, "unit": unit, "days": days}


def _leap_year(inputs: Inputs) -> ToolResult:
    year = inputs.year()
    leap = calendar.isleap(year)
    answer = "yes" if leap else "no"
    return {"value": answer, "text": answer, "year": year, "leap_year": leap}


def _days_in_month(inputs: Inputs) -> ToolResult:
    days = calculation.days_in_month(inputs.year(), inputs.month())
    place = f"{MONTHS[inputs.month() - 1]} {inputs.year()}"
    return {"value": str(days), "text": f"{place} has {days} days"}


def _days_in_year(inputs: Inputs) -> ToolResult:
    days = 366 if calendar.isleap(inputs.year()) else 365
    return {"value": str(days), "text": f"{inputs.year()} has {days} days"}


def _end_of_month(inputs: Inputs) -> ToolResult:
    if inputs.has("date") == inputs.has("year") or inputs.has("year") != inputs.has("month"):
        raise unfit("operation end_of_month needs either date, or year and month")
    day = inputs.day() if inputs.has("date") else date(inputs.year(), inputs.month(), 1)
    return told_day(calculation.end_of_month(day.year, day.month))


def _nth_weekday(inputs: Inputs) -> ToolResult:
    return told_day(
        calculation.nth_weekday(inputs.year(), inputs.month(), inputs.weekday(), inputs.nth())
    )


def _weekday_after(inputs: Inputs) -> ToolResult:
    return told_day(calculation.next_weekday(inputs.day(), inputs.weekday(), forward=True))


def _weekday_before(inputs: Inputs) -> ToolResult:
    return told_day(calculation.next_weekday(inputs.day(), inputs.weekday(), forward=False))


def _operation(
    perform: Callable[[Inputs], ToolResult], needs: str = "", takes: str = ""
) -> Operation:
    return Operation(frozenset(needs.split()), frozenset(takes.split()), perform)


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "add": _operation(_add, "date amount unit"),
        "convert": _operation(clock_operations.convert, "date to_timezone"),
        "count_business_days": _operation(counting_operations.count_business_days, "date end_date"),
        "count_weekday": _operation(counting_operations.count_weekday, "date end_date weekday"),
        "day_of_year": _operation(counting_operations.day_of_year, "date"),
        "days_in_month": _operation(_days_in_month, "year month"),
        "days_in_year": _operation(_days_in_year, "year"),
        "difference": _operation(_difference, "date end_date", "unit"),
        "earlier": _operation(counting_operations.earlier, "date end_date"),
        "elapsed": _operation(clock_operations.elapsed, "date end_date", "unit to_timezone"),
        "end_of_month": _operation(_end_of_month, takes="date year month"),
        "later": _operation(counting_operations.later, "date end_date"),
        "leap_year": _operation(_leap_year, "year"),
        "normalise": _operation(_normalise, "date"),
        "now": _operation(clock_operations.now),
        "nth_weekday": _operation(_nth_weekday, "year month weekday nth"),
        "quarter": _operation(counting_operations.quarter, "date"),
        "subtract": _operation(_subtract, "date amount unit"),
        "today": _operation(_today),
        "until": _operation(_until, takes="date end_date unit"),
        "weekday": _operation(_weekday, "date", "amount unit"),
        "week_number": _operation(counting_operations.week_number, "date"),
        "weekday_after": _operation(_weekday_after, "date weekday"),
        "weekday_before": _operation(_weekday_before, "date weekday"),
    }
)
