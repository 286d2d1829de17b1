"""How the calls of this process wait for their turns at models that may only be asked so often.

All processes share what a model may be asked in a minute, and the place where that is kept decides
who is next among tenants. Calls of the same tenant for the same model form a **line** in each
process, and only one call of a line asks at a time: it takes its turn, and the next one is called
at once; or it is told when to ask again, and the line sleeps until then. So what waits costs
nothing, however many calls there are, and leaves the line at once when its run is stopped.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from caseworker.llm.ports import ModelError, RateLimit, RateLimits

TOO_MANY_REQUESTS = 429
USUAL_PAUSE_SECONDS = 1.0
"""After a refusal that does not say for how long."""
MAX_PAUSE_SECONDS = 60.0
"""A provider that asks for a longer pause is asked again after this one: limits are by minute."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What may be taken of one limit: ``burst`` at once, and ``per_second`` from then on.

    Together that is never more than the limit in any minute; of what is taken piece by piece, such
    as tokens, the last request may pass it by what it takes above ``burst``.
    """

    burst: float
    per_second: float

    @classmethod
    def of(cls, per_minute: int, *, burst_seconds: int) -> "Allowance":
        """Return the allowance of a limit that lets through at once what comes in some seconds."""
        burst = max(1, per_minute * burst_seconds // 60)
        return cls(burst, (per_minute + 1 - burst) / 60)


class Turns:
    """All lines of this process."""

    def __init__(self, limits: RateLimits) -> None:
        self._limits = limits
        self._lines: dict[tuple[str, str], _Line] = {}
        self._unused: dict[str, int] = {}
        """Tokens that requests have taken and not needed, by model, until somebody asks."""
        self._notices: set[asyncio.Task[None]] = set()

    def turn(self, limit: RateLimit, tenant: str) -> "ModelTurn":
        """Return the turn of one attempt."""
        return ModelTurn(self, limit, tenant)

    def line(self, limit: RateLimit, tenant: str) -> "_Line":
        """Return the line of a tenant's calls for a model."""
        return self._lines.setdefault((limit.model, tenant), _Line())

    async def ask(self, limit: RateLimit, tenant: str, tokens: int) -> float:
        """Ask for a turn; return 0, or the seconds to wait."""
        unused = self._unused.pop(limit.model, 0)
        return await self._limits.take(limit, tenant, tokens, unused=unused)

    def leave(self, limit: RateLimit, tenant: str) -> None:
        """Note that a line is idle; its place is given up if it has one."""
        line = self._lines.pop((limit.model, tenant))
        line.sleep(None)
        if line.has_place:
            self._notify(self._limits.leave(limit, tenant))

    def give_back(self, limit: RateLimit, tokens: int) -> None:
        """Note tokens that were not needed; whoever would ask next here may ask now."""
        if limit.tokens_per_minute is None:
            return
        self._unused[limit.model] = self._unused.get(limit.model, 0) + tokens
        asleep = [
            (line.wakes_at, number, line)
            for number, ((model, _), line) in enumerate(self._lines.items())
            if model == limit.model and line.wakes_at is not None
        ]
        if tokens > 0 and asleep:
            min(asleep)[2].call_next()

    def refused(self, limit: RateLimit, error: ModelError) -> None:
        """Pause a model for all processes, if its provider has said that it is asked too often."""
        asked = error.retry_after_seconds or 0.0
        if error.status == TOO_MANY_REQUESTS or asked > 0:
            seconds = min(asked if asked > 0 else USUAL_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
            self._notify(self._limits.pause(limit, seconds))

    async def aclose(self) -> None:
        """Wait for what is still to be told to others."""
        if self._notices:
            await asyncio.wait(self._notices)

    def _notify(self, notice: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(notice, name="notice of a turn")
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)


@dataclass(slots=True, eq=False)
class _Line:
    """The calls of one tenant in this process that wait for one model."""

    waiting: "OrderedDict[ModelTurn, asyncio.Future[None]]" = field(default_factory=OrderedDict)
    called: "ModelTurn | None" = None
    """Who asks now, or was called to."""
    has_place: bool = False
    """Whether a place is kept for the line, as far as this process knows."""
    _timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits or asks."""
        return self.called is None and not self.waiting

    @property
    def wakes_at(self) -> float | None:
        """When the first in the line asks, on the clock of the loop; None if it need not wait."""
        return None if self._timer is None or not self.waiting else self._timer.when()

    def sleep(self, seconds: float | None) -> None:
        """Have nobody called for so long; None: until somebody is called otherwise."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.call_next)

    def call_next(self) -> None:
        """Call the first in the line, unless somebody is called already."""
        self.sleep(None)
        if self.called is None and self.waiting:
            self.called, woken = self.waiting.popitem(last=False)
            if not woken.done():
                woken.set_result(None)

    def join(self, turn: "ModelTurn", *, first: bool) -> "asyncio.Future[None]":
        """Stand in the line; return what is done when the turn is called."""
        woken = self.waiting[turn] = asyncio.get_running_loop().create_future()
        self.waiting.move_to_end(turn, last=not first)
        if self._timer is None:
            self.call_next()
        return woken


class ModelTurn:
    """Implements the engine's turn for one attempt at asking a model."""

    def __init__(self, turns: Turns, limit: RateLimit, tenant: str) -> None:
        self._turns = turns
        self._limit = limit
        self._tenant = tenant
        self._was_first = False
        self._taken = 0

    @property
    def _line(self) -> _Line:
        return self._turns.line(self._limit, self._tenant)

    async def take(self, tokens: int) -> bool:
        """Take the turn; False if others are first, or nobody's turn is now."""
        line = self._line
        if line.called is not self:
            if not line.is_idle:
                return False
            line.called = self
        line.has_place = True  # as far as is known if nobody hears the answer
        seconds = await self._turns.ask(self._limit, self._tenant, tokens)
        line.called, line.has_place = None, seconds > 0
        if seconds > 0:
            self._was_first = True
            line.sleep(seconds)
            return False
        self._taken = tokens
        line.call_next()
        self._leave_if_idle()
        return True

    async def wait(self) -> None:
        """Wait until it is called."""
        await self._line.join(self, first=self._was_first)

    def step_aside(self) -> None:
        """Let the next one ask, and be the first again afterwards."""
        if self._line.called is self:
            self._line.called, self._was_first = None, True
            self._line.call_next()

    def leave(self) -> None:
        """Leave the line."""
        line = self._line
        line.waiting.pop(self, None)
        if line.called is self:
            line.called = None
            line.call_next()
        self._leave_if_idle()

    def settle(self, tokens: int) -> None:
        """Give back what was taken and not needed."""
        self._turns.give_back(self._limit, self._taken - tokens)

    def _leave_if_idle(self) -> None:
        if self._line.is_idle:
            self._turns.leave(self._limit, self._tenant)
