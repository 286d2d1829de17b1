"""Executes runs in this process: each in its own task, each under its own fencing token.

A run is already claimed when it is passed to the executor. It is executed as one graph, stopped
through its cancellation token, and finished by one guarded update. A run that the process cannot
finish is released to the queue. If the release fails too, another process recovers the run once
this process has sent no heartbeat for long enough.

See docs/internals.md, "Recovery".
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog

from caseworker.core.budget.stops import (
    DeadlineExceededError,
    HandOver,
    Stop,
    StopCause,
    StopKind,
    Suspended,
)
from caseworker.core.trace.frozen_json import DEFAULT_VALUE_LIMITS, ValueLimits
from caseworker.engine.activity import Activity
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.concurrency import LoopTurns, StepSlots
from caseworker.engine.context import RunContext
from caseworker.engine.driver import GraphExecution
from caseworker.engine.events import RUN_RESUMED, RUN_STARTED, Event
from caseworker.engine.ports import RunAccounts
from caseworker.engine.prepared import PreparedGraph
from caseworker.engine.quiet import replaying
from caseworker.engine.report import GraphOutcome
from caseworker.engine.supervision import (
    DetachedError,
    Supervisor,
    TimeLimit,
    deadline_of,
    set_within,
)
from caseworker.engine.waiting_calls import WaitingCallPort, WaitingCalls
from caseworker.models.table import AllowedModels
from caseworker.nodes.catalog import GraphProblemsError, NodeCatalog
from caseworker.nodes.chat import ChatInput, chat_services
from caseworker.nodes.node_type import RunFacts
from caseworker.platform.code_table import ExecutedCode
from caseworker.platform.fair_slots import TENANT, share_of
from caseworker.platform.logs.trace_context import outside_spans
from caseworker.runs.errors import BranchNotFoundError
from caseworker.runs.execute.execution import ActiveRun, Execution
from caseworker.runs.execute.outcome import RunOutcome, failed, outcome_of, result_of_calls, stopped
from caseworker.runs.execute.plan import RunGraphs
from caseworker.runs.execute.release import (
    CLAIM_SECONDS,
    GIVE_UP_SECONDS,
    RELEASES_AT_ONCE,
    Declined,
    shutting_down,
    when_there,
)
from caseworker.runs.journal.journal import LostRunError, RunJournal
from caseworker.runs.journal.replay import restore, spent_before
from caseworker.runs.kinds import KINDS, accounts_of, parent_of
from caseworker.runs.observers import RunObservers, log_context
from caseworker.runs.ports import Branches, JournalStore, RunStore
from caseworker.runs.references import call_references_in, is_stored_unchanged, resolved
from caseworker.runs.run import (
    CallRecord,
    CancelRequest,
    Deaths,
    NewRun,
    Run,
    RunKey,
    RunStatus,
)
from caseworker.tools.artifacts import ArtifactKeeper

log = structlog.get_logger(__name__)


PARENT_SECONDS = 1.0
"""Seconds before a child is claimed again that was claimed by another process than its parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorLimits:
    """Limits on the execution of runs in this process."""

    max_runs: int
    max_external_runs: int
    """Maximum number of runs whose agents run outside of the service; they hold no run slot."""
    max_attempts: int
    """Number of deaths of processes that count against a run, at which it fails."""
    max_parallel_steps: int
    """Maximum number of concurrent steps of one run, even if its graphs allow more."""
    values: ValueLimits = DEFAULT_VALUE_LIMITS


