"""When a schedule fires: pure functions of its cron expression, its zone, its policy and the time.

An expression has five fields and speaks of the wall clock of a zone, which is not a clock that only
goes on. Where the wall clock jumps forward, all times in the gap fire once, at the end of the gap.
Where it goes back, a time that comes twice fires at the first of the two. An expression whose hour
begins with ``*`` means the time that passes and not the time of day: it fires whenever the clock
shows one of its times, twice if that comes twice, and nothing of it lies in a gap.

The library reads the expression and finds wall times, without a zone: with one it loses instants
where the jump is not of whole hours. What the zone makes of wall times is decided here.
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
"""From when on an instant that has not fired yet counts as missed."""

MAX_CATCH_UP = 100

_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)
"""No clock is set back by as much."""
_ITEM = r"(?:\*|[0-9]{1,2}(?:-[0-9]{1,2})?|[A-Za-z]{3}(?:-[A-Za-z]{3})?)(?:/[0-9]{1,2})?"
_FIELD = rf"{_ITEM}(?:,{_ITEM})*"
CRON = rf"^{_FIELD}(?: {_FIELD}){{4}}$"
"""The form of an expression; the library reads more, such as fields that it fills in by chance."""


class CatchUp(StrEnum):
    """What becomes of instants that were missed, because nothing was there to fire them."""

    SKIP = "skip"
    ONE = "one"
    """The last of them fires late."""
    ALL = "all"
    """All of them fire late, up to a maximum: the last ones."""


class InvalidCronError(ValueError):
    """The expression is not one, or never fires; the message says which."""


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule fires."""

    cron: str
    timezone: str
    catch_up: CatchUp = CatchUp.ONE
    max_catch_up: int = 10
    """How many missed instants ``all`` fires at most."""

    def require_valid(self, now: datetime) -> None:
        """Refuse an expression that cannot be read or never fires.

        Raises:
            InvalidCronError: it is one.
        """
        readable = re.fullmatch(CRON[1:-1], self.cron, re.ASCII)
        if not readable or not croniter.is_valid(self.cron):
            raise InvalidCronError(
                "This must be a cron expression with five fields, such as 30 6 * * 1-5."
            )
        try:
            self.next_after(now)
        except CroniterError:
            raise InvalidCronError("This expression never fires.") from None

    def next_after(self, instant: datetime) -> datetime:
        """Return the first instant later than this one, UTC."""
        return next(at for at in self._instants(instant, forward=True) if at > instant)

    def last_until(self, instant: datetime) -> Iterator[datetime]:
        """Yield the instants up to and with this one, UTC, the latest first."""
        return (at for at in self._instants(instant, forward=False) if at <= instant)

    def _instants(self, start: datetime, *, forward: bool) -> Iterator[datetime]:
        """Yield every instant in order, from at most a day before ``start`` (or after it).

        A clock that is set back shows some times twice. What it shows for the first time is in
        order, and so is what it shows for the last time: both are merged.
        """
        folds = (0, 1) if self._counts_passing_time() else (0,)
        showings = (self._showings(start, fold=fold, forward=forward) for fold in folds)
        return (at for at, _ in groupby(heapq.merge(*showings, reverse=not forward)))

    def _showings(self, start: datetime, *, fold: int, forward: bool) -> Iterator[datetime]:
        """Yield when the clock shows the times of the expression, first (0) or last (1)."""
        zone = ZoneInfo(self.timezone)
        near = (start, start + (_DAY if forward else -_DAY))
        walls = [at.astimezone(zone).replace(tzinfo=None) - (at - start) for at in near]
        times = croniter(self.cron, min(walls) if forward else max(walls) + _MINUTE)
        step = times.get_next if forward else times.get_prev
        while True:
            shown = step(datetime).replace(tzinfo=zone, fold=fold)
            if _is_in_gap(shown) and self._counts_passing_time():
                continue
            while _is_in_gap(shown):
                shown += _MINUTE
            yield shown.astimezone(UTC)

    def _counts_passing_time(self) -> bool:
        return self.cron.split(" ")[1].startswith("*")


def _is_in_gap(wall: datetime) -> bool:
    """Tell whether the clock of its zone jumps over a wall time."""
    return wall.astimezone(UTC).astimezone(wall.tzinfo) != wall


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be done of a schedule now."""

    instants: tuple[datetime, ...]
    """Those that fire, in order."""
    next_at: datetime
    """The first one after now."""


def due(timing: Timing, *, next_at: datetime, now: datetime) -> Due:
    """Return the instants from ``next_at`` to ``now`` that fire, as the policy has it.

    What has fired before ``next_at`` does not fire again, whenever this is asked. An instant is
    missed if it is more than a minute late, or if a later one is due by now.
    """
    most = timing.max_catch_up if timing.catch_up is CatchUp.ALL else 1
    found: list[datetime] = []
    for instant in timing.last_until(now):
        if instant < next_at or len(found) == most:
            break
        found.append(instant)
    if timing.catch_up is CatchUp.SKIP:
        found = [each for each in found if (now - each).total_seconds() <= LATE_SECONDS]
    return Due(tuple(reversed(found)), timing.next_after(now))
