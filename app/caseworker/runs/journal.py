"""The journal of one run during its execution: buffers changes and stores them.

Changes and events are stored at three points: at a barrier (before an external call), shortly after
they happen (so that the trace can be followed on any replica), and at the end of the run. Each
write contains only changes, so a long run costs no more per call than a short one. Changes whose
write failed or was not confirmed are included in the next write.

One write is in flight at a time; concurrent callers share the next one. So no change is stored
before the changes that caused it, even if steps run in parallel. Changes that are recorded without
an ``await`` in between are stored together.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from caseworker.core.budget.stops import CancelledError, HandOver, Stop, StopCause, StopKind
from caseworker.core.budget.usage import NOTHING, Charge
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.frozen_json import (
    USUAL_LIMITS,
    FrozenJson,
    ValueLimits,
    ValueTooLargeError,
    freeze,
    least_bytes,
)
from caseworker.core.trace.node import TERMINAL, Node
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.events import STREAMED, Event
from caseworker.engine.ports import CallOutcome, Entry, Recorded
from caseworker.engine.step_path import StepPath
from caseworker.runs.event_log import EventLog
from caseworker.runs.ports import JournalStore, JournalWrite, Permission
from caseworker.runs.replay import entries_of, spent_by_path, stored_charge, tries_of
from caseworker.runs.run import CallRecord, EventRecord, Run

log = structlog.get_logger(__name__)

PERMISSION_SECONDS = 0.1
"""Maximum age, in seconds, of the database's permission when a call starts.