class RunSlots:
    """Counts the slots held by runs that this process executes or is about to claim."""

    def __init__(self, size: int, active: Collection[RunKey]) -> None:
        """Manage ``size`` slots; ``active`` is a live view of the runs that are being executed."""
        self._size = size
        self._share = share_of(size)
        self._active = active
        self._reserved: list[str | None] = []
        self._freed = asyncio.Event()
        self._served: str | None = None

    @property
    def free(self) -> int:
        """Number of runs that can still be started now."""
        return self._size - len(self._active) - len(self._reserved)

    @property
    def reserved(self) -> int:
        """Number of slots that are reserved for runs about to be claimed."""
        return len(self._reserved)

    @property
    def full_tenants(self) -> Sequence[str]:
        """Tenants that already hold their full share of the slots."""
        if len(self._active) + len(self._reserved) < self._share:
            return ()
        counts = Counter(key.tenant for key in self._active)
        counts.update(tenant for tenant in self._reserved if tenant is not None)
        return [tenant for tenant, count in counts.items() if count >= self._share]

    @property
    def served_last(self) -> Sequence[str]:
        """If there is only one slot, the tenant that held it last; otherwise empty."""
        return () if self._size > 1 or self._served is None else (self._served,)

    def served(self, tenant: str) -> None:
        """Record that a run of this tenant was started."""
        self._served = tenant

    def reserve(self, tenant: str | None) -> bool:
        """Reserve a slot; return False if none is free or the tenant holds its full share.

        ``tenant`` is None if the run to be claimed may belong to any tenant.
        """
        if self.free <= 0 or tenant in self.full_tenants:
            return False
        self._reserved.append(tenant)
        return True

    def unreserve(self, tenant: str | None) -> None:
        """Release a slot that :meth:`reserve` reserved."""
        self._reserved.remove(tenant)
        self._freed.set()

    def freed(self) -> None:
        """Wake all tasks that wait for a slot to be released."""
        self._freed.set()

    async def change(self) -> None:
        """Wait until a slot is released."""
        self._freed.clear()
        await self._freed.wait()

    async def change_within(self, seconds: float) -> None:
        """Wait until a slot is released, for at most ``seconds``."""
        self._freed.clear()
        await set_within(self._freed, seconds)


