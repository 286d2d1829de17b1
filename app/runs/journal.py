"""The durable memory of one run while it is executed.

What the run does is gathered here and stored in three ways: with a barrier (before an external
call), soon after it happened (so that the trace can be followed from any replica), and with the
run's end. All of them write only what has changed, so a long run costs no more per call than a
short one.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from decimal import Decimal

from app.control.stops import CancelledError, HandOver
from app.engine.cancellation import CancellationToken
from app.engine.ports import CallOutcome, Entry, Recorded
from app.runs.ports import JournalStore, JournalWrite, Permission
from app.runs.run import CallRecord, RunKey
from app.trace.execution_graph import ExecutionGraph
from app.trace.node import Node

PERMISSION_SECONDS = 0.1
"""How old the database's permission to go on may be when a call begins (spec, section 5)."""

ASKS = 20
"""How often a barrier asks a database that takes longer than that to answer."""

SOON_SECONDS = 0.05
"""How long a change waits for others before it is stored without a barrier."""


class LostRunError(HandOver):
    """The run belongs to another worker now, or has ended; nothing more may be written."""

    def __init__(self) -> None:
        super().__init__("The run belongs to another worker now.")


class RunJournal:
    """Implements the engine's journal for one execution of one run."""

    def __init__(
        self,
        *,
        key: RunKey,
        fence: int,
        graph: ExecutionGraph,
        token: CancellationToken,
        store: JournalStore,
        earlier: Sequence[CallRecord],
        permitted_at: float,
        snapshot_interval_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the journal.

        ``earlier`` is what previous executions left; ``permitted_at`` is when, on ``clock``, the
        statement was sent that claimed the run.
        """
        self._key = key
        self._fence = fence
        self._graph = graph
        self._token = token
        self._store = store
        self._clock = clock
        self._permitted_at = permitted_at
        self._entries: dict[str, Entry] = {}
        self._unwritten: set[str] = set()
        self._revision = 0
        self._recorded = _by_key(earlier)
        self._soon: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._snapshots = _Snapshots(clock, snapshot_interval_seconds)
        self._closed = False

    def recorded(self, call_key: str) -> Recorded | None:
        """Return what an earlier execution left of a call or step."""
        return self._recorded.get(call_key)

    def note(self, node_id: str, entry: Entry) -> None:
        """Remember what belongs to a CallNode beside the node itself."""
        self._entries[node_id] = entry
        self._unwritten.add(node_id)
        self.touch()

    def touch(self) -> None:
        """Have the changes of the graph stored soon."""
        if self._soon is None and self._writing is None and not self._closed:
            self._soon = asyncio.get_running_loop().call_later(SOON_SECONDS, self._write_soon)

    async def barrier(self, *, external: bool) -> None:
        """Pass only with a fresh permission; store everything first if the call is external.

        Raises:
            CancelledError: somebody asked the run to stop.
            HandOver: the run was lost to another worker, or the database is too slow to tell.
        """
        if not external and self._clock() - self._permitted_at <= PERMISSION_SECONDS:
            return
        for _ in range(ASKS):
            asked_at = self._clock()
            self._judge(await self._store.write(self._next_write()))
            self._permitted_at = asked_at
            if self._clock() - asked_at <= PERMISSION_SECONDS:
                return
        raise HandOver("The database answers too slowly to tell whether the run may go on.")

    def close(self, graph: ExecutionGraph | None = None) -> tuple[CallRecord, ...]:
        """Write nothing more by itself; return what is not stored yet.

        ``graph`` takes the place of the graph so far, and is not stored at all yet.
        """
        if graph is not None and graph is not self._graph:
            self._graph, self._revision = graph, 0
        self._closed = True
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        return self._changes()

    def _judge(self, permission: Permission) -> None:
        if not permission.owned:
            lost = LostRunError()
            self._token.trip(lost)
            raise lost
        if permission.wish is not None:
            wish = permission.wish
            self._token.cancel(wish.reason, requested_by=wish.requested_by)
            raise CancelledError(wish.reason, requested_by=wish.requested_by)

    def _next_write(self) -> JournalWrite:
        calls = self._changes()
        snapshot = self._graph.snapshot() if calls and self._snapshots.due() else None
        return JournalWrite(key=self._key, fence=self._fence, calls=calls, snapshot=snapshot)

    def _changes(self) -> tuple[CallRecord, ...]:
        self._revision, nodes = self._graph.changed_since(self._revision)
        changed = {node["node_id"]: node for node in nodes}
        for node_id in self._unwritten - changed.keys():
            changed[node_id] = self._graph.node(node_id)
        self._unwritten.clear()
        return tuple(
            _record(changed[node_id], self._entries) for node_id in sorted(changed, key=_order)
        )

    def _write_soon(self) -> None:
        self._soon = None
        self._writing = asyncio.create_task(self._write(), name="journal")
        self._writing.add_done_callback(self._written)

    async def _write(self) -> None:
        asked_at = self._clock()
        try:
            self._judge(await self._store.write(self._next_write()))
        except (HandOver, CancelledError):
            return  # the token knows
        self._permitted_at = asked_at

    def _written(self, _: "asyncio.Task[None]") -> None:
        self._writing = None
        if self._unwritten:
            self.touch()


class _Snapshots:
    """Says when a snapshot is worth its write: rarely, and ever more rarely as a run gets old."""

    def __init__(self, clock: Callable[[], float], interval_seconds: float) -> None:
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._began = self._last = clock()

    def due(self) -> bool:
        now = self._clock()
        age_seconds = now - self._began
        if now - self._last < max(self._interval_seconds, 0.1 * age_seconds):
            return False
        self._last = now
        return True


def _record(node: Node, entries: dict[str, Entry]) -> CallRecord:
    entry = entries.get(node["node_id"])
    if entry is None:
        return CallRecord(node=node)
    return CallRecord(
        node=node,
        call_key=entry.call_key,
        request_hash=entry.request_hash,
        charge=_charge(entry),
        outcome=entry.outcome.value if entry.outcome else None,
        value=entry.value,
    )


def _order(node_id: str) -> tuple[int, str]:
    """Order node ids as they were made: beyond n999999 they get longer."""
    return len(node_id), node_id


def _charge(entry: Entry) -> dict[str, object]:
    return {
        dimension.value: str(amount) if isinstance(amount, Decimal) else amount
        for dimension, amount in entry.charge.items()
    }


def _by_key(earlier: Sequence[CallRecord]) -> dict[str, Recorded]:
    """Return the last try of every call and step that an earlier execution began."""
    return {
        record.call_key: Recorded(
            node_id=record.node_id,
            outcome=CallOutcome(record.outcome) if record.outcome else CallOutcome.UNKNOWN,
            request_hash=record.request_hash,
            value=record.value,
        )
        for record in earlier
        if record.call_key is not None
    }