The permission is the response to a journal write: the run is still owned and has no cancel request.
A cancel request that is stored later can be missed for this long. A busy event loop or a delayed
response makes a permission older.
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
        limits: ValueLimits = USUAL_LIMITS,
    ) -> None:
        """Open the journal of a claimed run.

        ``earlier`` is the journal of previous executions. ``permitted_at`` is the time, on
        ``clock``, at which the claim was sent or answered.
        """
        self._run = run
        self._graph = graph
        self._token = token
        self._store = store
        self._clock = clock
        self._permitted_at = permitted_at
        self._entries = entries_of(earlier)
        self._requests: dict[str, Mapping[str, Any]] = {}
        self._unwritten = _not_stored(graph, earlier)
        self._revision = graph.revision
        self._idle = asyncio.Event()
        """Set while no write is in flight."""
        self._idle.set()
        self._sent: _Sent | None = None
        self._writes_begun = self._last_granted = 0
        self._earlier = earlier
        self._spent: Mapping[str, Charge] | None = None  # computed for the first request
        self._recorded = tries_of(earlier)
        self._limits = limits
        self._stored_bytes = sum(ROW_BYTES + least_bytes(record.value) for record in earlier)
        self._events = EventLog(
            last_seq=run.last_seq,
            stored_once=run.stored_once,
            streamed=run.streamed,
            limits=limits,
        )
        self._soon: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[bool] | None = None
        self._closed = False

    def recorded(self, call_key: str) -> Recorded | None:
        """Return the journal entry of a call or step from an earlier execution, or None."""
        return self._recorded.get(call_key)

    def spent_below(self, path: StepPath) -> Charge:
        """Return what earlier executions charged for the calls and steps inside a step."""
        if self._spent is None:
            self._spent = spent_by_path(self._earlier)
        return self._spent.get(path.text, NOTHING)

    def note(self, node_id: str, entry: Entry) -> None:
        """Buffer the journal entry of a CallNode.

        Raises:
            ValueTooLargeError: the value exceeds a limit.
            ValueError: the value is not JSON.
        """
        frozen = self._frozen(entry)
        self._stored_bytes += ROW_BYTES + (0 if frozen is None else frozen.size_bytes)
        self._entries[node_id] = entry if frozen is entry.value else replace(entry, value=frozen)
        self._unwritten.add(node_id)
        self.touch()

    def note_request(self, node_id: str, request: Mapping[str, Any]) -> None:
        """Buffer the request of a call. It is stored with the next write and then dropped."""
        self._requests[node_id] = request
        self._stored_bytes += least_bytes(request)

    def _frozen(self, entry: Entry) -> FrozenJson | None:
        """Return the value in its stored form; the graph has already frozen values of steps."""
        value, limits = entry.value, self._limits
        if value is None or type(value) is FrozenJson:
            return value
        most, key = limits.max_outputs_bytes, "limits.max_outputs_kb"
        if entry.outcome is CallOutcome.RESULT:
            most, key = limits.max_value_bytes, "limits.max_value_kb"
        try:
            return freeze(value, max_bytes=most, max_depth=limits.max_depth + 4, key=key)
        except ValueTooLargeError as error:
            raise ValueTooLargeError(f"The result {error}.") from None

    def emit(self, event: Event) -> None:
        """Buffer an event. Events after the end of the run are dropped.

        Raises:
            ValueError: its data is not JSON, or its type is reserved or malformed.
        """
        if self._closed:
            return
        self._events.add(event)
        if event.type in STREAMED and self._soon is not None:
            self._soon.cancel()
            self._soon = None
        self.touch(AT_ONCE_SECONDS if event.type in STREAMED else SOON_SECONDS)

    def touch(self, seconds: float = SOON_SECONDS) -> None:
        """Schedule a write of the pending changes, at most ``seconds`` from now."""
        if self._soon is None and self._writing is None and not self._closed:
            self._soon = asyncio.get_running_loop().call_later(seconds, self._write_soon)

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

    def _is_fresh(self) -> bool:
        return self._clock() - self._permitted_at <= PERMISSION_SECONDS

    def close(self, graph: ExecutionGraph | None = None) -> tuple[CallRecord, ...]:
        """Stop writing in the background; return the changes that may not be stored yet.

        ``graph`` replaces the current graph; all its nodes then count as changed.
        """
        if graph is not None and graph is not self._graph:
            self._graph, self._revision = graph, 0
        self._closed = True
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._sent is not None:
            self._take_back(self._sent)
        return self._changes()

    def unstored_events(self, end: Event | None = None) -> tuple[EventRecord, ...]:
        """Return the events that may not be stored yet, followed by ``end`` if it is given."""
        return self._events.unconfirmed() if end is None else self._events.followed_by(end)

    async def _store_changes(self) -> None:
        """Store all changes, and treat the answer as a permission to continue.

        If another caller's write started after this call, it includes these changes, so its
        answer is used.

        Raises:
            CancelledError: the run has a cancel request.
            LostRunError: the run belongs to another worker.
        """
        begun_before = self._writes_begun
        while not self._idle.is_set():
            await self._idle.wait()  # all waiters wake at once and one of them writes: check again
            if self._last_granted > begun_before:
                return
        self._idle.clear()
        try:
            self._writes_begun += 1
            permission = await self._write_next()
            self._judge(permission)
            self._last_granted = self._writes_begun
            answered_at = permission.answered_at
            self._permitted_at = max(
                self._permitted_at, self._clock() if answered_at is None else answered_at
            )
        finally:
            self._idle.set()

    async def _write_next(self) -> Permission:
        """Write all changes; once the journal is closed, only ask for permission.

        After :meth:`close` the final update carries the calls, and their
        events must not be stored without them.
        """
        self._sent = sent = _Sent(self._revision, frozenset(self._unwritten))
        try:
            write = JournalWrite(
                key=self._run.key,
                fence=self._run.fence,
                calls=() if self._closed else self._changes(),
                events=() if self._closed else self._events.unconfirmed(),
            )
            permission = await self._store.write(write)
        except BaseException:
            self._take_back(sent)
            raise
        finally:
            self._sent = None
        if permission.owned:
            self._events.confirm(write.events)
            if self._requests:
                for record in write.calls:
                    self._requests.pop(record.node_id, None)
        else:
            self._take_back(sent)
        return permission

    def _take_back(self, sent: "_Sent") -> None:
        self._revision = min(self._revision, sent.revision)
        self._unwritten |= sent.unwritten

    def _judge(self, permission: Permission) -> None:
        if not permission.owned:
            raise lost_run(self._token)
        if permission.cancel_request is not None:
            self._token.trip(permission.cancel_request.stop)
            raise permission.cancel_request.stop

    def _changes(self) -> tuple[CallRecord, ...]:
        self._revision, nodes = self._graph.changed_since(self._revision)
        changed = {node["node_id"]: node for node in nodes}
        for node_id in self._unwritten - changed.keys():
            changed[node_id] = self._graph.node(node_id)
        self._unwritten.clear()
        return tuple(
            _record(changed[node_id], self._entries, self._requests)
            for node_id in sorted(changed, key=_order)
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
        more = self._unwritten or self._graph.revision > self._revision or self._events
        if more and not writing.cancelled() and writing.result():
            self.touch(AT_ONCE_SECONDS if self._events.streams else SOON_SECONDS)


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """The state before a write in flight, to restore if the write fails."""

    revision: int
    unwritten: frozenset[str]


def _record(
    node: Node, entries: dict[str, Entry], requests: dict[str, Mapping[str, Any]]
) -> CallRecord:
    entry, request = entries.get(node["node_id"]), requests.get(node["node_id"])
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


def _order(node_id: str) -> tuple[int, str]:
    """Return the sort key for creation order: IDs beyond n999999 get longer."""
    return len(node_id), node_id


def _not_stored(graph: ExecutionGraph, earlier: Sequence[CallRecord]) -> set[str]:
    """Return the nodes whose stored state is missing or outdated."""
    if not earlier:
        return {graph.root_id} if graph.root_id is not None else set()
    return {record.node_id for record in earlier if record.node["status"] not in TERMINAL}