class RunExecutor:
    """Executes the runs of this process."""

    def __init__(
        self,
        *,
        worker_id: str,
        store: RunStore,
        journals: JournalStore,
        catalog: NodeCatalog,
        supervisor: Supervisor,
        services: Mapping[type, Any],
        limits: ExecutorLimits,
        artifacts: Callable[[Run, CancellationToken], ArtifactKeeper] | None = None,
        approvals: Callable[[Run, CancellationToken], WaitingCallPort] | None = None,
        observers: RunObservers | None = None,
        accounts: Callable[[str, tuple[str, ...], RunJournal], RunAccounts] | None = None,
        branches: Branches | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``artifacts`` stores files, ``approvals`` questions; None disables the feature.

        ``branches`` has the messages of threads; None if no run answers in one.

        ``accounts`` returns the accounts above a run, by tenant, names and journal; None: it has
        none.
        """
        self.worker_id = worker_id
        self.broken: dict[RunKey, int] = {}
        """Fencing tokens of runs whose execution crashed here, by run; the heartbeat releases
        them."""
        self._store = store
        self._journals = journals
        self._graphs = RunGraphs(catalog)
        self._turns = LoopTurns()
        self._supervisor = supervisor
        self._services = services
        self._limits = limits
        self._artifacts = artifacts
        self._approvals = approvals
        self._accounts = accounts
        self._branches = branches
        self._observers = observers or RunObservers()
        self._clock = clock
        self.changes = 0
        """Counter that increases whenever a run starts or ends here."""
        self._active: dict[RunKey, ActiveRun] = {}
        self._in_slots: set[RunKey] = set()
        self._external: set[RunKey] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.slots = RunSlots(limits.max_runs, self._in_slots)
        self.external_slots = RunSlots(limits.max_external_runs, self._external)
        self._freed = asyncio.Event()
        self._releasing = asyncio.Semaphore(RELEASES_AT_ONCE)
        self._declined = Declined()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open = True
        self._handing_over = False

    @property
    def active(self) -> Set[RunKey]:
        """Keys of the runs that are being executed."""
        return self._active.keys()

    @property
    def accepts_runs(self) -> bool:
        """Whether runs may be claimed; not after :meth:`stop_accepting`."""
        return self._open

    @property
    def free_slots(self) -> int:
        """Number of runs that can still be started now."""
        return self.slots.free if self._open else 0

    def reserve(self, tenant: str | None = None, *, external: bool = False) -> bool:
        """Reserve a slot for a run that is about to be claimed; return False if none is free."""
        return self._open and (self.external_slots if external else self.slots).reserve(tenant)

    def unreserve(self, tenant: str | None = None, *, external: bool = False) -> None:
        """Release a slot that :meth:`reserve` reserved."""
        (self.external_slots if external else self.slots).unreserve(tenant)

    async def wait_for_slot(self) -> None:
        """Wait until a slot may be free; use :meth:`reserve` to get it."""
        while self.free_slots <= 0:
            await self.slots.change()

    async def freed(self) -> None:
        """Wait for the end of a run whose tenant may have further runs waiting."""
        await self._freed.wait()
        self._freed.clear()

    def start(
        self, run: Run, *, permitted_at: float, prepared: PreparedGraph | None = None
    ) -> None:
        """Execute a run that was claimed for this process; repeating the call changes nothing.

        ``permitted_at`` is the time, on the monotonic clock, at which the claiming statement was
        sent. ``prepared`` is the run's graph, if it is available. If this process lost the run and
        claimed it again, the new execution starts after the lost one has ended.
        """
        if (lost := self._active.get(run.key)) is not None:
            if lost.run.fence >= run.fence:
                return  # repeated delivery; a reclaimed run has a higher fencing token
            lost.token.trip(LostRunError())
        self._loop = asyncio.get_running_loop()
        ended = self._loop.create_future()
        token = CancellationToken()
        active = ActiveRun(run, token, Activity(token), ended, prepared)
        if run.fence > 1 or run.request.source is not None:
            token.hold()  # until the journal of the earlier execution is repeated
        if not self._open:  # it was claimed before
            active.activity.hold(shutting_down())
        if self._handing_over:
            token.trip(shutting_down())
        self._active[run.key] = active
        (self._external if KINDS[run.kind].is_external else self._in_slots).add(run.key)
        self.slots.served(run.key.tenant)
        self.changes += 1
        self._keep(self._execute(active, permitted_at, after=lost), f"run {run.key.run_id}")

    async def replay_stopped(self, key: RunKey) -> None:
        """Claim a stopped run that no process executes, and replay its journal to end it.

        The replay produces the same result and events as a stop during an execution. It needs no
        slot.
        """
        if not self._open:
            return
        permitted_at = self._clock()
        run = await self._store.claim_stopped(key, self.worker_id)
        if run is not None:
            self.start(run, permitted_at=permitted_at)

    def replay_stopped_soon(self, key: RunKey) -> None:
        """Call :meth:`replay_stopped` in the background; the run has a job in case that fails."""

        async def end() -> None:
            try:
                await self.replay_stopped(key)
            except Exception:
                log.exception("run.not_ended", run_id=key.run_id)

        self._keep(end(), "stop")

    def cancel(self, key: RunKey, request: CancelRequest) -> bool:
        """Cancel a run; return False if this process does not execute it."""
        if (active := self._active.get(key)) is None:
            return False
        active.delivered_at = active.delivered_at or _now()
        active.token.trip(request.stop)
        return True

    def lose(self, key: RunKey) -> None:
        """Stop the execution of a run that this process no longer owns."""
        if (active := self._active.get(key)) is not None:
            active.token.trip(LostRunError())

    def code_ended(self, code: ExecutedCode) -> None:
        """Release a suspect, since the code has ended that was suspected of a death.

        This may be called in any thread.
        """
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._clear, code)

    def _clear(self, code: ExecutedCode) -> None:
        active = self._active.get(RunKey(code.tenant, code.run_id))
        if active is None or (deaths := active.run.deaths) is None or not deaths.suspect:
            return
        if code.name in deaths.calls:
            active.is_cleared = True
            active.activity.hold(HandOver("The suspected code has ended."))

    def usage_of(self, key: RunKey) -> Mapping[str, Any] | None:
        """Return the usage so far of a run; None if this process does not execute it."""
        active = self._active.get(key)
        return active.scope.to_dict() if active and active.scope else None

    def draft(self, new: NewRun) -> RunContext:
        """Return the context of a run as if it was accepted now; it is neither stored nor executed.

        It has no approvals and no artifacts.
        """
        token, request = CancellationToken(), new.request
        run = Run(
            key=new.key,
            kind=request.kind,
            status=RunStatus.RUNNING,
            created_at=_now(),
            request_hash=new.request_hash,
            request=request,
            accounts=accounts_of(request),
        )
        execution = Execution(
            run=run,
            earlier=(),
            token=token,
            activity=Activity(token),
            journals=self._journals,
            permitted_at=0.0,
            clock=self._clock,
            limits=self._limits.values,
            on=(asyncio.get_running_loop(), threading.get_ident()),
        )
        services = dict(self._services)
        if request.models is not None:
            services[AllowedModels] = AllowedModels(request.models)
        return execution.context(
            services,
            StepSlots(1, self._turns),
            grace_seconds=self._supervisor.grace_seconds,
            accounts=self._accounts,
        )

    def stored_seq(self, key: RunKey) -> int | None:
        """Return the sequence number of the last event that is known to be stored; 0 without one.

        Returns None if this process does not execute the run.
        """
        if (active := self._active.get(key)) is None:
            return None
        return active.run.last_seq if active.journal is None else active.journal.stored_seq

    def stop_accepting(self) -> None:
        """Accept no more runs, and start no more calls of those in progress.

        Each run is released as soon as its calls in flight have ended.
        """
        self._open = False
        for active in self._active.values():
            active.activity.hold(shutting_down())

    async def ended(self, key: RunKey) -> Run | None:
        """Wait until a run that this process executes has ended, and return it.

        Call references in its result are resolved. Returns None if this process does not execute
        the run, or if only the store has its final state.
        """
        if (active := self._active.get(key)) is None:
            return None
        await asyncio.shield(active.ended)
        final, journal = active.final, active.journal
        if final is not None and (references := call_references_in(final)):
            values = {} if journal is None else journal.results(references)
            final = resolved(final, values) if values.keys() >= references else None
        return final if final is None or is_stored_unchanged((final.result, final.stop)) else None

    async def drain(self, grace_seconds: float) -> None:
        """Release all runs, each once its calls in flight have ended.

        Calls that last longer than ``grace_seconds`` are cancelled. Runs that cannot be released
        during a database outage are recovered by other processes.
        """
        self.stop_accepting()
        if self._tasks and not self._handing_over:
            await asyncio.wait(self._tasks, timeout=grace_seconds)
        self._handing_over = True
        for active in self._active.values():
            active.token.trip(shutting_down())
        patience = self._supervisor.grace_seconds + GIVE_UP_SECONDS
        while self.slots.reserved or self._tasks:
            unfinished = self.slots.reserved, len(self._tasks)
            if self.slots.reserved:  # a claim may be in flight
                await self.slots.change_within(CLAIM_SECONDS)
            else:
                await asyncio.wait(self._tasks, timeout=patience)
            if unfinished == (self.slots.reserved, len(self._tasks)):
                break
        if self._tasks:
            log.warning("runs.left_behind", count=len(self._active))
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=GIVE_UP_SECONDS)

    async def _execute(
        self, active: ActiveRun, permitted_at: float, *, after: ActiveRun | None
    ) -> None:
        run = active.run
        structlog.contextvars.bind_contextvars(**log_context(run))
        TENANT.set(run.key.tenant)
        try:
            if after is not None:
                await asyncio.shield(after.ended)
            self._observers.started(run)
            await self._run(active, permitted_at)
        except Exception:
            log.exception("run.broken")
            self.broken[run.key] = run.fence
        finally:
            if run.key.tenant in self.slots.full_tenants:
                self._freed.set()  # queued runs of the tenant have no jobs left
            if self._active.get(run.key) is active:
                del self._active[run.key]
                self._in_slots.discard(run.key)
                self._external.discard(run.key)
                self.changes += 1
            active.ended.set_result(None)
            self.slots.freed()

    async def _run(self, active: ActiveRun, permitted_at: float) -> None:
        run = active.run
        earlier: Sequence[CallRecord] = ()
        if run.fence > 1 or run.request.source is not None:
            earlier = await when_there(partial(self._store.calls, run.key))
        parent = parent_of(run.request)
        parent_run = None if parent is None else self._active.get(RunKey(run.key.tenant, parent))
        parent_scope = (
            parent_run.scope if parent_run is not None and parent_run.takes_children else None
        )
        begin = partial(
            Execution,
            run=run,
            token=active.token,
            activity=active.activity,
            journals=self._journals,
            permitted_at=permitted_at,
            clock=self._clock,
            limits=self._limits.values,
            span_of=self._observers.span_of(run),
            parent_scope=parent_scope,
            on=(asyncio.get_running_loop(), threading.get_ident()),
        )
        try:
            execution = await restore(earlier, partial(begin, earlier=earlier))
        except ValueError:  # the stored rows are not a valid journal
            log.exception("run.unreadable")
            execution = begin(earlier=())
            execution.scope.restore(spent_before(earlier))
            cause = StopCause(kind=StopKind.ERROR, reason="The journal of the run cannot be read.")
            await self._finish(active, execution, stopped(run, Stop(cause), None, at=_now()))
            return
        del begin  # it takes memory, and the run may wait for hours
        if parent is not None and parent_scope is None:
            await self._end_without_parent(active, execution, RunKey(run.key.tenant, parent))
            return
        active.scope, active.journal = execution.scope, execution.journal
        try:
            outcome = await self._outcome(active, execution)
        except GraphProblemsError as error:  # valid when accepted
            await self._decline(active, execution, error)
            return
        except BranchNotFoundError as error:
            stop = _stop_before(run)
            ended = failed(run, error, None, at=_now())
            if stop is not None:
                ended = stopped(run, stop, result_of_calls(run, earlier, stop), at=_now())
            await self._finish(active, execution, ended)
            return
        outcome.drop_tracebacks()
        if run.key in self._external:
            await self._end_children(active, outcome.stop)
        if isinstance(outcome.stop, Suspended):
            waits_for = outcome.stop.approval_ids
            await self._release(active, execution, str(outcome.stop), waits_for=waits_for)
        elif isinstance(outcome.stop, HandOver) and not self._is_exhausted(run):
            await self._release(active, execution, "The process abandoned the run.")
        else:
            await self._finish(active, execution, outcome_of(run, outcome, at=_now()))

    async def _end_children(self, parent: ActiveRun, stop: Stop | None) -> None:
        """End the children of a run that ends, or release them with it to other processes."""
        parent.takes_children, key = False, parent.run.key
        children = [
            each
            for each in self._active.values()
            if parent_of(each.run.request) == key.run_id and each.run.key.tenant == key.tenant
        ]
        for each in children:
            each.token.trip(HandOver(str(stop)) if isinstance(stop, HandOver) else _parent_ended())
        for each in children:
            await asyncio.shield(each.ended)

    async def _end_without_parent(
        self, active: ActiveRun, execution: Execution, parent: RunKey
    ) -> None:
        """End a child that was stopped or whose parent has ended.

        Otherwise release it until this process owns the parent.
        """
        if (stop := _stop_before(active.run)) is None:
            parent_run = await when_there(partial(self._store.get, parent))
            if parent_run is None or parent_run.finished:
                stop = _parent_ended()
        if stop is not None:
            await self._finish(active, execution, stopped(active.run, stop, None, at=_now()))
            return
        reason = "Another process owns the parent of the run."
        await self._release(active, execution, reason, pause_seconds=PARENT_SECONDS)

    async def _decline(
        self, active: ActiveRun, execution: Execution, error: GraphProblemsError
    ) -> None:
        """Release a run that this process cannot execute; fail it after too many attempts.

        A run that was stopped ends at once, with the results of its journal.
        """
        run = active.run
        if (stop := _stop_before(run)) is not None:
            calls = await when_there(partial(self._store.calls, run.key))
            result = result_of_calls(run, calls, stop)
            await self._finish(active, execution, stopped(run, stop, result, at=_now()))
            return
        pause_seconds = self._declined.pause_before(run.key)
        if pause_seconds is None:
            await self._finish(active, execution, failed(run, error, None, at=_now()))
            return
        log.warning("run.declined", seconds=pause_seconds, detail=str(error))
        reason = "The process cannot execute the run's graph."
        await self._release(active, execution, reason, pause_seconds=pause_seconds)

    async def _finish(self, active: ActiveRun, execution: Execution, outcome: RunOutcome) -> None:
        """Persist the outcome; if a cancel request won the race, persist ``cancelled`` instead."""
        finish = execution.finish(outcome, delivered_at=active.delivered_at)
        stored = await self._journals.finish(finish)
        if stored.cancel_request is not None:  # stored first, so nothing was written
            stop = stored.cancel_request.stop
            outcome = stopped(active.run, stop, outcome.result, at=_now())
            finish = execution.finish(outcome, delivered_at=_now())
            stored = await self._journals.finish(finish)
        active.finished = stored.done
        if stored.frees_capacity:
            self._freed.set()
        if stored.finished_at is None:
            log.warning("run.finished_elsewhere")
        else:
            self._observers.ended(active.end(finish, stored.finished_at), finish.snapshot)

    async def _outcome(self, active: ActiveRun, execution: Execution) -> GraphOutcome:
        """Execute the run's graph; timeouts and stops also reach calls in flight.

        Raises:
            GraphProblemsError: this process cannot execute the graph.
            BranchNotFoundError: the messages that the run answers were deleted.
        """
        run = active.run
        if run.cancel_request is not None:
            self.cancel(run.key, run.cancel_request)
        graph = await self._graph_of(active, execution)
        if self._is_exhausted(run):
            return graph.abandoned(_exhausted(run))
        about = {"attempt": run.attempts, **execution.imported}
        execution.journal.emit(Event(type=RUN_RESUMED if run.last_seq else RUN_STARTED, data=about))
        token = active.token
        deadline = deadline_of(run.request.deadline, token)
        delayed: AbstractContextManager[None] = nullcontext()
        if token.is_delaying:
            delayed = replaying(graph.calls, grace_seconds=self._supervisor.grace_seconds)
        try:
            with TimeLimit(execution.scope, token), deadline, delayed:
                outcome = await self._supervisor.run(
                    graph.run(), token, late=lambda _: self._record_late(active, execution)
                )
                outcome.stop = token.delayed or outcome.stop
            return outcome
        except DetachedError as detached:
            return graph.abandoned(detached.stop)
        except Stop as stop:  # stopped before it started
            return graph.abandoned(stop)

    def _is_exhausted(self, run: Run) -> bool:
        """Return whether too many deaths count against a run to start it again."""
        deaths = 0 if run.deaths is None else run.deaths.count
        return run.cancel_request is None and deaths >= self._limits.max_attempts

    async def _graph_of(self, active: ActiveRun, execution: Execution) -> GraphExecution:
        """Build the graph execution.

        Raises:
            GraphProblemsError: this process cannot execute the graph.
            BranchNotFoundError: the messages that the run answers were deleted.
        """

        def on_abandoned_done() -> None:
            if execution.ended:  # before the end, the cost is part of the run's usage anyway
                self._record_late(active, execution)

        run = active.run
        prepared = active.prepared or await self._graphs.prepared(run)
        request = run.request
        facts = RunFacts(now=run.created_at, timezone=request.timezone, seed=request.seed)
        services = {**self._services, RunFacts: facts}
        if request.chat is not None:
            services |= chat_services(await self._chat_of(run, request.chat), prepared)
        if request.models is not None:
            services[AllowedModels] = AllowedModels(request.models)
        if self._artifacts is not None:
            services[ArtifactKeeper] = self._artifacts(run, execution.token)
        if self._approvals is not None:
            services[WaitingCalls] = WaitingCalls(self._approvals(run, execution.token))
        slots = StepSlots(self._limits.max_parallel_steps, self._turns)
        context = execution.context(
            services,
            slots,
            grace_seconds=self._supervisor.grace_seconds,
            on_abandoned_done=on_abandoned_done,
            accounts=self._accounts,
        )
        return GraphExecution(prepared, KINDS[request.kind].inputs(request), context)

    async def _chat_of(self, run: Run, chat: ChatInput) -> ChatInput:
        """Return the chat of a run with its messages, which its thread may store."""
        if chat.messages or self._branches is None:
            return chat
        return await when_there(partial(self._branches.chat_of, run))

    async def _release(
        self, active: ActiveRun, execution: Execution, reason: str, **how: Any
    ) -> None:
        """Release the run to other processes, unless it is already lost to one."""
        if isinstance(active.token.stop, LostRunError):
            log.warning("run.lost")
            return
        calls, events = execution.abandon(reason)
        release = partial(
            self._store.release,
            active.run,
            active_seconds=execution.active_seconds,
            calls=calls,
            events=events,
            counted=False,
            settled=execution.journal.settled,
            cleared=active.is_cleared,
            **how,
        )
        async with self._releasing:
            await when_there(release)
        log.info("run.handed_over", detail=reason)

    def _record_late(self, active: ActiveRun, execution: Execution) -> None:
        """Record the cost of abandoned work that ended late; its result is dropped."""
        log.warning("run.late_result", run_id=execution.run.key.run_id)
        self._keep(self._add_late(active, execution), "late result")

    async def _add_late(self, active: ActiveRun, execution: Execution) -> None:
        """Store the late cost if this process finished the run; another owner estimates it."""
        await asyncio.shield(active.ended)
        if not active.finished:
            return
        try:
            await self._store.late(execution.late())
        except Exception:
            log.exception("run.late_result_lost")

    def _keep(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name, context=outside_spans())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _now() -> datetime:
    return datetime.now(UTC)


def _exhausted(run: Run) -> Stop:
    """Return the stop of a run against which too many deaths count."""
    deaths = run.deaths or Deaths(count=0)
    if not deaths.calls:
        return HandOver(f"The execution of the run failed {deaths.count} times in the service.")
    call = ", ".join(deaths.calls)
    reason = f"{call} ended the process of the run; deaths: {deaths.count}, last {deaths.cause}."
    return Stop(StopCause(kind=StopKind.POISONED, call=call, reason=reason))


def _stop_before(run: Run) -> Stop | None:
    """Return the stop of a run that was stopped before it was claimed; None for other runs."""
    if run.cancel_request is not None:
        return run.cancel_request.stop
    deadline = run.request.deadline
    return DeadlineExceededError(deadline) if deadline and deadline <= _now() else None


def _parent_ended() -> Stop:
    return Stop(StopCause(kind=StopKind.CANCELLED, reason="The parent of the run has ended."))
