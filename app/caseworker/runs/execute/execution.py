"""One execution of a run: its graph, its limits and its journal.

See docs/internals.md, "One row decides".
"""

import asyncio
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from caseworker.core.budget.budget import ESTIMATED_OF, Dimension
from caseworker.core.budget.ledger import Scope
from caseworker.core.budget.usage import ResourceUsage
from caseworker.core.trace.frozen_json import DEFAULT_VALUE_LIMITS, ValueLimits
from caseworker.core.trace.spans import SpanOf
from caseworker.engine.activity import Activity
from caseworker.engine.calls import Calls
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.concurrency import StepSlots
from caseworker.engine.context import RunContext
from caseworker.engine.events import BUDGET_WARNING, Event
from caseworker.engine.ports import RunAccounts
from caseworker.engine.prepared import PreparedGraph
from caseworker.runs.execute.outcome import RunOutcome, close
from caseworker.runs.journal.event_log import run_ended
from caseworker.runs.journal.journal import RunJournal
from caseworker.runs.journal.replay import graph_of, imported_from, reopened, spent_before
from caseworker.runs.ports import JournalStore, LateResult
from caseworker.runs.run import CallRecord, EventRecord, FinishRun, Run, RunStatus, as_ended


@dataclass(slots=True)
class ActiveRun:
    """A run that this process executes."""

    run: Run
    token: CancellationToken
    activity: Activity
    ended: asyncio.Future[None]
    prepared: PreparedGraph | None = None
    """Graph of the run, if it was already prepared when the run was accepted; otherwise None."""
    delivered_at: datetime | None = None
    finished: bool = False
    """Whether this process has stored the end of the run."""
    scope: Scope | None = None  # once it is executed
    is_cleared: bool = False
    """Whether the code that was suspected of the death of a process has ended here."""
    takes_children: bool = True
    """Whether runs may start that share the budget of this one; not while it ends."""
    final: Run | None = None
    """Final state of the run as this process stored it. None if it must be read from the store."""
    journal: RunJournal | None = None  # once it is executed

    def end(self, finish: FinishRun, finished_at: datetime) -> Run:
        """Return the run with the outcome in ``finish`` applied.

        The result is also kept as ``final``, unless the run was cancelled, because only the store
        has the details of a cancellation.
        """
        ended = as_ended(self.run, finish, finished_at)
        if finish.status is not RunStatus.CANCELLED:
            self.final = ended
        return ended


