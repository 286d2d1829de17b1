"""What tests of runs are made of: a process that executes runs, its store, and calls of its steps.

The stores on Postgres are opened by :func:`tests.support.stores.open_stores`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import structlog

from caseworker.core.budget.budget import Budget, Dimension
from caseworker.engine.call import Reply, Spent
from caseworker.engine.context import ExecutionResult, FlowContext
from caseworker.engine.step_path import StepPath
from caseworker.engine.supervision import Supervisor
from caseworker.nodes.catalog import NodeCatalog
from caseworker.runs.execute.executor import RunExecutor
from caseworker.runs.ports import RunStore, WorkerStore
from caseworker.runs.recover.heartbeat import Heartbeat
from caseworker.runs.run import NewRun, Run, RunKey, RunKind, RunRequest, RunStatus
from caseworker.runs.service import RunService
from tests.support.case_catalog import case_catalog
from tests.support.limits import executor_limits, retry_policy
from tests.support.memory_runs import MemoryRuns
from tests.support.scripted_call import ScriptedCall
from tests.support.seeded_loop import SeededLoop, play

EPOCH = datetime(2025, 9, 8, 12, tzinfo=UTC)
KEY = RunKey("t", "r0")
GRACE = 2.0
HEARTBEAT_SECONDS = 2.0

Work = Callable[[FlowContext], Awaitable[Any]]


def loop() -> SeededLoop:
    """Return the story's event loop."""
    running = asyncio.get_running_loop()
    assert isinstance(running, SeededLoop)
    return running


def database() -> MemoryRuns:
    """Return a database that uses the event loop's clock."""
    clock = loop().time
    return MemoryRuns(now=lambda: EPOCH + timedelta(seconds=clock()))


@contextmanager
def virtual_service_time() -> Any:
    """Make the run service use the event loop's clock."""
    with patch("caseworker.runs.service.time", SimpleNamespace(monotonic=loop().time)):
        yield


def run_story(
    story: Callable[[], Awaitable[Any]], seed: int = 0, *, after_seconds: float = 2000
) -> list[str]:
    """Play a story on virtual time; return the events that it logs, each with its error.

    Abandoned work has ``after_seconds`` to end; after that, no task may be left.
    """

    async def main() -> None:
        with virtual_service_time():
            await story()
            await asyncio.sleep(after_seconds)

    with structlog.testing.capture_logs() as logs:
        play(main, seed)
    return [f"{line['event']} {line.get('error', '')}".strip() for line in logs]


def new_run(
    run_id: str = "r0", budget: Budget | None = None, deadline: datetime | None = None
) -> NewRun:
    request = RunRequest(
        kind=RunKind.CASE, input="2+2?", budget=budget or Budget(), deadline=deadline
    )
    return NewRun(key=RunKey("t", run_id), request=request, request_hash="h")


class ScriptedNode:
    """A node that runs a function of the test."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def execute(
        self, data: Mapping[str, Any], inputs: Mapping[str, Any], context: FlowContext
    ) -> ExecutionResult:
        return ExecutionResult({"result": {"value": await self._work(context)}})


def run_service(store: RunStore, executor: RunExecutor | None = None) -> RunService:
    """Return the run service of a process; without an executor, it executes no runs."""
    return RunService(store, executor, settle_seconds=0.5)


def executor_parts(
    store: Any, catalog: NodeCatalog, *, name: str = "p1", grace_seconds: float = GRACE, **more: Any
) -> dict[str, Any]:
    """Return the arguments of an executor; ``more`` replaces or adds some.

    By default, ``store`` is also the journal, no service is offered to nodes, and the clock is that
    of the event loop.
    """
    usual = {
        "worker_id": name,
        "store": store,
        "journals": store,
        "catalog": catalog,
        "supervisor": Supervisor(grace_seconds=grace_seconds),
        "services": {},
        "limits": executor_limits(),
        "clock": asyncio.get_running_loop().time,
    }
    return usual | more


class RunProcess:
    """A process that executes runs: an executor, a run service and a heartbeat on one store.

    The store is in memory or on Postgres. There is no queue and no HTTP; :meth:`take` claims a run
    as a job of the queue does. Steps execute the function ``work`` or, with ``catalog``, its nodes.
    """

    def __init__(
        self,
        work: Work | None = None,
        store: Any = None,
        *,
        catalog: NodeCatalog | None = None,
        workers: WorkerStore | None = None,
        drain_seconds: float = 20.0,
        **parts: Any,
    ) -> None:
        """``parts`` are those of :func:`executor_parts`; ``workers`` is the store by default."""
        if catalog is None:
            assert work is not None
            catalog = case_catalog(ScriptedNode(work))
        self.store: Any = database() if store is None else store
        self.executor = RunExecutor(**executor_parts(self.store, catalog, **parts))
        self.name = self.executor.worker_id
        self.service = run_service(self.store, self.executor)
        self.heartbeat = Heartbeat(
            workers=workers or self.store,
            store=self.store,
            executor=self.executor,
            interval_seconds=HEARTBEAT_SECONDS,
            drain_seconds=drain_seconds,
        )

    async def post(self, new: NewRun | None = None) -> Run:
        """Accept a run and start it."""
        with virtual_service_time():
            return (await self.service.accept(new or new_run())).run

    async def end_of(self, key: RunKey = KEY) -> Run:
        """Wait until a run is no longer executed here, and return it."""
        await self.executor.ended(key)
        return await self.service.get(key)

    async def run(self, new: NewRun | None = None) -> Run:
        """Accept a run and wait for its end."""
        accepted = await self.post(new)
        return await self.end_of(accepted.key)

    async def take(self, key: RunKey = KEY) -> Run | None:
        """Claim a queued run and start it, like a job of the queue."""
        sent_at = asyncio.get_running_loop().time()
        claimed: Run | None = await self.store.claim(key, self.name)
        if claimed is not None:
            self.executor.start(claimed, permitted_at=sent_at)
        return claimed


async def call(
    context: FlowContext,
    name: str,
    attempt: Callable[[], Awaitable[Reply]],
    *,
    key: str | None = None,
    **settings: Any,
) -> Any:
    """Make an external call of the step."""
    ordinary: dict[str, Any] = {
        "kind": "llm",
        "name": name,
        "request_hash": name,
        "per_call": {Dimension.LLM_CALLS_SMALL: 1},
        "per_attempt": {Dimension.API_CALLS: 1},
        "cost": Spent(tokens_in=80, tokens_out=20),
        "attempt": attempt,
        "retry": retry_policy(),
    }
    made = await context.calls.perform(
        ScriptedCall(**(ordinary | settings | {"key": StepPath(key or f"case/{name}")})),
        parent=context.trace_parent,
        scope=context.scope,
    )
    return made.value


def answering(
    value: Any, log: list[Any] | None = None, *, seconds: float = 0.1
) -> Callable[[], Awaitable[Reply]]:
    """Wait, record the attempt and return an answer."""

    async def attempt() -> Reply:
        if log is not None:
            log.append(value)
        await asyncio.sleep(seconds)
        return Reply(value, Spent(tokens_in=50, tokens_out=5))

    return attempt


CLAIMED_RUN = Run(
    key=RunKey("t", "r0"),
    kind=RunKind.CASE,
    status=RunStatus.RUNNING,
    created_at=datetime(2025, 9, 8, tzinfo=UTC),
    request_hash="h",
    request=RunRequest(kind=RunKind.CASE, input="?"),
)
