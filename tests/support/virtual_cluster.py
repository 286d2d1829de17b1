"""Several processes of the service on one database, in memory and on virtual time.

The run service, the executor, the driver, the call gateway and the journal are real. Their
surroundings are simulated: the database, a queue that every process polls, notifications that may
be lost, and an outside world that records every call.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from caseworker.core.budget.budget import Budget, Dimension
from caseworker.engine.call import (
    AttemptError,
    Call,
    CallFailedError,
    OutcomeUnknownError,
    Reply,
    Spent,
)
from caseworker.engine.context import ExecutionResult, FlowContext
from caseworker.engine.step_path import StepPath
from caseworker.engine.waiting_calls import Question, WaitingCalls
from caseworker.features.waiting_calls.waiting_calls import RunWaitingCallStore
from caseworker.main.loops import Loops
from caseworker.nodes.toolset import tool_context
from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.ports import Accepted, CancelStatus
from caseworker.runs.run import (
    TERMINAL,
    NewRun,
    RunKey,
    RunKind,
    RunRequest,
    RunSource,
)
from caseworker.runs.service import RunService
from caseworker.tools.arguments import ArgumentCheck
from caseworker.tools.dispatch import ToolRequest
from caseworker.tools.ports import ToolSpec
from caseworker.tools.registry import ToolPolicy, ToolRegistry
from tests.support.case_catalog import case_catalog
from tests.support.limits import executor_limits, retry_policy, tool_dispatch
from tests.support.memory_approvals import MemoryApprovals
from tests.support.runs import RunProcess, run_service
from tests.support.scripted_call import ScriptedCall
from tests.support.seeded_loop import SeededLoop, deaf
from tests.support.virtual_database import PERMITTED_AT_STEP, Database, Diary, Line, Network

CANCEL_GRACE_SECONDS = 0.5
ESTIMATE = Spent(tokens_in=10, tokens_out=10, cost_usd=Decimal("0.02"))
CLIENT_TOOL = ToolSpec(
    name="look_up",
    description="",
    parameters={"type": "object", "properties": {"number": {"type": "integer"}}},
)
_CLIENT_CHECK = ArgumentCheck(CLIENT_TOOL, foreign=True)
DEAREST = Spent(tokens_in=15, tokens_out=15, cost_usd=Decimal("0.03"))
"""The highest possible cost of a call, whatever its estimate."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of a run's step: calls in sequence."""

    calls: int = 2
    external: float = 0.8
    """The share of calls that leave the process."""
    repeatable: float = 0.7
    trouble: float = 0.3
    """The share of attempts that fail, hang, or ignore their cancellation."""
    lanes: int = 0
    """Parallel lanes, each with ``calls`` calls that a person must approve; 0 asks for none."""
    patience: float = 5.0
    """The longest time of a person's decision or a client's answer, in seconds."""
    clients: float = 0.0
    """The share of the calls of lanes that the client of the run executes instead."""


@dataclass(frozen=True, slots=True)
class ExternalCall:
    """A call that reached the outside world."""

    call: Call
    permitted_at_step: int | None


class Outside:
    """The outside world: it records every call."""

    def __init__(self, diary: Diary, seed: int) -> None:
        self.diary = diary
        self._seed = seed
        self._made = 0

    async def call(self, key: RunKey, call: Call, trouble: float) -> Reply:
        self._made += 1
        chance = random.Random(f"{self._seed}/{call.key}/{self._made}")
        self.diary.note("call", key, ExternalCall(call, PERMITTED_AT_STEP.get(None)))
        try:
            return await self._answer(chance, key, call, trouble)
        except AttemptError as failure:
            self.diary.note("try failed" if failure.retryable else "call failed", key, call)
            raise
        finally:
            self.diary.note("call over", key, call)

    async def _answer(
        self, chance: random.Random, key: RunKey, call: Call, trouble: float
    ) -> Reply:
        seconds = chance.choice([0.0, 0.01, 0.2, 1.0])
        draw = chance.random()
        if draw < 0.2 * trouble:
            self.diary.note("deaf", key, call)
            await deaf(chance.uniform(0.1, 2.0))
        elif draw < 0.3 * trouble:
            await asyncio.sleep(60)  # until it is timed out
        else:
            await asyncio.sleep(seconds)
        if 0.3 * trouble <= draw < 0.9 * trouble:
            raise AttemptError("Busy.", error_class="Busy", retryable=call.repeatable)
        if 0.9 * trouble <= draw < trouble:
            raise AttemptError("Bad.", error_class="Bad", retryable=False, spent=Spent())
        return Reply({"answer": 42}, chance.choice([None, ESTIMATE, DEAREST]))


