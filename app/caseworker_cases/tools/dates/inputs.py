"""The arguments for one calendar operation, with the current time and time zone."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.tools.dates.calculation import UNITS, WEEKDAYS, Unit, outside_years
from caseworker_cases.tools.dates.reader import DateReader, instant_of, iso_moment, split_time

RELATIVE_DAYS: Mapping[str, int] = {"yesterday": -1, "today": 0, "tomorrow": 1}
"""Maps words for relative dates to their distance from today, in days."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Typed access to arguments that match the calendar tool's schema.

    Every method raises ``ToolRefusedError`` if a value is invalid.
    """

    args: Mapping[str, Any]
    reader: DateReader
    zone: ZoneInfo
    now: datetime
    """Current time, timezone-aware. Today is its date in ``zone``."""

    def has(self, name: str) -> bool:
        """Return whether the argument was given."""
        return name in self.args

    def number(self, name: str) -> int:
        """Return an integer argument, which JSON may write as 2 or as 2.0."""
        return int(self.args[name])

    def weekday(self) -> int:
        """Return the weekday argument as a number from 0 (Monday) to 6 (Sunday)."""
        return WEEKDAYS.index(self.args["weekday"])

    def unit(self, default: Unit | None = None) -> Unit:
        """Return the unit argument, or ``default`` if it was not given."""
        wanted = self.args.get("unit", default)
        for unit in UNITS:
            if unit == wanted:
                return unit
        raise ToolRefusedError(
            f"'unit' must be one of {', '.join(UNITS)}; elapsed counts hours and shorter between "
            "two dates with a time"
        )

    def today(self) -> date:
        """Return today's date in the time zone."""
        return self.now.astimezone(self.zone).date()

    def day(self, name: str = "date") -> date:
        """Parse a date argument."""
        return self._day_in(self.args[name])

    def _day_in(self, text: str) -> date:
        distance = RELATIVE_DAYS.get(text.strip().lower())
        if distance is None:
            return self.reader.read(text, self.zone)
        return self.today() + timedelta(days=distance)

    def moment(self, name: str = "date") -> datetime:
        """Parse an argument as an instant; a time without an offset is local to ``zone``."""
        text = " ".join(self.args[name].split())
        if text.lower() == "now":
            return self.now.astimezone(self.zone).replace(microsecond=0)
        moment = iso_moment(text) if text.isascii() else None
        try:
            if moment is None:
                parts = split_time(text) if text.isascii() else None
                if parts is None:
                    raise ToolRefusedError(
                        f"'{name}' needs a time of day, such as 2025-09-08T15:30, or now"
                    )
                moment = datetime.combine(self._day_in(parts[0]), parts[1])
            if moment.tzinfo is not None:
                return moment.astimezone(self.zone)
            return instant_of(moment, self.zone)
        except OverflowError:
            raise outside_years() from None

    def in_zone(self, name: str) -> "Inputs":
        """Return a copy of the inputs in the time zone that an argument names."""
        return replace(self, zone=zone_named(self.args[name]))


def zone_named(name: str) -> ZoneInfo:
    """Return the time zone with this IANA name."""
    try:
        if name:
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    raise ToolRefusedError(
        "the time zone is not known; give an IANA name such as Europe/Paris or UTC",
        code="unknown_timezone",
    )


def in_utc(moment: datetime) -> datetime:
    """Convert an instant to UTC; Python compares two times in one zone by their wall clocks."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise outside_years() from None
