"""Services broken on purpose, to show that the chaos sees it: ``--broken NAME``.

``python -m tests.chaos --seconds 60 --broken fence`` must end with 1. Each variant takes away one
of the things that a promise rests on.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import app.adapters.postgres.journal as postgres_journal
import app.adapters.postgres.workers as postgres_workers
import app.api.routes.runs as run_routes
import app.runs.execution as execution
from app.adapters.postgres.journal import ClaimedInsert, PostgresJournal
from app.engine.ports import CallOutcome, Recorded
from app.runs.journal import RunJournal
from app.runs.service import RunService
from app.runs.silence import SilenceWatch


def break_on_purpose(variant: str) -> None:
    """Give this process a fault."""
    VARIANTS[variant]()


def _put(owner: Any, name: str, value: Any) -> None:
    """Set what has to be there already: a name that has changed is an error."""
    assert hasattr(owner, name), name
    setattr(owner, name, value)


def _fence() -> None:
    """Whoever had a run once goes on to write into it."""
    for name in ("JOURNAL", "FINISH", "RUN_STATES"):
        statement = getattr(postgres_journal, name)
        for fenced, open_ in (
            ("AND runs.fence = asked.fence", ""),
            ("runs.run_id, runs.fence", "runs.run_id, asked.fence"),
            ("AND runs.fence = e.fence", ""),
            (
                "RETURNING runs.tenant_id, runs.run_id, asked.fence",
                "RETURNING e.tenant_id, e.run_id, e.fence",
            ),
        ):
            statement = statement.replace(fenced, open_)
        _put(postgres_journal, name, statement)


def _barrier() -> None:
    """Every call may begin, whatever was asked for meanwhile."""

    def judge(journal: RunJournal, permission: object) -> None:
        return None

    _put(RunJournal, "_judge", judge)


def _replay() -> None:
    """What an earlier worker has done is done again."""

    def recorded(journal: RunJournal, call_key: str) -> None:
        return None

    _put(RunJournal, "recorded", recorded)


def _key() -> None:
    """Idempotency keys mean nothing."""

    def no_key(headers: object) -> None:
        return None

    _put(run_routes, "idempotency_key", no_key)


def _acknowledge() -> None:
    """A run is acknowledged before it is stored."""
    insert = PostgresJournal.insert
    under_way: set[asyncio.Task[Any]] = set()

    async def at_once(
        journal: PostgresJournal, new: ClaimedInsert, *, timeout_seconds: float
    ) -> datetime:
        task = asyncio.create_task(insert(journal, new, timeout_seconds=timeout_seconds))
        under_way.add(task)
        return datetime.now(UTC)

    _put(PostgresJournal, "insert", at_once)


def _silence() -> None:
    """An outage of the database is taken for the silence of the others."""

    def interrupted(watch: SilenceWatch) -> None:
        return None

    def is_unheard(watch: SilenceWatch, beats: object, now: float) -> bool:
        return False

    _put(SilenceWatch, "interrupted", interrupted)
    _put(SilenceWatch, "_is_unheard", is_unheard)


def _recovery() -> None:
    """Nobody takes the runs of the dead."""

    async def take_nothing(*arguments: object, **options: object) -> dict[Any, Any]:
        return {}

    _put(postgres_workers, "take_lost", take_nothing)


def _stream() -> None:
    """Who follows again after a cut misses an event."""
    events = RunService.events

    async def one_too_far(service: RunService, key: Any, *, after: int, limit: int) -> Any:
        return await events(service, key, after=after + (after > 0), limit=limit)

    _put(RunService, "events", one_too_far)


def _spent() -> None:
    """What a run has spent under an earlier worker is forgotten."""
    _put(execution, "spent_before", lambda earlier: {})


def _once() -> None:
    """A tool that must not be repeated is repeated when its outcome is unknown."""
    recorded = RunJournal.recorded

    def forgetful(journal: RunJournal, call_key: str) -> Recorded | None:
        found = recorded(journal, call_key)
        unknown = found is not None and found.outcome is CallOutcome.UNKNOWN
        return None if unknown and "/tool/" in call_key else found

    _put(RunJournal, "recorded", forgetful)


VARIANTS: dict[str, Callable[[], None]] = {
    "acknowledge": _acknowledge,
    "barrier": _barrier,
    "fence": _fence,
    "key": _key,
    "once": _once,
    "recovery": _recovery,
    "replay": _replay,
    "silence": _silence,
    "spent": _spent,
    "stream": _stream,
}
