"""What clocks show in two places, from the rules of the laws; nothing here reads a zone file."""

from datetime import UTC, date, datetime, timedelta


def nth_sunday(year: int, month: int, nth: int) -> date:
    """Return the nth Sunday of a month, or the last one for -1."""
    sundays = [
        day
        for day in (date(year, month, 1) + timedelta(days=number) for number in range(31))
        if day.month == month and day.isoweekday() == 7
    ]
    return sundays[nth - 1 if nth > 0 else nth]


def at_utc(day: date, hour: int) -> datetime:
    """Return an hour of a day in UTC."""
    return datetime(day.year, day.month, day.day, hour, tzinfo=UTC)


def berlin(moment: datetime) -> datetime:
    """Return what clocks in Berlin show: summer from the last Sunday of March to October's."""
    begins = at_utc(nth_sunday(moment.year, 3, -1), 1)
    ends = at_utc(nth_sunday(moment.year, 10, -1), 1)
    hours = 2 if begins <= moment < ends else 1
    return (moment + timedelta(hours=hours)).replace(tzinfo=None)


def new_york(moment: datetime) -> datetime:
    """Return what clocks in New York show: summer from March's second Sunday, since 2007."""
    begins = at_utc(nth_sunday(moment.year, 3, 2), 7)
    ends = at_utc(nth_sunday(moment.year, 11, 1), 6)
    hours = 4 if begins <= moment < ends else 5
    return (moment - timedelta(hours=hours)).replace(tzinfo=None)