class CallingNode:
    """A node that makes calls."""

    def __init__(self, outside: Outside, works: Mapping[str, Work]) -> None:
        self._outside = outside
        self._works = works

    async def execute(
        self, data: Mapping[str, Any], inputs: Mapping[str, Any], context: FlowContext
    ) -> ExecutionResult:
        key = RunKey("t", context.run_id)
        work, answers = self._works[context.run_id], list[Any]()
        self._outside.diary.note("step", key)
        context.keep(lambda: {"result": {"answers": list(answers)}})
        if work.lanes:
            async with asyncio.TaskGroup() as lanes:
                for lane in range(work.lanes):
                    lanes.create_task(self._lane(lane, key, work, context))
            return ExecutionResult({"result": {"answers": answers}})
        for number in range(work.calls):
            path = f"{context.run_id}/{number}"
            try:
                answers.append(await self._perform(path, key, work, context))
            except (CallFailedError, OutcomeUnknownError) as failed:
                answers.append({"error": type(failed).__name__})
        return ExecutionResult({"result": {"answers": answers}})

    async def _lane(self, lane: int, key: RunKey, work: Work, context: FlowContext) -> None:
        approvals = context.service(WaitingCalls)
        for number in range(work.calls):
            path = context.path.call(lane, number)
            if random.Random(f"client {path.text}").random() < work.clients:
                await self._ask_client(lane, number, key, work, context)
                continue
            question = Question(
                subject="outside",
                message="May it?",
                arguments={"number": number},
                schema=None,
                timeout_seconds=work.patience,
            )
            decision = await approvals.decision(context, path, question)
            if decision.approved:
                with suppress(CallFailedError, OutcomeUnknownError):
                    await self._perform(path.text, key, work, context)

    async def _ask_client(
        self, lane: int, number: int, key: RunKey, work: Work, context: FlowContext
    ) -> None:
        """Call a tool of the client, and record the result that the run uses."""
        dispatch = tool_dispatch(ToolRegistry([]), ToolPolicy())
        request = ToolRequest(
            name=CLIENT_TOOL.name,
            args={"number": number},
            key=f"{lane}/{number}",
            call_id=f"c{number}",
            context=tool_context(context, "UTC"),
        )
        result = await dispatch.run_by_client(
            context, CLIENT_TOOL, _CLIENT_CHECK, request, work.patience
        )
        used = (context.path.call(request.key).text, result)
        self._outside.diary.note("client result", key, used)

    async def _perform(self, path: str, key: RunKey, work: Work, context: FlowContext) -> Any:
        chance = random.Random(path)
        external = chance.random() < work.external
        call = ScriptedCall(
            key=StepPath(path),
            kind="tool",
            name="outside",
            request_hash=path,
            per_attempt={Dimension.API_CALLS: 1},
            cost=ESTIMATE if external else Spent(),
            external=external,
            repeatable=chance.random() < work.repeatable,
            retry=retry_policy(),
            timeout_seconds=20.0,
            attempt=lambda: self._outside.call(key, call, work.trouble),
        )
        made = await context.calls.perform(call, parent=context.trace_parent, scope=context.scope)
        return made.value


