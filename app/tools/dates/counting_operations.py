"""Operations that count days, place a day in its year, or put two days in order."""

import calendar
from datetime import date

from app.tools.dates.calculation import count_of_business_days, count_of_weekday
from app.tools.dates.clock_operations import in_utc, told_moment
from app.tools.dates.inputs import Inputs
from app.tools.dates.refusal import unfit
from app.tools.dates.wording import WEEKDAYS, counted, in_words, month_and_day, told_day
from app.tools.ports import ToolResult

_MONTHS_A_QUARTER = 3


def count_weekday(inputs: Inputs) -> ToolResult:
    """Count the Mondays, say, from one day to another, both included."""
    start, end = _ends(inputs)
    weekday = inputs.weekday()
    return _counted(count_of_weekday(start, end, weekday), WEEKDAYS[weekday], start, end)


def count_business_days(inputs: Inputs) -> ToolResult:
    """Count the Mondays to Fridays from one day to another, both included."""
    start, end = _ends(inputs)
    return _counted(count_of_business_days(start, end), "business day", start, end)


def _ends(inputs: Inputs) -> tuple[date, date]:
    start, end = sorted((inputs.day(), inputs.day("end_date")))
    return start, end


def _counted(count: int, name: str, start: date, end: date) -> ToolResult:
    both = f"from {in_words(start)} to {in_words(end)}, both included"
    return {
        "value": str(count),
        "text": f"{counted(count, name)} {both}",
        "date": start.isoformat(),
        "end_date": end.isoformat(),
    }


def week_number(inputs: Inputs) -> ToolResult:
    """Tell the week of ISO 8601 and the year it belongs to, which may be another than the day's."""
    day = inputs.day()
    year, week, _ = day.isocalendar()
    return {
        "value": str(week),
        "text": f"{month_and_day(day)} is in week {week} of {year} (ISO 8601)",
        "iso_year": year,
        "iso_week": f"{year:04}-W{week:02}",
        "date": day.isoformat(),
    }


def day_of_year(inputs: Inputs) -> ToolResult:
    """Tell the number of a day in its year, from 1."""
    day = inputs.day()
    number = day.timetuple().tm_yday
    length = 366 if calendar.isleap(day.year) else 365
    return {
        "value": str(number),
        "text": f"{month_and_day(day)} is day {number} of {length} in {day.year}",
        "date": day.isoformat(),
    }


def quarter(inputs: Inputs) -> ToolResult:
    """Tell the calendar quarter of a day, 1 to 4."""
    day = inputs.day()
    number = (day.month - 1) // _MONTHS_A_QUARTER + 1
    return {
        "value": str(number),
        "text": f"{month_and_day(day)} is in Q{number} {day.year}",
        "date": day.isoformat(),
    }


def earlier(inputs: Inputs) -> ToolResult:
    """Tell which of two days, or of two instants, comes first."""
    return _chosen(inputs, later=False)


def later(inputs: Inputs) -> ToolResult:
    """Tell which of two days, or of two instants, comes last."""
    return _chosen(inputs, later=True)


def _chosen(inputs: Inputs, *, later: bool) -> ToolResult:
    timed = [inputs.has_time(name) for name in ("date", "end_date")]
    if all(timed):
        first, second = in_utc(inputs.moment()), in_utc(inputs.moment("end_date"))
        chosen = max(first, second) if later else min(first, second)
        return told_moment(chosen, inputs.zone) | _which(first == second, chosen == first)
    if any(timed):
        raise unfit("give a time of day with both dates, or with none of them")
    one, other = inputs.day(), inputs.day("end_date")
    day = max(one, other) if later else min(one, other)
    return told_day(day) | _which(one == other, day == one)


def _which(same: bool, first: bool) -> ToolResult:
    return {"which": "both" if same else "date" if first else "end_date"}
