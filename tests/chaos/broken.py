"""Services broken on purpose, to show that the chaos sees it: ``--broken NAME``.

``python -m tests.chaos --seconds 60 --seed 1 --lanes 8 --broken fence`` ends with 1 if a promise is
broken that rests on what was taken away, and with 2 if it was not seen. With that seed were seen,
barrier and silence in 60 s, the others in 30 to 60 s:

| variant     | rows that saw it     |
|-------------|----------------------|
| acknowledge | 1, 4, 8, 12, 18, 19  |
| barrier     | 2, 7                 |
| fence       | 7, 9, 23             |
| key         | 2, 7, 8, 23          |
| once        | 9                    |
| recovery    | 7, 8, 10, 17, 19     |
| replay      | 9                    |
| silence     | 21                   |
| spent       | 7, 23                |
| stream      | 12                   |
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import app.adapters.postgres.journal as postgres_journal
import app.adapters.postgres.workers as postgres_workers
import app.api.routes.runs as run_routes
import app.runs.execution as execution
from app.adapters.postgres.journal import PostgresJournal, RunInsert
from app.adapters.postgres.workers import PostgresWorkers
from app.engine.call import CallSpec
from app.engine.calls import Calls
from app.engine.ports import CallOutcome, Recorded
from app.runs.journal import RunJournal
from app.runs.ports import Beat
from app.runs.service import RunService
from app.runs.silence import SilenceWatch

VARIANTS: dict[str, tuple[set[str], Callable[[], None]]] = {}
"""For each the rows of the promises of which it breaks one, and what gives it to a process."""


def _breaks(*rows: str) -> Callable[[Callable[[], None]], None]:
    def register(apply: Callable[[], None]) -> None:
        VARIANTS[apply.__name__.strip("_")] = set(rows), apply

    return register


def _put(owner: Any, name: str, value: Any) -> None:
    """Set what has to be there already: a name that has changed is an error."""
    assert getattr(owner, name) != value, name
    setattr(owner, name, value)


@_breaks("1")
def _acknowledge() -> None:
    """A run is acknowledged before it is stored."""
    insert = PostgresJournal.insert
    under_way: set[asyncio.Task[Any]] = set()

    async def at_once(
        journal: PostgresJournal, new: RunInsert, *, timeout_seconds: float
    ) -> datetime:
        under_way.add(asyncio.create_task(insert(journal, new, timeout_seconds=timeout_seconds)))
        return datetime.now(UTC)

    _put(PostgresJournal, "insert", at_once)


@_breaks("2")
def _barrier() -> None:
    """Every call may begin, unless the notification of a cancel has come."""
    beat = PostgresWorkers.beat

    async def none_cancelled(workers: PostgresWorkers, worker_id: str) -> Beat:
        return replace(await beat(workers, worker_id), cancelled={})

    _put(RunJournal, "_judge", lambda journal, permission: None)
    _put(PostgresWorkers, "beat", none_cancelled)


@_breaks("5", "7", "9", "23")
def _fence() -> None:
    """Whoever had a run once goes on to write into it."""
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
    """Idempotency keys mean nothing."""
    _put(run_routes, "idempotency_key", lambda headers: None)


@_breaks("9")
def _once() -> None:
    """A tool that must not be repeated is repeated when its outcome is unknown."""
    recorded = RunJournal.recorded

    def forgetful(journal: RunJournal, call_key: str) -> Recorded | None:
        found = recorded(journal, call_key)
        unknown = found is not None and found.outcome is CallOutcome.UNKNOWN
        return None if unknown and "/tool/" in call_key else found

    _put(RunJournal, "recorded", forgetful)


@_breaks("10")
def _recovery() -> None:
    """Nobody takes the runs of the dead."""

    async def take_nothing(*arguments: object, **options: object) -> dict[Any, Any]:
        return {}

    _put(postgres_workers, "take_lost", take_nothing)


@_breaks("9")
def _replay() -> None:
    """What an earlier worker was answered is asked again."""
    earlier_try_of = Calls._earlier_try_of

    def unknown(calls: Calls, call: CallSpec) -> Recorded | None:
        found = earlier_try_of(calls, call)
        recorded = found is not None and not found.taken_over
        return replace(found, outcome=CallOutcome.UNKNOWN) if found and recorded else found

    _put(Calls, "_earlier_try_of", unknown)


@_breaks("21")
def _silence() -> None:
    """An outage of the database is taken for the silence of the others."""
    _put(SilenceWatch, "interrupted", lambda watch: None)
    _put(SilenceWatch, "_is_unheard", lambda watch, beats, now: False)


@_breaks("7", "23")
def _spent() -> None:
    """What a run has spent under an earlier worker is forgotten."""
    _put(execution, "spent_before", lambda earlier: {})


@_breaks("12")
def _stream() -> None:
    """Who follows again after a cut misses an event."""
    events = RunService.events

    async def one_too_far(service: RunService, key: Any, *, after: int, limit: int) -> Any:
        return await events(service, key, after=after + (after > 0), limit=limit)

    _put(RunService, "events", one_too_far)
