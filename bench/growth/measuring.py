"""Measures cases on two databases in turns: the first requests of new processes, and later ones."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import httpx

from bench.figures import Samples
from bench.growth.routes import Case, Place
from bench.load import Request, connected
from caseworker.platform.errors import StoreUnavailableError

FIRST: Final = 4
"""Requests of a case to new processes, whose statements are planned for their values."""
WARM_UP: Final = 12
"""Requests before the counted ones. After ten executions, Postgres may use a generic plan."""
COUNTED: Final = 9
CASE_SECONDS: Final = 6.0
"""Seconds after which a case is not repeated any more, for each side."""
NO_ROWS: Final = "no rows to try it with"
FLAT: Final = 2.0
"""Largest ratio that counts as flat."""


Work = Callable[[], Awaitable[float | None]]
"""Does some work once and returns its value, or None if there is no more of it."""


@dataclass(frozen=True, slots=True)
class Line:
    """A case with its values on the small and on the large database."""

    title: str
    sides: tuple[Samples, Samples] | None
    """None if it could not be measured; ``note`` has the reason."""
    first: tuple[float, float] | None = None
    """Milliseconds of the fastest of the first requests."""
    note: str = ""
    unit: str = "ms"
    most: float = FLAT
    """Largest ratio that counts as flat."""

    @property
    def failed(self) -> bool:
        """Whether an answer was not the one that the line is named for."""
        return self.sides is None and self.note != NO_ROWS

    @property
    def ratio(self) -> float | None:
        """The median on the large database divided by the one on the small database."""
        if self.sides is None:
            return None
        small, large = self.sides
        return _ratio(small.median, large.median)

    @property
    def first_ratio(self) -> float | None:
        """The same ratio of the first requests."""
        return None if self.first is None else _ratio(*self.first)

    @property
    def is_flat(self) -> bool:
        """Whether the ratios are small enough; a line that has none is flat unless it failed.

        The ratio of the fastest requests must be large too: on a busy machine, medians vary.
        """
        if self.sides is None:
            return not self.failed
        fastest = _ratio(*(min(side.values) for side in self.sides))
        return max(min(self.ratio or 0, fastest), self.first_ratio or 0) <= self.most


def _ratio(small: float, large: float) -> float:
    if small:
        return large / small
    return float("inf") if large else 1.0


async def measure(
    cases: Sequence[Case],
    small: Mapping[str, Place],
    large: Mapping[str, Place],
    *,
    brief: bool = False,
) -> list[Line]:
    """Measure cases for all their tenants; first all of them briefly, then all at length.

    ``small`` and ``large`` have the place of each tenant. ``brief`` sends three requests a case.
    """
    pairs = [
        (case, tenant, (small[tenant], large[tenant])) for case in cases for tenant in case.tenants
    ]
    times = (1, 2) if brief else (FIRST, WARM_UP + COUNTED)
    first = [await _alternate(case, places, times[0]) for case, _, places in pairs]
    lines = []
    for (case, tenant, places), seconds in zip(pairs, first, strict=True):
        measured = await _alternate(case, places, times[1])
        lines.append(_line(f"{case.title} ({tenant})", seconds, measured))
        print(f"{len(lines)} of {len(pairs)}: {lines[-1].title}", file=sys.stderr)
    return lines


_Seconds = tuple[list[float], list[float], str]
"""Seconds of the requests to each side, and the first error."""


def _line(title: str, first: _Seconds, measured: _Seconds) -> Line:
    error = first[2] or measured[2]
    if error or not (measured[0] and measured[1]):
        return Line(title, None, note=error or NO_ROWS)
    small, large = (_counted(seconds) for seconds in measured[:2])
    fastest = (1e3 * min(first[0]), 1e3 * min(first[1])) if first[0] and first[1] else None
    return Line(title, (Samples(small), Samples(large)), fastest)


def _counted(seconds: Sequence[float]) -> tuple[float, ...]:
    counted = seconds[WARM_UP:] if len(seconds) > WARM_UP + 2 else seconds[len(seconds) // 2 :]
    return tuple(1e3 * each for each in counted)


async def _alternate(case: Case, places: Sequence[Place], times: int) -> _Seconds:
    """Send the requests of a case; if both places are one, each request is sent only once."""
    taken: tuple[list[float], list[float]] = ([], [])
    if places[0] is places[1]:
        places, taken = places[:1], (taken[0], taken[0])
    try:
        waiting = [await asyncio.to_thread(case.requests, place) for place in places]
        for _ in range(times):
            for seconds, place, requests in zip(taken, places, waiting, strict=False):
                if sum(seconds) < CASE_SECONDS and (request := _next(requests)) is not None:
                    seconds.append(await _send(place, request))
    except (RuntimeError, TimeoutError, httpx.HTTPError) as error:
        return *taken, f"{type(error).__name__}: {error}"[:200]
    return *taken, ""


def _next(requests: Iterator[Request]) -> Request | None:
    return next(requests, None)


async def _send(place: Place, request: Request) -> float:
    """Send a request over a new connection; the server closes those that it waits for too long."""
    async with connected(place.address) as connection, asyncio.timeout(60):
        seconds, _ = await connection.send(request)
        return seconds


async def alternating(
    title: str, works: Sequence[Work], times: int, *, unit: str = "ms", warm_up: int = 1
) -> Line:
    """Measure work on both sides in turns, which returns its value, and return its line."""
    values: tuple[list[float], list[float]] = ([], [])
    try:
        for number in range(times + warm_up):
            for side, work in zip(values, works, strict=True):
                value = await work()
                if number >= warm_up and value is not None:
                    side.append(value)
    except (RuntimeError, TimeoutError, StoreUnavailableError) as error:
        return Line(title, None, note=str(error), unit=unit)
    if not (values[0] and values[1]):
        return Line(title, None, note=NO_ROWS, unit=unit)
    return Line(title, (Samples(tuple(values[0])), Samples(tuple(values[1]))), unit=unit)


def timed(work: Callable[[], Awaitable[object]]) -> Work:
    """Return work that returns its own milliseconds, or None if it returns False."""

    async def measured() -> float | None:
        began = time.perf_counter()
        found = await work()
        return None if found is False else 1e3 * (time.perf_counter() - began)

    return measured
