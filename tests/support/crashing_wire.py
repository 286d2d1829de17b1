"""The wire between a process and the database, where a fault can occur at every write.

All writes of the cluster pass here in order. A process that crashes at a write gets no answer, and
nothing that it does during its teardown has an effect.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from random import Random
from typing import Any, Protocol, TypeVar

from caseworker.engine.waiting_calls import Author, Decision, WaitingCall
from caseworker.features.waiting_calls.waiting_calls import Approval, Deciding
from caseworker.platform.errors import StoreUnavailableError, WriteFailedError
from caseworker.runs.ports import (
    Accepted,
    Beat,
    FinishResult,
    JournalWrite,
    LateResult,
    Permission,
)
from caseworker.runs.run import (
    CallRecord,
    FinishRun,
    NewRun,
    Run,
    RunKey,
)
from tests.support.memory_runs import MemoryRuns

T = TypeVar("T")

KEY = RunKey("t", "r0")
REFUSED_SHARE = 0.3
"""The share of refused writes among those that no call waits for."""
AGAIN_SECONDS = 0.3
"""Seconds after which a connection repeats an unanswered write."""


class Fault(StrEnum):
    """A fault at a write."""

    BEFORE = "before"
    """The process crashes before the write."""
    AFTER = "after"
    """The write is stored, and the process crashes before its answer."""
    LATE = "late"
    """The process crashes, and its statement is executed seconds later."""
    UNANSWERED = "unanswered"
    """The write is stored, and the connection is lost before its answer."""
    FAILED = "failed"
    """The database is unavailable for a short time."""
    FROZEN = "frozen"
    """The write is delayed, its process counts as dead in that time, and then it continues."""
    DRAINED = "drained"
    """The process is asked to end and releases its runs."""


DEADLY = frozenset({Fault.BEFORE, Fault.AFTER, Fault.LATE})

OWNER: ContextVar["Sender | None"] = ContextVar("process", default=None)
"""The process that a task belongs to."""
FENCE: ContextVar[int] = ContextVar("fence", default=1)
"""The fence under which a task executes the run."""


def is_refused(chance: Random) -> bool:
    """Return whether the server refuses the current journal write, which no call waits for."""
    task = asyncio.current_task()
    waited_for = task is None or task.get_name() != "journal"
    return not waited_for and chance.random() < REFUSED_SHARE


class RefusingJournals:
    """A store that refuses some of the writes that no call waits for."""

    def __init__(self, store: MemoryRuns, seed: str) -> None:
        self._store = store
        self._chance = Random(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, write: JournalWrite) -> Permission:
        if is_refused(self._chance):
            raise WriteFailedError(0)
        return await self._store.write(write)


class ConnectionLostError(Exception):
    """The process that a client called has crashed."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """An attempt of a call that reached the outside."""

    call_key: str
    fence: int
    step: int
    """The step of the event loop."""
    name: str


@dataclass(frozen=True, slots=True)
class CallPlace:
    """A substitute for the artifact sink that gives a tool the key of its call."""

    call_key: str
    saved: tuple[()] = ()


class Sender(Protocol):
    """A process, from the view of its wire."""

    name: str
    cluster: Any
    tasks: set[asyncio.Task[Any]]
    dead: bool

    def require_life(self) -> None: ...

    def die(self) -> None: ...

    async def close(self) -> None: ...


class Wire:
    """The connection of a process to every store, for reads and writes."""

    def __init__(self, process: "Sender") -> None:
        self._process = process
        self._cluster = process.cluster
        self._database = process.cluster.database
        self._approvals = process.cluster.approvals
        self._turn = asyncio.Lock()
        """The hot writes of a process share a connection."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def accept(self, new: NewRun, *, worker_id: str | None) -> Accepted:
        return await self._pass("accept", lambda: self._database.accept(new, worker_id=worker_id))

    async def claim(
        self, key: RunKey | None, worker_id: str, *, excluding: Sequence[str] = ()
    ) -> Run | None:
        return await self._pass("claim", lambda: self._cluster.claimed(key, worker_id))

    async def write(self, write: JournalWrite) -> Permission:
        if is_refused(self._cluster.refusals):
            raise WriteFailedError(0)
        statement = partial(self._cluster.journal, write, self._database.write)
        async with self._turn:
            permission: Permission = await self._pass("write", statement, again=True)
        return replace(permission, answered_at=self._cluster.loop.time())

    async def finish(self, finish: FinishRun) -> FinishResult:
        statement = partial(self._cluster.journal, finish, self._database.finish)
        async with self._turn:
            return await self._pass("finish", statement, again=True)

    async def release(
        self, run: Run, *, calls: Sequence[CallRecord], counted: bool, **how: Any
    ) -> None:
        async def released() -> None:
            try:
                await self._database.release(run, calls=calls, counted=counted, **how)
            finally:
                self._cluster.recorded(calls)

        await self._pass("release", released)

    async def late(self, result: LateResult) -> None:
        await self._pass("late result", lambda: self._database.late(result))

    async def beat(self, worker_id: str) -> Beat:
        return await self._pass("beat", lambda: self._database.beat(worker_id))

    async def ask(self, run: Run, asked: WaitingCall) -> Approval | None:
        if asked.question.author is Author.CLIENT:  # the client may see the call from here on
            self._cluster.arrived(asked.call_key, asked.question.subject)
        return await self._pass("ask", lambda: self._approvals.ask(run, asked))

    async def decide(self, key: RunKey, deciding: Deciding) -> Approval | None:
        return await self._pass("decide", lambda: self._approvals.decide(key, deciding))

    async def decisions(self, key: RunKey, approval_ids: Collection[str]) -> Mapping[str, Decision]:
        return await self._read(lambda: self._approvals.decisions(key, approval_ids))

    async def of_run(self, key: RunKey) -> Sequence[Approval] | None:
        return await self._read(lambda: self._approvals.of_run(key))

    async def approval(self, approval_id: str) -> Approval | None:
        return await self._read(lambda: self._approvals.get(KEY, approval_id))

    async def _read(self, statement: Callable[[], Awaitable[T]]) -> T:
        self._process.require_life()
        return await statement()

    async def _pass(
        self, kind: str, statement: Callable[[], Coroutine[Any, Any, T]], *, again: bool = False
    ) -> T:
        """Execute a statement; with ``again`` the connection repeats it if it was not answered."""
        self._process.require_life()
        cluster = self._cluster
        fault = cluster.strike(kind)
        if fault is None:
            return await statement()
        if fault in DEADLY:
            if fault is Fault.AFTER:
                await statement()
            elif fault is Fault.LATE:
                cluster.happen_later(cluster.chance.choice([0.0, 0.5, 3.0, 8.0]), statement)
            self._process.die()
            await cluster.loop.create_future()
        elif fault is Fault.DRAINED:
            cluster.happen_later(0.0, self._process.close)
        elif fault is Fault.FROZEN:
            cluster.take_away_from(self._process.name)
            await asyncio.sleep(cluster.chance.choice([0.5, 2.5, 6.0]))
        else:
            if fault is Fault.UNANSWERED:
                await statement()
            await asyncio.sleep(AGAIN_SECONDS)
            if not again:
                raise StoreUnavailableError
        self._process.require_life()
        return await statement()


class ApprovalWire:
    """The wire as the approval store, whose ``get`` differs from that of the runs."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)

    async def get(self, key: RunKey, approval_id: str) -> Approval | None:
        return await self._wire.approval(approval_id)
