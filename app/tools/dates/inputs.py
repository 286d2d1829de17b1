"""The arguments of one calendar operation, read."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import MAXYEAR, MINYEAR, date, datetime, timedelta
from typing import Any, TypeGuard
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from app.tools.dates.calculation import CLOCK_UNITS, MAX_AMOUNT, UNITS, ClockUnit, Unit
from app.tools.dates.moments import instant_of, iso_moment, split
from app.tools.dates.reader import MAX_LENGTH, DateReader
from app.tools.dates.refusal import DateRefusedError, outside_years, unfit
from app.tools.dates.wording import WEEKDAYS

RELATIVE_DAYS: Mapping[str, int] = {"yesterday": -1, "today": 0, "tomorrow": 1}
"""Words that stand for a date, by their distance from today in days."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Typed access to the arguments; what they are relative to is fixed.

    Every method raises ``DateRefusedError`` for a value it cannot use.
    """

    args: Mapping[str, Any]
    reader: DateReader
    zone: ZoneInfo
    now: datetime
    """Aware; its date in ``zone`` is today."""

    def has(self, name: str) -> bool:
        """Tell whether the argument was given."""
        return name in self.args

    def today(self) -> date:
        """Return today's date in the zone."""
        return self.now.astimezone(self.zone).date()

    def day(self, name: str = "date") -> date:
        """Return the date that the argument names."""
        return self._day_in(self._text(name))

    def _day_in(self, text: str) -> date:
        distance = RELATIVE_DAYS.get(text.strip().lower())
        if distance is None:
            return self.reader.read(text, self.zone)
        return self.today() + timedelta(days=distance)

    def day_or_today(self, name: str) -> date:
        """Return the date that the argument names, or today if it was not given."""
        return self.day(name) if self.has(name) else self.today()

    def has_time(self, name: str) -> bool:
        """Tell whether the argument names a time of day besides its date."""
        text = " ".join(self._text(name).split())
        if len(text) > MAX_LENGTH or not text.isascii():
            return False
        return _is_now(text) or iso_moment(text) is not None or split(text) is not None

    def moment(self, name: str = "date") -> datetime:
        """Return the instant that the argument names; a time without an offset is of the zone."""
        text = " ".join(self._text(name).split())
        if len(text) > MAX_LENGTH or not text.isascii():
            raise _no_moment(name)
        if _is_now(text):
            return self.now.astimezone(self.zone).replace(microsecond=0)
        try:
            return self._moment_in(text, name)
        except OverflowError:
            raise outside_years() from None

    def _moment_in(self, text: str, name: str) -> datetime:
        moment = iso_moment(text)
        if moment is None:
            parts = split(text)
            if parts is None:
                raise _no_moment(name)
            moment = datetime.combine(self._day_in(parts[0]), parts[1])
        if moment.tzinfo is not None:
            return moment.astimezone(self.zone)
        return instant_of(moment, self.zone)

    def in_zone(self, name: str) -> "Inputs":
        """Return the same arguments, read in the zone that an argument names."""
        return replace(self, zone=zone_named(self.args.get(name)))

    def amount(self) -> int:
        """Return how many units to count."""
        return self._whole("amount", -MAX_AMOUNT, MAX_AMOUNT)

    def unit(self, default: Unit | None = None) -> Unit:
        """Return the unit to count in."""
        wanted = self._text("unit") if self.has("unit") or default is None else default
        for unit in UNITS:
            if unit == wanted:
                return unit
        raise unfit(f"'unit' must be one of {', '.join(UNITS)}")

    def clock_unit(self) -> ClockUnit | None:
        """Return the unit if it is shorter than a day."""
        return next((unit for unit in CLOCK_UNITS if unit == self.args.get("unit")), None)

    def year(self) -> int:
        """Return the year, 1 to 9999."""
        return self._whole("year", MINYEAR, MAXYEAR)

    def month(self) -> int:
        """Return the month, 1 to 12."""
        return self._whole("month", 1, 12)

    def nth(self) -> int:
        """Return 1 to 5, or -1 for the last."""
        nth = self._whole("nth", -1, 5)
        if nth == 0:
            raise unfit("'nth' must be 1 to 5, or -1 for the last")
        return nth

    def weekday(self) -> int:
        """Return 0 for Monday to 6 for Sunday."""
        wanted = self._text("weekday").strip().capitalize()
        if wanted not in WEEKDAYS:
            raise unfit(f"'weekday' must be one of {', '.join(WEEKDAYS)}")
        return WEEKDAYS.index(wanted)

    def _text(self, name: str) -> str:
        value = self.args.get(name)
        if not isinstance(value, str):
            raise unfit(f"'{name}' must be text")
        return value

    def _whole(self, name: str, lowest: int, highest: int) -> int:
        value = self.args.get(name)
        if not _is_whole(value) or not lowest <= value <= highest:
            raise unfit(f"'{name}' must be a whole number from {lowest} to {highest}")
        return int(value)


def _is_whole(value: object) -> TypeGuard[int | float]:
    """Tell whether a JSON value is a whole number; JSON knows no difference between 2 and 2.0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0


def zone_named(name: object) -> ZoneInfo:
    """Return the zone of an IANA name.

    Raises:
        DateRefusedError: there is no such zone.
    """
    try:
        if isinstance(name, str) and name:
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    raise DateRefusedError(
        "the time zone is not known; give an IANA name such as Europe/Paris or UTC",
        code="unknown_timezone",
    )


def _is_now(text: str) -> bool:
    return text.lower() == "now"


def _no_moment(name: str) -> DateRefusedError:
    return unfit(f"'{name}' needs a time of day, such as 2025-09-08T15:30, or now")