class Process(RunProcess):
    """A process of the cluster, with a queue that it polls."""

    def __init__(self, name: str, cluster: "Cluster", *, max_runs: int) -> None:
        self.database = cluster.database
        self.line = cluster.line(cluster.database)
        super().__init__(
            store=cluster.database,
            catalog=case_catalog(CallingNode(cluster.outside, cluster.works)),
            name=name,
            journals=self.line,
            approvals=partial(RunWaitingCallStore, cluster.approvals),
            limits=executor_limits(max_runs=max_runs),
            grace_seconds=CANCEL_GRACE_SECONDS,
            drain_seconds=60.0,
        )
        self.loops = Loops()
        self.closed = False

    def open(self) -> None:
        self.database.workers.add(self.name)
        self.loops.keep("heartbeat", self.heartbeat.run)
        self.loops.keep("queue", self._take_runs)

    async def close(self, grace_seconds: float = 0.0) -> None:
        self.closed = True
        self.service.stop_waiting()
        await self.executor.drain(grace_seconds)
        await self.loops.stop()
        await self.heartbeat.leave()
        await self.line.empty()

    async def _take_runs(self) -> None:
        while True:
            await asyncio.sleep(self.database.network.chance.uniform(0.05, 0.5))
            for key in self.database.queued():
                await self._take(key)

    async def _take(self, key: RunKey) -> None:
        if not self.executor.reserve():
            return
        permitted_at = self.database.diary.loop.time()
        try:
            run = await self.database.claim(key, self.name)
        finally:
            self.executor.unreserve()
        if run is not None:
            self.executor.start(run, permitted_at=permitted_at)


@dataclass
class Cluster:
    """Two processes that execute runs, and a replica that executes none."""

    seed: int
    max_runs: int = 1
    slow: float = 0.1
    lost: float = 0.0
    database_type: type[Database] = Database
    line: type[Line] = Line
    approvals_type: type[MemoryApprovals] = MemoryApprovals
    works: dict[str, Work] = field(default_factory=dict)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SeededLoop)
        self.loop = loop
        self.chance = random.Random(self.seed)
        self.diary = Diary(loop)
        self.database = self.database_type(
            self.diary, Network(self.chance, slow=self.slow, lost=self.lost)
        )
        self.approvals = self.approvals_type(self.database)
        self.outside = Outside(self.diary, self.seed)
        self.processes = [Process(name, self, max_runs=self.max_runs) for name in ("p1", "p2")]
        self.replica = run_service(self.database)
        self.over = False

    async def play(self, story: Callable[["Cluster"], Awaitable[None]]) -> "Cluster":
        """Open the processes, play a scenario, wait for every run's end, and close."""
        with patch("caseworker.runs.service.time", SimpleNamespace(monotonic=self.loop.time)):
            for process in self.processes:
                process.open()
            recovery = asyncio.create_task(self._recover())
            await story(self)
            await self._all_ended()
            recovery.cancel()
            await asyncio.wait({recovery})
            for process in self.processes:
                if not process.closed:
                    await process.close()
            self.over = True
            await asyncio.sleep(60)  # abandoned calls end as well
        return self

    async def post(
        self,
        run_id: str,
        work: Work,
        budget: Budget,
        *,
        to: RunService,
        source: RunSource | None = None,
    ) -> Accepted | None:
        """Post a run, or a fork of ``source``; return None if its answer was lost."""
        self.works[run_id] = work
        new = NewRun(
            key=RunKey("t", run_id),
            request=RunRequest(kind=RunKind.CASE, input="?", budget=budget, source=source),
            request_hash="h",
        )
        self.diary.note("post", new.key)
        try:
            return await to.accept(new)
        except StoreUnavailableError:
            return None
        finally:
            self.diary.note("post answered", new.key)

    async def delete(self, run_id: str, *, to: RunService, heard: bool) -> CancelStatus:
        """Cancel a run; ``heard`` says whether the processes are notified at once."""
        receipt = await to.cancel(RunKey("t", run_id), by="somebody")
        if heard and receipt.cancel_request is not None:
            for process in self.processes:
                asyncio.get_running_loop().call_later(
                    self.chance.choice([0.0, 0.01, 0.05]),
                    process.executor.cancel,
                    RunKey("t", run_id),
                    receipt.cancel_request,
                )
        return receipt

    async def _all_ended(self) -> None:
        for _ in range(1200):
            runs = [row.run for row in self.database.rows.values() if row.run is not None]
            if all(run.status in TERMINAL for run in runs):
                return
            await asyncio.sleep(0.5)
        raise AssertionError([(run.key.run_id, run.status, run.worker_id) for run in runs])

    async def _recover(self) -> None:
        """Recover the runs of processes that are gone."""
        while True:
            await asyncio.sleep(3)
            self.approvals.wake_due()
            runs = [row.run for row in self.database.rows.values() if row.run is not None]
            for gone in {run.worker_id for run in runs if run.worker_id} - self.database.workers:
                self.database.lose(gone)
