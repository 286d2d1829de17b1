"""Service processes that crash, freeze or lose answers at any of their writes.

The run service, executor, approvals, journal and heartbeat are real; they use one in-memory
database and virtual time. Between each process and the database is its wire, see ``crashing_wire``.
A crashed process stops at once: its tasks reach neither the database nor the outside during their
teardown, and another process replaces it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar

from caseworker.core.budget.budget import Budget
from caseworker.engine.prepared import PreparedGraph
from caseworker.engine.waiting_calls import OUTPUT, Author, Verdict
from caseworker.features.waiting_calls.waiting_calls import (
    ApprovalDecidedError,
    CallAnsweredError,
    Deciding,
    RunWaitingCalls,
    RunWaitingCallStore,
)
from caseworker.main.loops import Loops
from caseworker.platform.caller import Caller, KeyScope
from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.run import (
    CallRecord,
    NewRun,
    Run,
    RunKey,
    RunKind,
    RunRequest,
    RunStatus,
)
from tests.support.crashing_wire import (
    AGAIN_SECONDS,
    FENCE,
    KEY,
    OWNER,
    ApprovalWire,
    Arrival,
    CallPlace,
    ConnectionLostError,
    Fault,
    Wire,
)
from tests.support.limits import executor_limits
from tests.support.memory_approvals import MemoryApprovals
from tests.support.memory_runs import MemoryRuns
from tests.support.runs import RunProcess
from tests.support.seeded_loop import SeededLoop

T = TypeVar("T")

_KEEPER: Any = SimpleNamespace(sink_of=CallPlace)
"""A substitute for the file store that stores nothing."""

EPOCH = datetime(2025, 9, 8, 12, tzinfo=UTC)
LOOK_SECONDS = 0.25
"""Interval at which processes poll for queued runs and clients poll their runs."""
CLIENT = Caller(tenant="t", name="client", scopes=frozenset({KeyScope.RUN}))
MOST_LOSSES = 9
"""More losses than any scenario causes, so that no run fails as lost."""


class CrashingProcess(RunProcess):
    """A process that executes runs until it crashes."""

    def __init__(self, name: str, cluster: "CrashingCluster") -> None:
        self.cluster = cluster
        self.dead = self.closed = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self._context = copy_context()
        self._context.run(OWNER.set, self)
        self.wire: Any = cluster.wire_type(self)
        approvals: Any = ApprovalWire(self.wire)
        super().__init__(
            store=self.wire,
            catalog=cluster.catalog,
            name=name,
            services=cluster.services,
            artifacts=lambda run, token: _KEEPER,
            approvals=partial(RunWaitingCallStore, approvals),
            limits=executor_limits(max_runs=1, max_attempts=MOST_LOSSES),
            grace_seconds=0.5,
            drain_seconds=60.0,
        )
        self.desk = RunWaitingCalls(approvals)
        self._loops = Loops()
        self._context.run(self._loops.keep, "heartbeat", self.heartbeat.run)
        self._context.run(self._loops.keep, "queue", self._take_runs)

    async def answer_to(self, work: Coroutine[Any, Any, T]) -> T:
        """Let the process answer a client.

        Raises:
            ConnectionLostError: The process crashed before its answer.
        """
        task = self.cluster.loop.create_task(work, context=self._context.copy())
        await asyncio.wait({task})
        if task.cancelled() or self.dead:
            raise ConnectionLostError
        return task.result()

    def require_life(self) -> None:
        """Stop any action of a crashed process.

        Raises:
            asyncio.CancelledError: The process has crashed.
        """
        if self.dead:
            raise asyncio.CancelledError

    def die(self) -> None:
        """Crash at once."""
        self.dead = self.closed = True
        for task in sorted(self.tasks, key=hash):
            task.cancel()
        self.cluster.died(self)

    async def close(self) -> None:
        """Release the executed runs and end."""
        if not self.closed:
            self.closed = True
            await self.executor.drain(0)
            await self._loops.stop()
            self.cluster.died(self)

    async def _take_runs(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.cluster.is_queued and self.executor.reserve():
                await self._take()

    async def _take(self) -> None:
        permitted_at = self.cluster.loop.time()
        try:
            run = await self.wire.claim(KEY, self.name)
        except StoreUnavailableError:
            return
        finally:
            self.executor.unreserve()
        if run is not None:
            FENCE.set(run.fence)
            self.executor.start(run, permitted_at=permitted_at)


@dataclass
class CrashingCluster:
    """A database, its processes, one run, and the client that posts it and decides for it."""

    seed: int
    faults: Mapping[int, Fault]
    """The fault at each write, counted over the whole cluster from 0."""
    request: Mapping[str, Any]
    prepared: PreparedGraph
    services: Mapping[type, Any]
    wire_type: type[Wire] = Wire
    database_type: type[MemoryRuns] = MemoryRuns
    writes: list[str] = field(default_factory=list)
    """The kind of every write."""
    struck: list[tuple[int, str, Fault]] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    known_at: dict[str, int] = field(default_factory=dict)
    """The step of the loop at which the result of a call was first stored, by key."""
    fence_of: dict[str, int] = field(default_factory=dict)
    """The fence under which each CallNode was first stored."""
    claimed_at: dict[int, int] = field(default_factory=dict)
    """The step of the loop at which a fence was first used."""
    taken_away: int = 0
    """How often the run was recovered from a process."""
    begun: int = 0
    """The number of processes started so far."""
    gone: list[str] = field(default_factory=list)
    """Processes that count as dead; their runs are recovered."""

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SeededLoop)
        self.loop = loop
        self.chance = Random(f"cluster {self.seed}")
        self.refusals = Random(f"refused writes {self.seed}")
        self.hesitation = self.chance.choice([0.0, 0.5, 0.9])
        """The probability that a person sees an approval and postpones it."""
        clock = loop.time
        self.database = self.database_type(now=lambda: EPOCH + timedelta(seconds=clock()))
        self.approvals = MemoryApprovals(self.database)
        self.catalog: Any = SimpleNamespace(prepare=lambda graph, graph_id: self.prepared)
        self._later: set[asyncio.Task[Any]] = set()
        self.processes: list[CrashingProcess] = []
        make = loop.get_task_factory()
        assert make is not None

        def owned(loop: Any, coroutine: Any, **options: Any) -> Any:
            task: Any = make(loop, coroutine, **options)
            context = options.get("context")
            owner = OWNER.get() if context is None else context.get(OWNER)
            if owner is not None:
                owner.tasks.add(task)
                if owner.dead:
                    task.cancel()
            return task

        loop.set_task_factory(owned)

    @property
    def run(self) -> Run:
        """The stored run."""
        run = self.database.rows[KEY].run
        assert run is not None
        return run

    @property
    def losses(self) -> int:
        """How often the run was recovered from a process or released with a counted attempt."""
        return self.taken_away + self.database.rows[KEY].broken

    @property
    def is_queued(self) -> bool:
        """Whether the run waits for a process."""
        row = self.database.rows.get(KEY)
        return row is not None and row.run is not None and row.run.status is RunStatus.QUEUED

    def strike(self, kind: str) -> Fault | None:
        """Count a write; return its fault, if any."""
        number = len(self.writes)
        self.writes.append(kind)
        fault = self.faults.get(number)
        if fault is not None:
            self.struck.append((number, kind, fault))
        return fault

    async def claimed(self, key: RunKey | None, worker_id: str) -> Run | None:
        """Claim the run, and record when."""
        run = await self.database.claim(key, worker_id)
        if run is not None:
            self.claimed_at[run.fence] = self.loop.steps
        return run

    async def journal(self, write: Any, store: Callable[[Any], Awaitable[T]]) -> T:
        """Store an owner's write, and record the results that are known afterwards."""
        try:
            return await store(write)
        finally:  # a crashed process loses the answer, but the write is stored
            run, stored = self.run, self.database.rows[KEY].calls
            for record in write.calls:
                if record.node_id in stored and run.fence == write.fence:
                    self.fence_of.setdefault(record.node_id, write.fence)
            self.recorded(write.calls)

    def recorded(self, calls: Sequence[CallRecord]) -> None:
        """Record the results that are stored now."""
        stored = self.database.rows[KEY].calls
        for record in calls:
            known = stored.get(record.node_id)
            if known is not None and known.outcome in ("result", "failure") and known.call_key:
                self.known_at.setdefault(known.call_key, self.loop.steps)

    def arrived(self, call_key: str, name: str) -> None:
        """Record an attempt that reaches the outside; attempts of crashed processes do not."""
        owner = OWNER.get()
        assert owner is not None
        owner.require_life()
        self.arrivals.append(Arrival(call_key, FENCE.get(), self.loop.steps, name))

    def happen_later(self, seconds: float, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Schedule an action outside of all processes."""

        async def later() -> None:
            await asyncio.sleep(seconds)
            await work()

        context = copy_context()
        context.run(OWNER.set, None)
        task = self.loop.create_task(later(), context=context)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def lose(self, name: str) -> None:
        """Put the run of a process that counts as dead back into the queue."""
        self.taken_away += len(self.database.lose(name))

    def take_away_from(self, name: str) -> None:
        """Make other processes consider a living process dead."""

        async def found() -> None:
            self.lose(name)

        self.happen_later(self.chance.choice([0.0, 0.4, 2.0]), found)

    def died(self, process: CrashingProcess) -> None:
        """Recover the runs of a crashed process after a delay, and start another process."""

        async def replaced() -> None:
            self.gone.append(process.name)
            self.lose(process.name)
            if process in self.processes:  # it may have died while it gave up its runs
                self.processes.remove(process)
                self._begin()

        self.happen_later(self.chance.choice([0.0, 1.0, 3.5]), replaced)

    async def play(self) -> "CrashingCluster":
        """Post the run, decide its approvals, and wait for its end."""
        self.processes = []
        for _ in range(2):
            self._begin()
        await self._post()
        for _ in range(800):
            if self.run.finished:
                break
            await asyncio.sleep(LOOK_SECONDS)
            self.approvals.wake_due()
            for name in self.gone:  # a claim on its way may have come after the end of its process
                self.lose(name)
            await self._decide()
        for _ in range(40):
            if not any(each.executor.active for each in self.processes):
                break
            await asyncio.sleep(1)
        await self._end()
        return self

    def _begin(self) -> None:
        self.begun += 1
        self.processes.append(CrashingProcess(f"p{self.begun}", self))

    async def _end(self) -> None:
        self.faults = {}
        while self._later:
            await asyncio.wait(self._later)
        for process in self.processes:
            process.die()
        for task in list(self._later):
            task.cancel()
        await asyncio.sleep(30)

    async def _post(self) -> None:
        new = NewRun(
            key=KEY,
            request=RunRequest(kind=RunKind.GRAPH, budget=Budget(), **self.request),
            request_hash="h",
            prepared=self.prepared,
        )
        while True:
            process = next((each for each in self.processes if not each.closed), None)
            if process is not None:
                try:
                    await process.answer_to(process.service.accept(new))
                except (ConnectionLostError, StoreUnavailableError):
                    pass
                else:
                    return
            await asyncio.sleep(AGAIN_SECONDS)

    async def _decide(self) -> None:
        """Answer open calls as a client that retries when it gets no response."""
        asked = self.database.rows[KEY].approvals.values()
        waiting = [each for each in asked if each.decision is None]
        process = next((each for each in self.processes if not each.closed), None)
        if not waiting or process is None or self.chance.random() < self.hesitation:
            return
        call, desk = waiting[0], process.desk
        deciding = Deciding(approval_id=call.approval_id, verdict=Verdict.APPROVED, by="somebody")
        if call.question.author is Author.CLIENT:
            deciding = replace(deciding, arguments={OUTPUT: call.question.arguments})
            answering = desk.answer(KEY, deciding, CLIENT)
        else:
            answering = desk.decide(KEY, deciding)
        try:
            await process.answer_to(answering)
        except (
            ConnectionLostError,
            StoreUnavailableError,
            ApprovalDecidedError,
            CallAnsweredError,
        ):
            return