class Execution:
    """Holds the objects needed for one execution of a run; created at each start or recovery."""

    def __init__(
        self,
        *,
        run: Run,
        earlier: Sequence[CallRecord],
        token: CancellationToken,
        activity: Activity,
        journals: JournalStore,
        permitted_at: float,
        clock: Callable[[], float],
        limits: ValueLimits = DEFAULT_VALUE_LIMITS,
        span_of: SpanOf | None = None,
        parent_scope: Scope | None = None,
        on: tuple[asyncio.AbstractEventLoop, int],
    ) -> None:
        """``parent_scope`` is the budget scope of the parent of a child run.

        ``on`` is the event loop that executes the run, and its thread. This may be another one.
        ``span_of`` returns the span contexts to propagate to called services; None for none.
        """
        self.run = run
        self._span_of = span_of
        self.token = token
        self._activity = activity
        self.graph, self.root = graph_of(run, earlier)
        source = run.request.source
        self.imported = {} if source is None else imported_from(source, earlier)
        """Data about the run that this one resumes, for its start event; empty if there is none."""
        self._ended = False
        self.journal = RunJournal(
            run=run,
            graph=self.graph,
            token=token,
            store=journals,
            earlier=earlier,
            permitted_at=permitted_at,
            clock=clock,
            limits=limits,
        )
        self._limits = limits
        usage = ResourceUsage(before_seconds=run.active_seconds, clock=clock)
        # No reference back to self: without cycles, memory is freed as soon as the run ends.
        self.scope = Scope(
            "run" if parent_scope is None else f"{parent_scope.name}/child",
            run.request.budget,
            parent=parent_scope,
            usage=usage,
            warn=_warner(self.journal, *on),
            requires_prices=run.request.requires_prices,
            limits_spending=run.request.limits_spending,
            in_account=bool(run.accounts),
        )
        if earlier:
            self.scope.restore(spent_before(earlier))

    @property
    def ended(self) -> bool:
        """Whether :meth:`finish` was called; costs from then on are recorded as late costs."""
        return self._ended

    @property
    def active_seconds(self) -> float:
        """Execution time so far in seconds, including earlier executions."""
        return self.scope.usage.time_elapsed_seconds

    def deadline_in(self) -> float | None:
        """Return the seconds until the run's deadline; None if it has none."""
        deadline = self.run.request.deadline
        return None if deadline is None else (deadline - datetime.now(UTC)).total_seconds()

    def context(
        self,
        services: Mapping[type, Any],
        slots: StepSlots,
        *,
        grace_seconds: float,
        on_abandoned_done: Callable[[], None] = lambda: None,
        accounts: Callable[[str, tuple[str, ...], RunJournal], RunAccounts] | None = None,
    ) -> RunContext:
        """Return the context that the run's steps share.

        ``accounts`` returns the accounts above a run; None reserves in none of them.
        ``on_abandoned_done`` is called each time an abandoned step or call finally ends.
        """
        seed = f"{self.run.key.run_id}/{self.run.fence}"
        of_run = None
        if accounts is not None and self.run.accounts:
            of_run = accounts(self.run.key.tenant, self.run.accounts, self.journal)
        return RunContext(
            run_id=self.run.key.run_id,
            root=self.root,
            trace=self.graph,
            scope=self.scope,
            token=self.token,
            journal=self.journal,
            events=self.journal,
            calls=Calls(
                graph=self.graph,
                journal=self.journal,
                token=self.token,
                jitter=_Jitter(seed),
                deadline_in=self.deadline_in,
                events=self.journal,
                span_of=self._span_of,
                accounts=of_run,
                activity=self._activity,
            ),
            services=services,
            tenant=self.run.key.tenant,
            chat_id=chat.thread_id if (chat := self.run.request.chat) else None,
            limits=self._limits,
            slots=slots,
            grace_seconds=grace_seconds,
            on_abandoned_done=on_abandoned_done,
        )

    def finish(self, outcome: RunOutcome, *, delivered_at: datetime | None) -> FinishRun:
        """Close the ExecutionGraph and return the update that stores the outcome.

        Another call replaces the outcome: the graph is reopened and closed again.
        """
        if self._ended:
            self.graph = reopened(self.graph, self.root)
        self._ended = True
        reason = close(self.graph, self.root, outcome)
        stop = outcome.stop.to_dict() if outcome.stop else None
        end = run_ended(outcome.status, outcome.finish_reason, stop)
        calls, events = self.journal.end(self.graph, reason, end)
        return FinishRun(
            key=self.run.key,
            fence=self.run.fence,
            status=outcome.status,
            finish_reason=outcome.finish_reason,
            result=outcome.result,
            usage=self.scope.to_dict(),
            stop=stop,
            active_seconds=self.active_seconds,
            calls=calls,
            snapshot=self.graph.capture().as_dict(),
            events=events,
            delivered_at=delivered_at,
            settled=self.journal.settled,
        )

    def late(self) -> LateResult:
        """Return the costs that arose after the run was finished."""
        return LateResult(
            key=self.run.key,
            fence=self.run.fence,
            calls=self.journal.close(),
            usage=self.scope.to_dict(),
        )

    def abandon(self, reason: str) -> tuple[Sequence[CallRecord], Sequence[EventRecord]]:
        """Close all open nodes except the root; return the calls and events not stored yet."""
        self.graph.close_open(reason)
        calls = self.journal.close()
        self.journal.end_calls(reason)
        return calls, self.journal.unstored_events()


class _Jitter:
    """A random source from -1 to 1; its generator (2.5 KB) is created on first use."""

    __slots__ = ("_chance", "_seed")

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._chance: random.Random | None = None

    def __call__(self) -> float:
        if self._chance is None:
            self._chance = random.Random(self._seed)
        return self._chance.uniform(-1, 1)


def _warner(
    journal: RunJournal, loop: asyncio.AbstractEventLoop, thread: int
) -> Callable[[Scope, Dimension, float], None]:
    """Return a callback that emits budget warnings from any thread; ``loop`` runs in ``thread``."""

    def warn(scope: Scope, dimension: Dimension, share: float) -> None:
        if threading.get_ident() == thread:
            _emit_warning(journal, scope, dimension, share)
        else:
            loop.call_soon_threadsafe(_emit_warning, journal, scope, dimension, share)

    return warn


def _emit_warning(journal: RunJournal, scope: Scope, dimension: Dimension, share: float) -> None:
    """Emit an event: a scope has reached a share of one of its limits."""
    data = {
        "scope": scope.name,
        "dimension": dimension.value,
        "share": share,
        "used": float(scope.usage.of(dimension)),
        "reserved": float(scope.reserved(dimension)),
        "limit": float(scope.budget.limits()[dimension]),
    }
    if dimension in ESTIMATED_OF:
        data["estimated"] = float(scope.usage.of(ESTIMATED_OF[dimension]))
    journal.emit(Event(type=BUDGET_WARNING, data=data))
