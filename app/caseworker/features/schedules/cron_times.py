"""Computes the scheduled times of a schedule from its cron expression and time zone.

All functions are pure. An expression has five fields in wall-clock time of a zone, and wall clocks
jump at daylight-saving changes. If the clock jumps forward, all times in the gap fire once, at its
end. If it is set back, a repeated time fires at its first occurrence only. Exception: if the hour
field begins with ``*``, the expression means elapsed time. It fires at every occurrence of its
times, twice for a repeated time, and skips times in a gap.

croniter parses the expression and yields wall-clock times without a zone. With a zone, it loses
times at clock jumps that are not a whole number of hours. This module converts wall-clock times to
instants.
"""

import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import groupby
from zoneinfo import ZoneInfo

from croniter import croniter
from croniter.croniter import CroniterError

LATE_SECONDS = 60.0
"""Delay, in seconds, after which a scheduled time without a run counts as missed."""

MAX_CATCH_UP = 100

_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)
"""Longer than any clock is set back."""
_ITEM = r"(?:\*|[0-9]{1,2}(?:-[0-9]{1,2})?|[A-Za-z]{3}(?:-[A-Za-z]{3})?)(?:/[0-9]{1,2})?"
_FIELD = rf"{_ITEM}(?:,{_ITEM})*"
CRON = rf"^{_FIELD}(?: {_FIELD}){{4}}$"
"""Regular expression for accepted cron expressions. croniter accepts further syntax, such as fields
with random values."""


class CatchUp(StrEnum):
    """What to do about scheduled times that were missed because no process was running."""

    SKIP = "skip"
    ONE = "one"
    """Start one run, for the last missed time."""
    ALL = "all"
    """Start a run for each of the most recent missed times, up to ``max_catch_up`` runs."""


class InvalidCronError(ValueError):
    """The cron expression is invalid or never matches; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The timing of a schedule: cron expression, time zone, and policy for missed runs."""

    cron: str
    timezone: str
    catch_up: CatchUp = CatchUp.ONE
    max_catch_up: int = 10
    """Maximum number of missed runs to start if the catch-up policy is ``all``."""

    def require_valid(self, now: datetime) -> None:
        """Check that the cron expression is valid and matches some time after ``now``.

        Raises:
            InvalidCronError: the expression is invalid or never matches.
        """
        readable = re.fullmatch(CRON[1:-1], self.cron, re.ASCII)
        if not readable or not croniter.is_valid(self.cron):
            raise InvalidCronError(
                "This must be a cron expression with five fields, such as 30 6 * * 1-5: minute "
                "(0-59), hour (0-23), day of month (1-31), month (1-12), day of week (0-7)."
            )
        try:
            self.next_after(now)
        except CroniterError:
            raise InvalidCronError("This expression never fires.") from None

    def next_after(self, instant: datetime) -> datetime:
        """Return the first scheduled time after ``instant``, in UTC."""
        return next(at for at in self._instants(instant, forward=True) if at > instant)

    def last_until(self, instant: datetime) -> Iterator[datetime]:
        """Yield the scheduled times up to and including ``instant``, in UTC, latest first."""
        return (at for at in self._instants(instant, forward=False) if at <= instant)

    def _instants(self, start: datetime, *, forward: bool) -> Iterator[datetime]:
        """Yield all instants in order, from at most a day before ``start`` (after it, if backward).

        A clock that is set back shows some times twice. First occurrences are in order among
        themselves, and so are last occurrences; this merges both sequences and drops duplicates.
        """
        folds = (0, 1) if self._counts_passing_time() else (0,)
        showings = (self._showings(start, fold=fold, forward=forward) for fold in folds)
        return (at for at, _ in groupby(heapq.merge(*showings, reverse=not forward)))

    def _showings(self, start: datetime, *, fold: int, forward: bool) -> Iterator[datetime]:
        """Yield the instants of the expression's wall times: first (0) or last (1) occurrences."""
        zone = ZoneInfo(self.timezone)
        near = (start, start + (_DAY if forward else -_DAY))
        walls = [at.astimezone(zone).replace(tzinfo=None) - (at - start) for at in near]
        times = croniter(self.cron, min(walls) if forward else max(walls) + _MINUTE)
        step = times.get_next if forward else times.get_prev
        while True:
            local_time = step(datetime).replace(tzinfo=zone, fold=fold)
            if _is_in_gap(local_time) and self._counts_passing_time():
                continue
            while _is_in_gap(local_time):
                local_time += _MINUTE
            yield local_time.astimezone(UTC)

    def _counts_passing_time(self) -> bool:
        return self.cron.split(" ")[1].startswith("*")


def _is_in_gap(wall: datetime) -> bool:
    """Return whether a wall time does not exist because its zone's clock skips it."""
    return wall.astimezone(UTC).astimezone(wall.tzinfo) != wall


@dataclass(frozen=True, slots=True)
class Due:
    """The scheduled times for which to start runs now, and the next one."""

    instants: tuple[datetime, ...]
    """Scheduled times for which to start runs now, in order."""
    next_at: datetime
    """First scheduled time after now."""


def due(timing: Timing, *, next_at: datetime, now: datetime) -> Due:
    """Return the scheduled times from ``next_at`` to ``now`` for which to start runs.

    Times before ``next_at`` never start runs again. A time is missed if it is more than a minute
    ago, or if a later one is already due. The catch-up policy determines which missed times still
    start runs.
    """
    limit = timing.max_catch_up if timing.catch_up is CatchUp.ALL else 1
    instants: list[datetime] = []
    for instant in timing.last_until(now):
        if instant < next_at or len(instants) == limit:
            break
        instants.append(instant)
    if timing.catch_up is CatchUp.SKIP:
        instants = [each for each in instants if (now - each).total_seconds() <= LATE_SECONDS]
    return Due(tuple(reversed(instants)), timing.next_after(now))
