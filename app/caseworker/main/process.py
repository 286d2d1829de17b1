"""A service process: opens and closes its connections, executor and loops in order.

A process that executes runs first opens the database, then sends a heartbeat, then claims work. It
closes in reverse order: it stops claiming, finishes or releases its runs, stops the heartbeat and
disposes of the database connections last.
"""

import asyncio
import os
import socket
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from caseworker.engine.supervision import Supervisor
from caseworker.features.artifacts.postgres import PostgresArtifacts
from caseworker.features.artifacts.storage import RunArtifacts
from caseworker.features.background_queue import (
    RESCUE_SECONDS,
    BackgroundQueue,
    BackgroundWorker,
    overdue_search,
    rescue_jobs,
)
from caseworker.features.external.session import ProviderObjects
from caseworker.features.external.sessions import Sessions
from caseworker.features.feature import Parts
from caseworker.features.mcp_credentials.postgres import PostgresMcpCredentials
from caseworker.features.quotas.accounts import Accounts
from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.features.telemetry.process_metrics import MetricsPage
from caseworker.features.threads.postgres.branches import PostgresBranches
from caseworker.features.traces.payloads import PayloadReader
from caseworker.features.waiting_calls.postgres import PostgresWaitingCalls
from caseworker.features.waiting_calls.waiting_calls import RunWaitingCalls, RunWaitingCallStore
from caseworker.main.agents import build_catalog, build_models, build_tools, payloads_of
from caseworker.main.features import DROPS, open_features
from caseworker.main.limits import (
    api_limits,
    artifact_limits,
    executor_limits,
    pool_sizes,
    queue_times,
    store_limits,
    value_limits,
)
from caseworker.main.loops import Loops
from caseworker.main.plugins import Toolbox, installed_agents, installed_functions
from caseworker.main.supervisor import WorkerSlot
from caseworker.main.telemetry import Telemetry
from caseworker.models.gateway import ModelGateway
from caseworker.models.provider_limits import PostgresProviderLimits
from caseworker.models.recorded import Recorder
from caseworker.nodes.function import BlockingPool
from caseworker.platform.code_table import CodeTable
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.fair_threads import CallThreads, PacedThread, usual_threads
from caseworker.platform.http.forwarding import Address
from caseworker.platform.http.health import PartState
from caseworker.platform.postgres.engines import open_engines, takes_writes
from caseworker.platform.postgres.schema_version import is_current
from caseworker.platform.postgres.statistics import ADVICE, tables_without_statistics
from caseworker.runs.execute.executor import RunExecutor
from caseworker.runs.execute.postgres.event_watch import EventWatch
from caseworker.runs.execute.postgres.runs import PostgresRuns
from caseworker.runs.execute.queue import QueueWorker, claims_at_once
from caseworker.runs.journal.postgres import PostgresJournal
from caseworker.runs.kinds import executable_kinds
from caseworker.runs.ports import RequiredActions
from caseworker.runs.postgres.listener import WorkerCallbacks, listen_for_workers
from caseworker.runs.postgres.missing_kinds import runs_of_missing_kinds
from caseworker.runs.recover.heartbeat import Heartbeat, Search, next_job
from caseworker.runs.recover.postgres import (
    PostgresWorkers,
    StaleRunRecovery,
    any_worker_accepts_runs,
)
from caseworker.runs.service import RunService
from caseworker.settings.schema import Settings
from caseworker.tools.dispatch import ToolDispatch

log = structlog.get_logger(__name__)

STUCK_SECONDS: Final = 5.0
"""Seconds that database writes may be pending before the process reports that it is not ready."""

CALL_THREADS: Final = 32
"""Number of threads for the synchronous functions of tools, and for calls of code agents."""


READY_SECONDS: Final = 4.0
"""Seconds that the database may take for the checks of readiness. They are less than a readiness
check may take, so that its response names the database."""


NEEDED_LOOPS: Final = frozenset({"queue", "recovery"})
"""Names of the background loops that must work before the process is ready to claim runs."""


