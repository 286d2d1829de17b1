"""Queues in which this process's calls wait for the rate slots of models.

A rate slot is permission to send one request. All processes share a model's rate limit, and the
shared store decides which tenant is next. Within a process, the calls of one tenant for one model
form a queue. Only the call at its head requests a slot at a time. If the slot is
granted, the next call is woken at once; otherwise the queue sleeps for the returned delay. Waiting
calls therefore cause no queries of their own, and a call leaves the queue as soon as its run is
stopped.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from caseworker.models.ports import ModelError, RateLimit, RateLimits

TOO_MANY_REQUESTS = 429
USUAL_PAUSE_SECONDS = 1.0
"""Pause in seconds after a provider rejected a request without a ``Retry-After`` header."""
MAX_PAUSE_SECONDS = 60.0
"""Maximum pause in seconds. A longer ``Retry-After`` is reduced to it because limits are per
minute."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """A token bucket for one rate limit: ``burst`` units at once, refilled at ``per_second``.

    It is sized so that usage stays within the limit in any minute. A single request for more than
    ``burst`` units, such as tokens, may exceed the limit by the difference.
    """

    burst: float
    per_second: float

    @classmethod
    def of(cls, per_minute: int, *, burst_seconds: int) -> "Allowance":
        """Build the bucket for a limit per minute; ``burst`` is its share for ``burst_seconds``."""
        burst = max(1, per_minute * burst_seconds // 60)
        return cls(burst, (per_minute + 1 - burst) / 60)


class Turns:
    """Rate-slot queues of this process, one for each rate-limited model and tenant."""

    def __init__(self, limits: RateLimits) -> None:
        self._limits = limits
        self._queues: dict[tuple[str, str], _TenantQueue] = {}
        self._unused: dict[str, int] = {}
        """Tokens taken but not used, by model; reported with the next request for a slot."""
        self._notices: set[asyncio.Task[None]] = set()

    def turn(self, limit: RateLimit, tenant: str) -> "ModelTurn":
        """Return a new rate-slot request for one call attempt."""
        return ModelTurn(self, limit, tenant)

    def queue_of(self, limit: RateLimit, tenant: str) -> "_TenantQueue":
        """Return the queue for a tenant's calls to a model."""
        return self._queues.setdefault((limit.model, tenant), _TenantQueue())

    async def ask(self, limit: RateLimit, tenant: str, tokens: int) -> float:
        """Request a slot from the shared store; return 0 if granted, else the seconds to wait."""
        unused = self._unused.pop(limit.model, 0)
        return await self._limits.take(limit, tenant, tokens, unused=unused)

    def leave(self, limit: RateLimit, tenant: str) -> None:
        """Remove an idle queue and release its position in the shared store, if it holds one."""
        queue = self._queues.pop((limit.model, tenant))
        queue.sleep(None)
        if queue.holds_position:
            self._notify(self._limits.leave(limit, tenant))

    def return_tokens(self, limit: RateLimit, tokens: int) -> None:
        """Record unused tokens. If there are any, wake the next queue of this model."""
        if limit.tokens_per_minute is None:
            return
        self._unused[limit.model] = self._unused.get(limit.model, 0) + tokens
        asleep = [
            (queue.wakes_at, number, queue)
            for number, ((model, _), queue) in enumerate(self._queues.items())
            if model == limit.model and queue.wakes_at is not None
        ]
        if tokens > 0 and asleep:
            min(asleep)[2].call_next()

    def refused(self, limit: RateLimit, error: ModelError) -> None:
        """Pause the model for all processes if the provider reported too many requests."""
        delay = error.retry_after_seconds or 0.0
        if error.status == TOO_MANY_REQUESTS or delay > 0:
            seconds = min(delay if delay > 0 else USUAL_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
            self._notify(self._limits.pause(limit, seconds))

    async def aclose(self) -> None:
        """Wait until pending releases and pauses are stored."""
        if self._notices:
            await asyncio.wait(self._notices)

    def _notify(self, notice: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(notice, name="notice of a turn")
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)


@dataclass(slots=True, eq=False)
class _TenantQueue:
    """The queue of one tenant's calls in this process for one model."""

    waiting: "OrderedDict[ModelTurn, asyncio.Future[None]]" = field(default_factory=OrderedDict)
    called: "ModelTurn | None" = None
    """The call that requests a slot now, or was woken to do so."""
    holds_position: bool = False
    """Whether the shared store holds a position for this queue, as far as this process knows."""
    _timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no call waits for or requests a slot."""
        return self.called is None and not self.waiting

    @property
    def wakes_at(self) -> float | None:
        """When the timer wakes the head, in event loop time; None without a timer or waiters."""
        return None if self._timer is None or not self.waiting else self._timer.when()

    def sleep(self, seconds: float | None) -> None:
        """Set the timer that wakes the head after ``seconds``; None only cancels it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.call_next)

    def call_next(self) -> None:
        """Wake the head of the queue, unless a call is already active."""
        self.sleep(None)
        if self.called is None and self.waiting:
            self.called, woken = self.waiting.popitem(last=False)
            if not woken.done():
                woken.set_result(None)

    def join(self, turn: "ModelTurn", *, first: bool) -> "asyncio.Future[None]":
        """Enqueue a call; return a future that is done when it is woken."""
        woken = self.waiting[turn] = asyncio.get_running_loop().create_future()
        self.waiting.move_to_end(turn, last=not first)
        if self._timer is None:
            self.call_next()
        return woken


class ModelTurn:
    """A request for one rate slot of a model, made by one call attempt.

    It implements the interface through which the engine waits for rate slots.
    """

    def __init__(self, turns: Turns, limit: RateLimit, tenant: str) -> None:
        self._turns = turns
        self._limit = limit
        self._tenant = tenant
        self._was_first = False
        self._reserved_tokens = 0

    @property
    def _queue(self) -> _TenantQueue:
        return self._turns.queue_of(self._limit, self._tenant)

    async def take(self, tokens: int) -> bool:
        """Try to take a slot; return False if other calls are ahead or none is available now."""
        queue = self._queue
        if queue.called is not self:
            if not queue.is_idle:
                return False
            queue.called = self
        queue.holds_position = True  # assume so: the answer is lost if this call is cancelled
        seconds = await self._turns.ask(self._limit, self._tenant, tokens)
        queue.called, queue.holds_position = None, seconds > 0
        if seconds > 0:
            self._was_first = True
            queue.sleep(seconds)
            return False
        self._reserved_tokens = tokens
        queue.call_next()
        self._leave_if_idle()
        return True

    async def wait(self) -> None:
        """Wait until the queue wakes this call."""
        await self._queue.join(self, first=self._was_first)

    def step_aside(self) -> None:
        """Let the next call request a slot. This call returns to the head of the queue."""
        if self._queue.called is self:
            self._queue.called, self._was_first = None, True
            self._queue.call_next()

    def leave(self) -> None:
        """Leave the queue and let the next call request a slot."""
        queue = self._queue
        queue.waiting.pop(self, None)
        if queue.called is self:
            queue.called = None
            queue.call_next()
        self._leave_if_idle()

    def settle(self, tokens: int) -> None:
        """Report the tokens used; the difference from the reservation corrects the limit."""
        self._turns.return_tokens(self._limit, self._reserved_tokens - tokens)

    def _leave_if_idle(self) -> None:
        if self._queue.is_idle:
            self._turns.leave(self._limit, self._tenant)
