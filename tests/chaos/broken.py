"""Services broken on purpose, to test the chaos itself: ``--broken NAME``, ``--broken all``.

Each variant has the faults that reveal it, and the rows of the promises that depend on the
removed safeguard; one of these rows must detect it. ``make test`` tries one variant per commit, in
turn. ``make chaos ARGS="--broken all --seed 1"`` tries every one; with that seed it was detected by

| variant     | rows that saw it     |
|-------------|----------------------|
| acknowledge | 1, 4, 8, 18, 19      |
| anew        | 24                   |
| barrier     | 2                    |
| counted     | 11, 21               |
| error       | 4, 17, 18            |
| fence       | 7, 9, 23             |
| key         | 7, 8, 9, 23          |
| line        | 20                   |
| once        | 9                    |
| open        | 6                    |
| recovery    | 2, 7, 10, 19         |
| replay      | 9                    |
| silence     | 21                   |
| spent       | 7, 23                |
| stream      | 12                   |
| untold      | 5                    |

Rows 13, 14 and 22 (overload, the IDs of other tenants, hostile values) have separate tests,
because this world has no overload, no second tenant and no hostile input.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import caseworker.runs.execute.execution as execution
import caseworker.runs.execute.postgres.runs as postgres_runs
import caseworker.runs.http.runs as run_routes
import caseworker.runs.journal.postgres as postgres_journal
import caseworker.runs.recover.postgres as postgres_workers
from caseworker.core.budget.reservations import Account, Reservation, ReservationQueue
from caseworker.core.budget.usage import Charge
from caseworker.core.trace.execution_graph import CallTree, ExecutionGraph
from caseworker.engine.call import Call
from caseworker.engine.calls import Calls
from caseworker.engine.events import STEP_COMPLETED, Event
from caseworker.engine.ports import CallOutcome, Recorded
from caseworker.runs.accept.postgres.batch_accept import RunInsert
from caseworker.runs.journal.journal import RunJournal
from caseworker.runs.journal.postgres import PostgresJournal
from caseworker.runs.ports import Beat
from caseworker.runs.postgres.run_statements import RELEASE
from caseworker.runs.recover.failure_detector import SilenceWatch
from caseworker.runs.recover.postgres import PostgresWorkers
from caseworker.runs.run import Run, RunKey
from caseworker.runs.service import RunService


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to break the service."""

    rows: frozenset[str]
    """Rows of the table of promises; one of them detects the variant."""
    faults: tuple[str, ...]
    """The faults that reveal it."""
    seconds: float
    """How long a storm of these faults takes to reveal it, in seconds."""
    apply: Callable[[], None]
    """Breaks the calling process."""


VARIANTS: dict[str, Variant] = {}


def _breaks(
    *rows: str, by: tuple[str, ...] = ("slow",), seconds: float = 10
) -> Callable[[Callable[[], None]], None]:
    def register(apply: Callable[[], None]) -> None:
        VARIANTS[apply.__name__.strip("_")] = Variant(frozenset(rows), by, seconds, apply)

    return register


def _put(owner: Any, name: str, value: Any) -> None:
    """Replace an existing attribute; fail if it was renamed."""
    assert getattr(owner, name) != value, name
    setattr(owner, name, value)


@_breaks("1", by=("refused", "postmaster killed"))
def _acknowledge() -> None:
    """Acknowledge runs before they are stored."""
    insert = PostgresJournal.insert
    under_way: set[asyncio.Task[Any]] = set()

    async def at_once(
        journal: PostgresJournal, new: RunInsert, *, timeout_seconds: float
    ) -> datetime:
        under_way.add(asyncio.create_task(insert(journal, new, timeout_seconds=timeout_seconds)))
        return datetime.now(UTC)

    _put(PostgresJournal, "insert", at_once)


@_breaks("2", by=("nothing heard",))
def _barrier() -> None:
    """Permit every call unless the notification of a cancel request has arrived."""
    beat = PostgresWorkers.beat

    async def none_cancelled(workers: PostgresWorkers, worker_id: str) -> Beat:
        return replace(await beat(workers, worker_id), cancelled={})

    _put(RunJournal, "_trip_if_refused", lambda journal, permission: None)
    _put(PostgresWorkers, "beat", none_cancelled)


@_breaks("7", "9", "23", by=("frozen until taken over",), seconds=15)
def _fence() -> None:
    """Let a worker that has lost its run continue to write to it."""
    found = "runs.tenant_id, runs.run_id, runs.fence", "runs.tenant_id, runs.run_id, asked.fence"
    asked = "AND runs.fence = asked.fence", ""
    ended = (
        "AND runs.fence = e.fence\n    RETURNING runs.tenant_id, runs.run_id, runs.fence",
        ("\n    RETURNING e.tenant_id, e.run_id, e.fence"),
    )
    for name in ("JOURNAL", "FINISH", "RUN_STATES"):
        statement = getattr(postgres_journal, name)
        for old, new in (ended, found, asked) if name == "FINISH" else (found, asked):
            assert statement.count(old) == 1, f"{old!r} in {name}"
            statement = statement.replace(old, new)
        _put(postgres_journal, name, statement)


