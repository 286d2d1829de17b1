"""The journal of one run during its execution: buffers changes and stores them.

Changes and events are stored at three points: at a barrier (before an external call), shortly after
they happen (so that the trace can be followed on any replica), and at the end of the run. Each
write contains only changes, so a long run costs no more per call than a short one. Changes whose
write failed or was not confirmed are included in the next write.

One write is in flight at a time; concurrent callers share the next one. So no change is stored
before the changes that caused it, even if steps run in parallel. Changes that are recorded without
an ``await`` in between are stored together.

See docs/internals.md, "The journal and its barrier".
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import structlog

from caseworker.core.budget.accounts import Hold, HoldAnswer, HoldKey
from caseworker.core.budget.budget import Dimension
from caseworker.core.budget.stops import CancelledError, HandOver, Stop, StopCause, StopKind
from caseworker.core.budget.usage import NOTHING, Charge
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.frozen_json import (
    DEFAULT_VALUE_LIMITS,
    FrozenJson,
    ValueLimits,
    ValueTooLargeError,
    freeze,
    least_bytes,
    thawed,
)
from caseworker.core.trace.node import TERMINAL, WORKER_LOST, TraceNode
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.events import (
    STREAMED,
    Event,
)
from caseworker.engine.ports import BULK, CallOutcome, Entry, Recorded
from caseworker.engine.step_path import StepPath
from caseworker.runs.journal.event_log import EventLog, OpenStarts
from caseworker.runs.journal.replay import TIERS, entries_of, spent_by_path, tries_of
from caseworker.runs.ports import JournalStore, JournalWrite, Permission
from caseworker.runs.run import CallRecord, EventRecord, Run

log = structlog.get_logger(__name__)

PERMISSION_SECONDS = 0.1
"""Maximum age, in seconds, of the database's permission when a call starts.