class Process:
    """A service process with all its parts: stores, models, tools, executor and loops."""

    def __init__(
        self,
        settings: Settings,
        url: str,
        *,
        executes: bool,
        recorder: Recorder | None = None,
        address: Address | None = None,
        place: WorkerSlot | None = None,
    ) -> None:
        """Build the process; connections are opened by :meth:`opened`.

        ``address`` is where it receives forwarded requests, if it does. ``recorder`` stores model
        replies; the caller closes it. ``place`` is its slot if it has a supervisor. In a slot that
        ``is_alone``, it executes only suspects, one at a time (:meth:`execute_suspects`).

        Raises:
            StartupError: a configured provider, tool or function cannot be created.
        """
        self.settings = settings
        self.address = address
        self._url = url
        self._table = None if place is None else place.table
        self._is_alone = place is not None and place.is_alone
        sizes, limits = pool_sizes(settings), store_limits(settings)
        self._patience, self._engines = sizes.patience, open_engines(url, sizes)
        tenants_wait = settings.quotas.max_running is not None
        self._journal = PostgresJournal(
            url, self._patience, tenants_wait=tenants_wait, usual=settings.quotas.quota
        )
        skips_suspects = self._table is not None
        self._store = PostgresRuns(
            self._engines, self._journal, limits, skips_suspects, executable_kinds()
        )
        self._artifacts = PostgresArtifacts(self._engines)
        self._branches = PostgresBranches(self._engines)
        self._waiting_calls = PostgresWaitingCalls(self._engines)
        self._credentials = self._mcp_credentials()
        self._toolbox = Toolbox(settings.tools, credentials=self._credentials.headers_of)
        self.tools = build_tools(settings, self._toolbox.tools, self._toolbox.servers)
        provider_limits = PostgresProviderLimits(self._engines.work)
        self.models = build_models(settings, recorder, provider_limits)
        self.code = installed_agents(settings.agents.plugins)
        """The code agents of this process, by name."""
        self.catalog = build_catalog(
            settings, self.models, self.tools, self._toolbox, installed_functions(), self.code
        )
        self.sessions = Sessions(
            self._store.calls, stuck_seconds=lambda: self._journal.stuck_seconds
        )
        self._pool, self._thread = BlockingPool(), PacedThread()
        self._call_threads = CallThreads(CALL_THREADS, "calls")
        self._accounts = Accounts()
        self.telemetry = Telemetry(settings.telemetry)
        self._executor = self._build_executor() if executes else None
        self._watch = EventWatch(
            url, self._patience, notifier=self._journal.notifier, executing=self._executor
        )
        self._heartbeat: Heartbeat | None = None
        self._queue: QueueWorker | None = None
        self.runs = RunService(
            self._store,
            self._executor,
            self.telemetry.observers,
            settle_seconds=settings.cancellation.settle_seconds,
        )
        self.parts = Parts(
            settings=settings,
            url=url,
            patience=self._patience,
            engines=self._engines,
            limits=limits,
            observers=self.telemetry.observers,
            drops=DROPS,
            services={type(each): each for each in self._offered()},
        )
        self.services, self._features = open_features(self.parts)
        self.telemetry.watch(self._metrics_page)
        self._loops = Loops()
        self._closing = False

    def _mcp_credentials(self) -> PostgresMcpCredentials:
        key = self.settings.secrets.encryption_key
        servers = self.settings.tools.mcp.servers
        return PostgresMcpCredentials(
            self._engines.work,
            None if key is None else key.get_secret_value(),
            [name for name, each in servers.items() if each.url],
        )

    def _offered(self) -> Iterator[object]:
        """Yield the services that features may use."""
        payloads, max_shown_bytes = payloads_of(self.settings), self.settings.trace.max_shown_bytes
        yield from (self._thread, self.runs, self.sessions, self._credentials, self._branches)
        yield from (self.tools, self.models, self.catalog, payloads, api_limits(self.settings))
        waiting_calls = RunWaitingCalls(self._waiting_calls, value_limits(self.settings))
        yield from (waiting_calls, RequiredActions(waiting_calls.required))
        yield PayloadReader(
            self._store, payloads, max_shown_bytes=max_shown_bytes, branches=self._branches
        )
        if self.address is not None:
            yield self.address

    def _metrics_page(self, registry: CollectorRegistry) -> MetricsPage:
        return MetricsPage(
            registry,
            engines=self._engines,
            executor=self._executor,
            silent_seconds=lambda: self._silent_seconds,
            nearly_full=self.services[PostgresQuotas].nearly_full,
            unlimited=self.settings.retention.unlimited,
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connect to the database and, if this process executes runs, claim and execute them.

        Everything is closed when the block ends.

        Raises:
            StoreUnavailableError: the database does not answer.
        """
        asyncio.get_running_loop().set_default_executor(usual_threads())
        try:
            await self._journal.start()
            for feature in self._features:
                if feature.begin is not None:
                    feature.begin()
            self.telemetry.keep(self._loops)
            self._loops.keep("events", self._watch.run)
            if self._executor is not None:
                await self._take_work(self._executor)
                log.info("process.open", worker_id=self._executor.worker_id)
            yield
        finally:
            await self._close()

    def begin_closing(self) -> None:
        """Claim no more runs, start no more calls, and answer clients that wait for a run.

        The server calls this at the first shutdown signal.
        """
        self._closing = True
        if self._table is not None:
            self._table.end()
        self.runs.stop_waiting(grace_seconds=self.settings.shutdown.grace_seconds)
        if self._executor is not None:
            self._executor.stop_accepting()

    async def drain(self) -> None:
        """Release the runs to other processes, each once its calls in flight have ended.

        Calls that last longer than the grace period are cancelled.
        """
        self.begin_closing()
        async with asyncio.TaskGroup() as group:
            if self._heartbeat is not None:
                group.create_task(self._heartbeat.stop_accepting())
            if self._executor is not None:
                group.create_task(self._executor.drain(self.settings.shutdown.grace_seconds))

    async def execute_suspects(self) -> None:
        """Execute, one at a time, the runs suspected of having crashed a process.

        Returns when none is left or this process ends.

        Raises:
            StoreUnavailableError: the database does not answer.
        """
        executor, table = self._executor, self._table
        while executor is not None and executor.accepts_runs:
            permitted_at = time.monotonic()
            run = await self._store.claim_suspect(executor.worker_id)
            if run is None:
                return
            self._report_suspects(waiting=True)  # the parent learns that this process was needed
            log.warning("run.executed_alone", run_id=run.key.run_id, tenant=run.key.tenant)
            executor.start(run, permitted_at=permitted_at)
            await executor.ended(run.key)
            if table is None or table.codes:
                return  # a function outlives its call, so the next suspect would not be alone

    def _report_suspects(self, waiting: bool) -> None:
        if self._table is not None:
            self._table.suspects_wait = waiting

    async def _close(self) -> None:
        """Drain, then stop all loops and close all connections."""
        await self.drain()
        await self._loops.stop()
        if self._heartbeat is not None:
            await self._heartbeat.leave()
        await self._journal.stop()
        await self.models.aclose()
        await self._engines.dispose()
        for feature in self._features:
            if feature.close is not None:
                await feature.close()
        self._pool.close()
        self._call_threads.shutdown(wait=False)
        await self._toolbox.aclose()
        await self.telemetry.aclose()
        log.info("process.closed")

    async def check(self) -> Mapping[str, PartState]:
        """Return the readiness of each part that this process needs to serve requests, by name."""
        control = self._engines.control
        try:
            async with asyncio.timeout(READY_SECONDS):
                database = _database_state(await takes_writes(control), self._journal.stuck_seconds)
                if not database.ready:
                    return {"database": database, "worker": self._worker_state()}
                current = await is_current(control)
                stale_seconds = self.settings.worker.stale_after_seconds
                taking = self._executor is not None or await any_worker_accepts_runs(
                    control, stale_seconds=stale_seconds
                )
        except (StoreUnavailableError, TimeoutError):
            return {"database": _SILENT, "worker": self._worker_state()}
        outdated = (
            "" if current else "The database schema is outdated. Run `caseworker db upgrade`."
        )
        return {
            "database": database,
            "migrations": PartState(current, outdated),
            "worker": self._worker_state(has_workers=taking),
        }

    @property
    def _silent_seconds(self) -> float:
        """Seconds since the last successful heartbeat; 0 if the process executes no runs."""
        return 0.0 if self._heartbeat is None else self._heartbeat.silent_seconds

    def _worker_state(self, *, has_workers: bool = True) -> PartState:
        if self._closing:
            return PartState(False, "The process is shutting down.")
        if self._heartbeat is not None and self._heartbeat.draining:
            return PartState(False, "The process is draining and accepts no new runs.")
        if failing := set(self._loops.failing()) & NEEDED_LOOPS:
            names = ", ".join(sorted(failing))
            return PartState(False, f"The process cannot claim runs: {names} keeps failing.")
        if self._queue is not None and not self._queue.looked.is_set():
            return PartState(False, "The process has not polled the queue yet.")
        silent = self._silent_seconds
        if silent > self.settings.worker.stale_after_seconds:
            return PartState(False, f"No heartbeat has succeeded for {silent:.0f} seconds.")
        return PartState(
            has_workers,
            "" if has_workers else "No worker is running. Accepted runs stay queued.",
        )

    def _build_executor(self) -> RunExecutor:
        worker = self.settings.worker
        worker_id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        if self._table is not None:
            self._table.worker_id = worker_id
        return RunExecutor(
            worker_id=worker_id,
            store=self._store,
            journals=self._journal,
            catalog=self.catalog,
            supervisor=Supervisor(grace_seconds=worker.cancel_grace_seconds),
            services={
                ModelGateway: self.models,
                ToolDispatch: self.tools,
                BlockingPool: self._pool,
                PacedThread: self._thread,
                CallThreads: self._call_threads,
                Sessions: self.sessions,
                ProviderObjects: self.sessions.objects,
                **({} if self._table is None else {CodeTable: self._table}),
            },
            limits=executor_limits(self.settings),
            artifacts=partial(RunArtifacts, self._artifacts.save, artifact_limits(self.settings)),
            approvals=partial(RunWaitingCallStore, self._waiting_calls),
            observers=self.telemetry.observers,
            accounts=self._accounts.of_run,
            branches=self._branches,
        )

    async def _take_work(self, executor: RunExecutor) -> None:
        """Send the first heartbeat, then start the loops that claim, stop and recover runs."""
        self._heartbeat = heartbeat = self._new_heartbeat(executor)
        await heartbeat.beat()
        await self._warn_of_records()
        self._loops.keep("heartbeat", heartbeat.run)
        if self._is_alone:
            if self._table is not None:
                self._table.ended = executor.code_ended
        else:
            self._keep_claiming(executor)
        listener = partial(
            listen_for_workers,
            self._url,
            WorkerCallbacks(
                cancelled=executor.cancel,
                unowned=executor.replay_stopped_soon,
                decided=self._waiting_calls.notifier.notify,
                accounts_changed=self._accounts.changed,
            ),
            patience=self._patience,
            listening=heartbeat.beat,
        )
        self._loops.keep("listener", listener)

    def _new_heartbeat(self, executor: RunExecutor) -> Heartbeat:
        worker, address = self.settings.worker, self.address
        return Heartbeat(
            workers=PostgresWorkers(self._engines, None if address is None else address.to_json()),
            store=self._store,
            executor=executor,
            interval_seconds=worker.heartbeat_seconds,
            drain_seconds=worker.drain_seconds,
        )

    async def _warn_of_records(self) -> None:
        """Log tables without statistics, and runs whose packages are not installed."""
        if unknown := await tables_without_statistics(self._engines.work):
            log.warning("statistics.missing", records=unknown, advice=ADVICE)
        for sentence in await runs_of_missing_kinds(self._engines.work):
            log.warning("runs.not_executed", detail=sentence)

    def _keep_claiming(self, executor: RunExecutor) -> None:
        """Start the loops that claim and recover runs, and those of features."""
        worker, times = self.settings.worker, queue_times(self.settings)
        self._queue = QueueWorker(
            self._url,
            store=self._store,
            executor=executor,
            times=times,
            patience=self._patience,
            claiming=asyncio.Semaphore(claims_at_once(worker.max_runs)),
        )
        queues = {name: it for feature in self._features for name, it in feature.queues.items()}
        background = BackgroundWorker(
            url=self._url, queues=queues, times=times, patience=self._patience
        )
        recovery = StaleRunRecovery(
            engines=self._engines,
            interval_seconds=worker.heartbeat_seconds,
            stale_seconds=worker.stale_after_seconds,
            max_attempts=worker.max_attempts,
            worker_id=executor.worker_id,
            usual_max_running=self.settings.quotas.max_running,
            observers=self.telemetry.observers,
            runs_due=self._queue.due,
            searches=[
                Search(next_job(queues), background.due),
                *(search for feature in self._features for search in feature.searches),
                *self._keep_rescuing(queues),
            ],
            end=executor.replay_stopped,
            suspects_wait=self._report_suspects,
        )
        self._loops.keep("recovery", recovery.run)
        self._loops.keep("queue", self._queue.run)
        for feature in self._features:
            for name, loop in feature.loops.items():
                self._loops.keep(name, loop)
        self._loops.keep("background", background.run)

    def _keep_rescuing(self, queues: Mapping[str, BackgroundQueue]) -> Sequence[Search]:
        """Start a loop for each queue that rescues overdue jobs; return their searches."""
        late_seconds = min(RESCUE_SECONDS, self.settings.worker.stale_after_seconds)
        searches = {name: overdue_search(queue, late_seconds) for name, queue in queues.items()}
        for name, overdue in searches.items():
            rescue = partial(rescue_jobs, name, queues[name], late_seconds)
            work = partial(overdue.run_when_due, rescue, late_seconds)
            self._loops.keep(f"rescue of {name}", work)
        return list(searches.values())


_SILENT: Final = PartState(
    False,
    "The database does not respond. Check that PostgreSQL runs at DATABASE_URL, and that it "
    "accepts connections and the password.",
)


def _database_state(takes_writes: bool, stuck_seconds: float) -> PartState:
    if not takes_writes:
        return PartState(
            False,
            "The database does not accept writes. Check that DATABASE_URL leads to the primary, "
            "and that the database is not read-only.",
        )
    if stuck_seconds > STUCK_SECONDS:
        return PartState(
            False,
            f"No write has succeeded for {stuck_seconds:.0f} seconds. Check the disk space and the "
            "locks of the database.",
        )
    return PartState(True)