@_breaks("8")
def _key() -> None:
    """Ignore idempotency keys."""
    _put(run_routes, "idempotency_key", lambda headers: None)


@_breaks("9", by=("killed in a call",), seconds=15)
def _once() -> None:
    """Repeat a non-repeatable tool whose outcome is unknown."""
    recorded = RunJournal.recorded

    def forgetful(journal: RunJournal, call_key: str) -> Recorded | None:
        found = recorded(journal, call_key)
        unknown = found is not None and found.outcome is CallOutcome.UNKNOWN
        return None if unknown and "/tool/" in call_key else found

    _put(RunJournal, "recorded", forgetful)


@_breaks("10", by=("killed between turns", "killed in a call"))
def _recovery() -> None:
    """Never recover the runs of dead workers."""

    async def take_nothing(*arguments: object, **options: object) -> dict[Any, Any]:
        return {}

    _put(postgres_workers, "take_lost", take_nothing)


@_breaks("9", by=("killed between turns",), seconds=15)
def _replay() -> None:
    """Repeat the calls that an earlier worker finished."""
    earlier_try_of = Calls._earlier_try_of

    def unknown(calls: Calls, call: Call) -> Recorded | None:
        found = earlier_try_of(calls, call)
        recorded = found is not None and not found.imported
        return replace(found, outcome=CallOutcome.UNKNOWN) if found and recorded else found

    _put(Calls, "_earlier_try_of", unknown)


@_breaks("21", by=("read only", "refused"), seconds=20)
def _silence() -> None:
    """Treat a database outage as silence of the other workers."""
    _put(SilenceWatch, "interrupted", lambda watch: None)
    _put(SilenceWatch, "_is_unheard", lambda watch, beats, now: False)


@_breaks("7", "23", by=("killed between turns", "killed in a call"), seconds=15)
def _spent() -> None:
    """Forget the run's spending under an earlier worker."""
    _put(execution, "spent_before", lambda earlier: {})


@_breaks("12")
def _stream() -> None:
    """Skip an event when a client follows again after a broken stream."""
    events = RunService.events

    async def one_too_far(service: RunService, key: Any, *, after: int, limit: int) -> Any:
        return await events(service, key, after=after + (after > 0), limit=limit)

    _put(RunService, "events", one_too_far)


@_breaks("5")
def _untold() -> None:
    """Omit the event of a completed step; the database rejects a second start event."""
    emit = RunJournal.emit

    def mostly(journal: RunJournal, event: Event) -> None:
        if event.type != STEP_COMPLETED:
            emit(journal, event)

    _put(RunJournal, "emit", mostly)


@_breaks("6", by=("slow", "terminated"))
def _open() -> None:
    """Leave interrupted nodes open below a root that has ended."""
    mark_halt = ExecutionGraph.mark_halt

    def of_the_root(graph: ExecutionGraph, node_id: str, reason: str, **usage: Any) -> bool:
        return node_id != graph.root_id or mark_halt(graph, node_id, reason, **usage)

    _put(ExecutionGraph, "mark_halt", of_the_root)
    _put(CallTree, "close_open", lambda tree, reason, top_id, now_ms: [])


@_breaks("11", by=("terminated",), seconds=15)
def _counted() -> None:
    """Count an attempt for each run that a stopping process hands over."""
    uncounted = "attempts = attempts - (NOT counted)::integer"
    assert RELEASE.count(uncounted) == 1
    _put(postgres_runs, "RELEASE", RELEASE.replace(uncounted, "attempts = attempts"))


@_breaks("17")
def _error() -> None:
    """Fail one in ten reads of a run with a server error."""
    get, chance = RunService.get, random.Random(17)

    async def fragile(service: RunService, key: RunKey) -> Run:
        if chance.random() < 0.1:
            raise RuntimeError("broken on purpose")
        return await get(service, key)

    _put(RunService, "get", fragile)


@_breaks("20", seconds=20)
def _line() -> None:
    """Refuse a lane at once if other lanes hold reservations, instead of queueing it."""

    def at_once(
        line: ReservationQueue,
        accounts: Sequence[Account],
        least: Charge,
        wanted: object,
        *,
        tracked: bool,
    ) -> Reservation:
        return line.reserve(accounts, least)

    _put(ReservationQueue, "ask", at_once)


@_breaks("24", seconds=20)
def _anew() -> None:
    """Repeat the imported calls of a forked run."""
    recorded = RunJournal.recorded

    def forgetful(journal: RunJournal, call_key: str) -> Recorded | None:
        found = recorded(journal, call_key)
        return None if found is not None and found.imported else found

    _put(RunJournal, "recorded", forgetful)