The permission is the response to a journal write, which confirms that the run is still owned and
has no cancel request. A call may therefore start up to this long after a cancel request was stored.
The age includes delays by a busy event loop or a slow response.
"""

ASKS = 2
"""Number of attempts that a barrier makes to get a fresh permission. After the last one the call
proceeds, because retrying would delay a busy process, or a slow database, even more."""

SOON_SECONDS = 0.05
"""Seconds for which changes are collected before they are stored, if no barrier stores them
first."""
AT_ONCE_SECONDS = 0.002
"""Seconds for which parts of a streamed answer are collected; short, because a client may be
reading."""


ROW_BYTES = 500
"""Approximate size of a journal row in bytes, without its values."""


class RunTooLargeError(Stop):
    """The data stored for the run would exceed the storage limit per run."""

    def __init__(self, stored_bytes: int, max_bytes: int) -> None:
        reason = (
            f"The run has stored {stored_bytes:,} bytes; at most {max_bytes:,} are allowed"
            " (limits.max_run_mb)."
        )
        super().__init__(StopCause(kind=StopKind.BUDGET, scope="run", reason=reason))


class LostRunError(HandOver):
    """Another worker owns the run, or the run has ended, so nothing more may be written."""

    def __init__(self) -> None:
        super().__init__("The run belongs to another worker now.")


def _without_bulk(value: Any) -> tuple[str, Any]:
    """Return the bulk of a value, which no limit counts, and the rest."""
    if not (isinstance(value, dict) and (bulk := value.get(BULK))):
        return "", value
    return bulk, {name: each for name, each in value.items() if name != BULK}


def lost_run(token: CancellationToken) -> LostRunError:
    """Stop the execution of a run that this process lost, and return the error to raise."""
    lost = LostRunError()
    token.trip(lost)
    return lost


class RunJournal:
    """The engine's journal and event sink for one execution of one run."""

    def __init__(
        self,
        *,
        run: Run,
        graph: ExecutionGraph,
        token: CancellationToken,
        store: JournalStore,
        earlier: Sequence[CallRecord],
        permitted_at: float,
        clock: Callable[[], float],
        limits: ValueLimits = DEFAULT_VALUE_LIMITS,
    ) -> None:
        """Open the journal of a claimed run.

        ``earlier`` is the journal of previous executions. ``permitted_at`` is a reading of
        ``clock`` from before the claim statement was sent; a later reading would make the
        permission look fresher than it is.
        """
        self._run = run
        self._graph = graph
        self._token = token
        self._store = store
        self._clock = clock
        self._permitted_at = permitted_at
        self.resumes = bool(earlier)
        """Whether an earlier execution of the run has stored records."""
        self._entries: dict[str, Entry] = {}
        self._requests: dict[str, Mapping[str, Any]] = {}
        self._unwritten = set[str]()
        """IDs of the nodes whose stored state is missing or outdated."""
        self._revision = graph.revision
        self._in_flight: asyncio.Future[None] | None = None
        """Ends with the write in flight; None while there is none."""
        self._before_write: _StateBeforeWrite | None = None
        self._writes_started = self._last_granted = 0
        self._holds: dict[HoldKey, Hold] = {}
        """Holds that no answer to a write has granted or refused yet."""
        self._answers: dict[HoldKey, HoldAnswer] = {}
        self._settled: dict[HoldKey, Hold] = {}
        """Settled holds that may not be stored yet, with their actual amounts."""
        self._earlier = earlier
        self._spent: Mapping[str, Charge] | None = None  # computed for the first request
        self._recorded: Mapping[str, Recorded] = {}
        self._limits = limits
        self._stored_bytes = 0
        if earlier:
            self._entries, self._recorded = entries_of(earlier), tries_of(earlier)
            self._unwritten |= {r.node_id for r in earlier if r.node["status"] not in TERMINAL}
            self._stored_bytes = sum(
                ROW_BYTES + least_bytes(_without_bulk(r.value)[1]) for r in earlier
            )
        elif (root_id := graph.root_id) is not None:
            self._unwritten.add(root_id)
        self._events = EventLog(
            last_seq=run.last_seq,
            stored_once=run.stored_once,
            streamed=run.streamed,
            open_starts=OpenStarts(run.open_starts),
            limits=limits,
            node_of=graph.node,
        )
        if run.open_starts:
            # Stored by the write that stores their closed nodes, like all events and nodes.
            self.end_calls(WORKER_LOST)
        self._soon: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[bool] | None = None
        self._closed = False

    def recorded(self, call_key: str) -> Recorded | None:
        """Return the journal entry of a call or step from an earlier execution, or None."""
        return self._recorded.get(call_key)

    def recorded_below(self, prefix: str) -> Mapping[str, Recorded]:
        """Return the records of earlier executions whose keys begin with ``prefix``, by key."""
        return {key: one for key, one in self._recorded.items() if key.startswith(prefix)}

    def results(self, call_keys: Set[str]) -> Mapping[str, Any]:
        """Return the results of the calls with these keys, as far as the run has them."""
        return {
            each.call_key: thawed(each.value)
            for each in self._entries.values()
            if each.call_key in call_keys and each.outcome is CallOutcome.RESULT
        }

    def spent_below(self, path: StepPath) -> Charge:
        """Return the total charge of earlier executions for the calls and steps inside a step."""
        if self._spent is None:
            self._spent = spent_by_path(self._earlier)
        return self._spent.get(path.text, NOTHING)

    def note(self, node_id: str, entry: Entry) -> None:
        """Buffer the journal entry of a CallNode.

        Raises:
            ValueTooLargeError: the value exceeds a limit.
            ValueError: the value is not JSON.
        """
        value, limits = entry.value, self._limits
        if value is not None and type(value) is not FrozenJson:  # values of steps are frozen
            max_bytes, key = limits.max_outputs_bytes, "limits.max_outputs_kb"
            if entry.outcome is CallOutcome.RESULT:
                max_bytes, key = limits.max_value_bytes, "limits.max_value_kb"
            bulk, value = _without_bulk(value)
            try:
                value = freeze(value, max_bytes=max_bytes, max_depth=limits.max_depth + 4, key=key)
            except ValueTooLargeError as error:
                raise ValueTooLargeError(f"The result {error}.") from None
            if bulk:
                text = f'{value.text[:-1]},"{BULK}":"{bulk}"}}'
                value = FrozenJson(text, value.size_bytes)
            entry = replace(entry, value=value)
        self._stored_bytes += ROW_BYTES + (0 if value is None else value.size_bytes)
        self._entries[node_id] = entry
        self._unwritten.add(node_id)
        if self._soon is None:
            self.touch()

    def note_request(self, node_id: str, request: Mapping[str, Any]) -> None:
        """Buffer the request of a call. It is stored with the next write and then dropped."""
        self._requests[node_id] = request
        self._stored_bytes += least_bytes(request)

    def emit(self, event: Event) -> None:
        """Buffer an event. Events after the end of the run are dropped.

        Raises:
            ValueError: the data is not JSON, or the event type is reserved or malformed.
        """
        if self._closed:
            return
        self._events.add(event)
        if event.type in STREAMED:
            self._stop_waiting()
            self.touch(AT_ONCE_SECONDS)
        elif self._soon is None:
            self.touch()

    @property
    def stored_seq(self) -> int:
        """Sequence number of the last event that is known to be stored."""
        return self._events.stored_seq

    def touch(self, seconds: float = SOON_SECONDS) -> None:
        """Schedule a write of the pending changes, at most ``seconds`` from now."""
        if self._soon is None and self._writing is None and not self._closed:
            self._soon = asyncio.get_running_loop().call_later(seconds, self._write_soon)

    def _stop_waiting(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

    async def barrier(self, *, external: bool) -> None:
        """Check that the run may continue; before an external call, also store all changes.

        Raises:
            CancelledError: the run has a cancel request.
            LostRunError: the run belongs to another worker.
            RunTooLargeError: the run has reached its storage limit.
        """
        stored_bytes = self._stored_bytes + self._events.size_bytes
        if stored_bytes > self._limits.max_run_bytes:
            raise RunTooLargeError(stored_bytes, self._limits.max_run_bytes)
        if not external and self._is_fresh():
            return
        for _ in range(ASKS):
            await self._store_changes()
            if self._is_fresh():
                return

    async def reserve(self, hold: Hold) -> HoldAnswer:
        """Pass the barrier of an external call, and reserve ``hold`` in the accounts of the run.

        Raises:
            CancelledError: the run has a cancel request.
            LostRunError: the run belongs to another worker, or has ended.
            RunTooLargeError: the run has reached its storage limit.
        """
        self._holds[hold.key] = hold
        try:
            await self.barrier(external=True)
            if (answer := self._answers.get(hold.key)) is None:  # the journal is closed
                raise lost_run(self._token)
            return answer
        finally:
            self._holds.pop(hold.key, None)
            self._answers.pop(hold.key, None)

    def settle(self, hold: Hold, charge: Charge) -> None:
        """Replace a hold, which may not be stored, by the actual charge in the next write."""
        self._settled[hold.key] = Hold.of_charge(hold.node_id, hold.attempt, charge)

    @property
    def settled(self) -> tuple[Hold, ...]:
        """Settled holds that may not be stored yet."""
        return tuple(self._settled.values())

    def _is_fresh(self) -> bool:
        return self._clock() - self._permitted_at <= PERMISSION_SECONDS

    def close(self, graph: ExecutionGraph | None = None) -> tuple[CallRecord, ...]:
        """Stop writing in the background; return the changes that may not be stored yet.

        ``graph`` replaces the current graph; all its nodes then count as changed.
        """
        if graph is not None and graph is not self._graph:
            self._graph, self._revision = graph, 0
            self._events.node_of = graph.node
        self._closed = True
        self._stop_waiting()
        if self._before_write is not None:
            self._restore(self._before_write)
        return self._changes()

    def end(
        self, graph: ExecutionGraph, reason: str, end: Event
    ) -> tuple[tuple[CallRecord, ...], tuple[EventRecord, ...]]:
        """Close the journal at the end of the run; return what may not be stored yet.

        The events are followed by the ends of everything that is still open, for ``reason``, and by
        ``end``. ``graph`` is as in :meth:`close`.
        """
        calls = self.close(graph)
        self.end_open(reason)
        return calls, self._events.followed_by(end)

    def end_open(self, reason: str) -> None:
        """Emit the ends of everything that is still open when the run ends by ``reason``."""
        self._events.end(self._events.open_starts.all(), reason)

    def unstored_events(self) -> tuple[EventRecord, ...]:
        """Return the events that may not be stored yet."""
        return self._events.unconfirmed()

    def end_calls(self, reason: str) -> None:
        """Emit the ends of open calls when the run is released; the next owner repeats them."""
        self._events.end(self._events.open_starts.calls(), reason)

    async def _store_changes(self) -> None:
        """Store all changes, and treat the answer as a permission to continue.

        If another caller's write started after this call, it includes these changes, so its
        answer is used.

        Raises:
            CancelledError: the run has a cancel request.
            LostRunError: the run belongs to another worker.
        """
        started_before = self._writes_started
        while self._in_flight is not None:
            # All waiters wake at once, and one of them writes: check again.
            await asyncio.shield(self._in_flight)
            if self._last_granted > started_before:
                return
        self._in_flight = in_flight = asyncio.get_running_loop().create_future()
        self._writes_started += 1
        self._stop_waiting()  # this write takes everything that the timer waits to store
        self._before_write = before = _StateBeforeWrite(self._revision, frozenset(self._unwritten))
        try:
            # Once the journal is closed, only ask for permission: the final update carries the
            # calls, and their events must not be stored without them.
            write = JournalWrite(
                key=self._run.key,
                fence=self._run.fence,
                calls=() if self._closed else self._changes(),
                events=() if self._closed else self._events.unconfirmed(),
                accounts=self._run.accounts,
                holds=() if self._closed else tuple(self._holds.values()),
                settled=() if self._closed else self.settled,
            )
            permission = await self._store.write(write)
        except BaseException:
            self._restore(before)
            self.touch()
            raise
        finally:
            self._before_write = None
            self._in_flight = None
            in_flight.set_result(None)
        if permission.owned:
            self._events.confirm(write.events)
            self._confirm_holds(write, permission)
            if self._requests:
                for record in write.calls:
                    self._requests.pop(record.node["node_id"], None)
        else:
            self._restore(before)
        self._trip_if_refused(permission)
        self._last_granted = self._writes_started
        answered_at = permission.answered_at
        self._permitted_at = max(
            self._permitted_at, self._clock() if answered_at is None else answered_at
        )

    def _confirm_holds(self, write: JournalWrite, permission: Permission) -> None:
        for key, answer in permission.holds.items():
            if self._holds.pop(key, None) is not None:
                self._answers[key] = answer
        for hold in write.settled:
            if self._settled.get(hold.key) is hold:
                del self._settled[hold.key]

    def _restore(self, before: "_StateBeforeWrite") -> None:
        self._revision = min(self._revision, before.revision)
        self._unwritten |= before.unwritten

    def _trip_if_refused(self, permission: Permission) -> None:
        if not permission.owned:
            raise lost_run(self._token)
        if permission.cancel_request is not None:
            self._token.trip(permission.cancel_request.stop)
            self._token.check()  # returns while the run repeats recorded work

    def _changes(self) -> tuple[CallRecord, ...]:
        self._revision, nodes = self._graph.changed_since(self._revision)
        changed = {node["node_id"]: node for node in nodes}
        for node_id in self._unwritten - changed.keys():
            changed[node_id] = self._graph.node(node_id)
        self._unwritten.clear()
        # In the order of creation: IDs beyond n999999 get longer.
        in_order = sorted(sorted(changed), key=len)
        return tuple([self._record(changed[node_id]) for node_id in in_order])

    def _record(self, node: TraceNode) -> CallRecord:
        entry = self._entries.get(node["node_id"])
        request = self._requests.get(node["node_id"])
        if entry is None:
            return CallRecord(node=node, request=request)
        return CallRecord(
            node=node,
            request=request,
            call_key=entry.call_key,
            request_hash=entry.request_hash,
            charge=stored_charge(entry.charge),
            outcome=entry.outcome.value if entry.outcome else None,
            value=entry.value,
        )

    def _write_soon(self) -> None:
        self._soon = None
        self._writing = asyncio.create_task(self._write(), name="journal")
        self._writing.add_done_callback(self._written)

    async def _write(self) -> bool:
        """Store all changes; return False if retrying soon is pointless."""
        try:
            await self._store_changes()
        except (HandOver, CancelledError):
            return False  # the token is tripped, and the final update carries the rest
        except Exception as error:  # the next barrier or the final update retries
            log.warning("journal.refused", error=type(error).__name__)
            return False
        return True

    def _written(self, writing: "asyncio.Task[bool]") -> None:
        self._writing = None
        more = self._unwritten or self._events or self._graph.revision > self._revision
        if more and not writing.cancelled() and writing.result():
            self.touch(AT_ONCE_SECONDS if self._events.streams else SOON_SECONDS)


@dataclass(frozen=True, slots=True, eq=False)
class _StateBeforeWrite:
    """The state before a write in flight, to restore if the write fails."""

    revision: int
    unwritten: frozenset[str]


def stored_charge(charge: Charge) -> dict[str, object]:
    """Convert a charge to its stored form, with costs as text.

    The previous release does not know ``llm_calls``, so that value is not stored but derived from
    the calls per tier. This works because an entry counts at most one logical call. A call of a
    model without a tier is stored as zero calls of the small tier.
    """
    stored: dict[str, object] = {}
    for dimension, amount in charge.items():
        if dimension is not Dimension.LLM_CALLS:
            stored[dimension.value] = str(amount) if isinstance(amount, Decimal) else amount
    if charge.get(Dimension.LLM_CALLS) and charge.keys().isdisjoint(TIERS):
        stored[Dimension.LLM_CALLS_SMALL.value] = 0
    return stored
