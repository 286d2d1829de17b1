"""An in-memory database with delayed and lost answers, and a diary of its operations."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from caseworker.core.budget.accounts import Hold
from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.ports import (
    Accepted,
    Beat,
    CancelStatus,
    FinishResult,
    JournalWrite,
    LateResult,
    Permission,
)
from caseworker.runs.run import (
    CallRecord,
    CancelRequest,
    EventRecord,
    FinishRun,
    NewRun,
    Run,
    RunKey,
)
from tests.support.memory_rows import Row
from tests.support.memory_runs import MemoryRuns
from tests.support.seeded_loop import SeededLoop

T = TypeVar("T")

PERMITTED_AT_STEP: ContextVar[int] = ContextVar("permitted at step")
"""The step of the statement that last granted a task its permission."""

SLOWEST_SECONDS = 0.2
"""The longest trip of a statement or its answer, in seconds."""

EPOCH = datetime(2025, 9, 8, 12, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Event:
    """An event visible to an outside observer."""

    step: int
    """The step of the event loop, which gives the order."""
    at: float
    kind: str
    key: RunKey
    detail: Any = None


class Diary:
    """All observed events, in order."""

    def __init__(self, loop: SeededLoop) -> None:
        self.loop = loop
        self.events: list[Event] = []
        self.reader: Callable[[Event], None] | None = None
        """A callback for every event."""

    def note(self, kind: str, key: RunKey, detail: Any = None) -> None:
        event = Event(self.loop.steps, self.loop.time(), kind, key, detail)
        self.events.append(event)
        if self.reader is not None:
            self.reader(event)

    def of(self, key: RunKey, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.key == key and event.kind in kinds]


@dataclass(frozen=True)
class Network:
    """The delays of statements and answers, and the share of lost answers."""

    chance: random.Random
    slow: float = 0.1
    """The share of trips that take up to 200 ms; most others take no time."""
    lost: float = 0.0
    """The share of answers that never arrive."""

    async def journey(self) -> None:
        draw = self.chance.random()
        if draw < self.slow:
            await asyncio.sleep(self.chance.uniform(0.01, SLOWEST_SECONDS))
        elif draw < 3 * self.slow:
            await asyncio.sleep(self.chance.uniform(0.0005, 0.005))

    def loses_the_answer(self) -> bool:
        return self.chance.random() < self.lost


class Database(MemoryRuns):
    """One database for all processes; it records in the diary when each write was committed."""

    def __init__(self, diary: Diary, network: Network) -> None:
        super().__init__(now=self._instant)
        self.diary = diary
        self.network = network
        self.committed: dict[datetime, tuple[int, float]] = {}
        """For each reading of the database clock: the step and the virtual seconds."""
        self._last = EPOCH

    def cancel_requested(self, key: RunKey) -> tuple[int, float] | None:
        """When the effective cancel request was committed, if there is one."""
        run = self.rows[key].run if key in self.rows else None
        cancel_request = run.cancel_request if run else None
        return (
            None
            if cancel_request is None or cancel_request.requested_at is None
            else self.committed[cancel_request.requested_at]
        )

    def _instant(self) -> datetime:
        clock = EPOCH + timedelta(seconds=self.diary.loop.time())
        self._last = max(clock, self._last + timedelta(microseconds=1))
        self.committed[self._last] = (self.diary.loop.steps, self.diary.loop.time())
        return self._last

    async def accept(self, new: NewRun, *, worker_id: str | None) -> Accepted:
        accepted = await self._travel(super().accept(new, worker_id=worker_id))
        if self.network.loses_the_answer():
            self.diary.note("acceptance lost", new.key)
            raise StoreUnavailableError
        return accepted

    async def cancel(self, key: RunKey, cancel_request: CancelRequest) -> CancelStatus:
        return await self._travel(super().cancel(key, cancel_request))

    async def claim(
        self, key: RunKey | None, worker_id: str, *, excluding: Sequence[str] = ()
    ) -> Run | None:
        return await self._travel(super().claim(key, worker_id, excluding=excluding))

    async def claim_stopped(self, key: RunKey, worker_id: str) -> Run | None:
        return await self._travel(super().claim_stopped(key, worker_id))

    async def started_calls(self, key: RunKey) -> Sequence[CallRecord]:
        return await self._travel(super().started_calls(key))

    async def release(
        self,
        run: Run,
        *,
        active_seconds: float,
        calls: Sequence[CallRecord],
        counted: bool,
        events: Sequence[EventRecord] = (),
        pause_seconds: float = 0.0,
        waits_for: Collection[str] = (),
        settled: Sequence[Hold] = (),
        cleared: bool = False,
    ) -> None:
        self.diary.note("release begun", run.key)
        if self.network.loses_the_answer():
            self.diary.note("release lost", run.key)
            raise StoreUnavailableError
        back = super().release(
            run,
            active_seconds=active_seconds,
            calls=calls,
            counted=counted,
            events=events,
            pause_seconds=pause_seconds,
            waits_for=waits_for,
            settled=settled,
            cleared=cleared,
        )
        await self._travel(back)

    async def late(self, result: LateResult) -> None:
        self.diary.note("late result", result.key)
        await self._travel(super().late(result))

    async def calls(self, key: RunKey) -> Sequence[CallRecord]:
        return await self._travel(super().calls(key))

    async def beat(self, worker_id: str) -> Beat:
        return await self._travel(super().beat(worker_id))

    def _owned(self, key: RunKey, fence: int) -> Row | None:
        self.diary.note("statement", key, fence)
        return super()._owned(key, fence)

    def _put(self, row: Row, run: Run) -> None:
        self.diary.note("status", run.key, run.status)
        super()._put(row, run)

    async def _travel(self, answer: Awaitable[T]) -> T:
        await self.network.journey()
        given = await answer
        await self.network.journey()
        return given


class Line:
    """A process's single connection for hot writes, which runs them in order.

    A caller that is cancelled leaves its write queued, removes it, or only loses the answer.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._turn = asyncio.Lock()
        self._writes: set[asyncio.Task[Any]] = set()

    async def write(self, write: JournalWrite) -> Permission:
        permission, step = await self._in_turn(lambda: self._write(write))
        PERMITTED_AT_STEP.set(step)
        return replace(permission, answered_at=self.database.diary.loop.time())

    async def finish(self, finish_run: FinishRun) -> FinishResult:
        self.database.diary.note("settlement begun", finish_run.key)
        return await self._in_turn(lambda: self.database.finish(finish_run))

    async def empty(self) -> None:
        """Wait until all queued writes are done."""
        while self._writes:
            await asyncio.wait(self._writes)

    async def _write(self, write: JournalWrite) -> tuple[Permission, int]:
        permission = await self.database.write(write)
        if permission.owned:
            for record in write.calls:
                if record.outcome == "result":
                    self.database.diary.note("result stored", write.key, record.call_key)
        statements = self.database.diary.of(write.key, "statement")
        return permission, max(event.step for event in statements if event.detail == write.fence)

    async def _in_turn(self, write: Callable[[], Awaitable[T]]) -> T:
        task = asyncio.ensure_future(self._when_free(write))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self.database.network.chance.random() < 0.5:
                task.cancel()
            raise

    async def _when_free(self, write: Callable[[], Awaitable[T]]) -> T:
        async with self._turn:
            await self.database.network.journey()
            answer = await write()
        await self.database.network.journey()
        return answer
