"""How the runs in memory are listed: newest first, page by page."""

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from app.runs.errors import InvalidRunError, RunNotEndedError, RunNotFoundError
from app.runs.ports import Page, RunFilter, json_of_text
from app.runs.run import Run, RunKey, RunKind
from tests.support.memory_rows import Row
from tests.support.memory_traces import transaction

_NOTHING = object()


def fits(run: Run, wanted: RunFilter) -> bool:
    return (
        (wanted.status is None or run.status is wanted.status)
        and (wanted.kind is None or run.kind is wanted.kind)
        and (wanted.agent is None or _agent_of(run) == wanted.agent)
        and all(
            any(_same(run.metadata.get(key, _NOTHING), one) for one in json_of_text(value))
            for key, value in wanted.metadata.items()
        )
        and (wanted.created_after is None or run.created_at > wanted.created_after)
        and (wanted.created_before is None or run.created_at < wanted.created_before)
    )


def may_be_stopped(run: Run, wanted: RunFilter) -> bool:
    return fits(run, wanted) and not run.finished and run.cancel_request is None


def _agent_of(run: Run) -> str | None:
    ref = run.request.definition_ref
    return ref.name if ref is not None and run.kind is RunKind.AGENT else None


def _same(stored: object, wanted: object) -> bool:
    """Whether two JSON values are the same: true is not 1 there."""
    return stored == wanted and isinstance(stored, bool) == isinstance(wanted, bool)


def place(run: Run) -> tuple[datetime, str]:
    return run.created_at, run.key.run_id


def cursor_after(run: Run) -> str:
    place = json.dumps([run.created_at.isoformat(), run.key.run_id])
    return base64.urlsafe_b64encode(place.encode()).decode()


def place_in(cursor: str) -> tuple[datetime, str]:
    try:
        created_at, run_id = json.loads(base64.urlsafe_b64decode(cursor.encode("ascii")))
        return datetime.fromisoformat(created_at).astimezone(UTC), str(run_id)
    except (ValueError, TypeError, OverflowError):
        raise InvalidRunError("cursor", "This is not a cursor of this service.") from None


def within_bytes(runs: Sequence[Run], max_bytes: int | None) -> Sequence[Run]:
    """The runs that begin within so many bytes, as the store counts them."""
    before, found = 0, []
    for run in runs:
        if max_bytes is not None and before >= max_bytes:
            break
        found.append(run)
        before += len(json.dumps(run.metadata)) + 1000
    return found


class MemoryListing:
    """The part of the run store that lists runs, and erases them."""

    rows: dict[RunKey, Row]
    files: dict[tuple[RunKey, str], Any]
    erased: set[RunKey]

    async def find(self, tenant: str, wanted: RunFilter) -> Page:
        after = None if wanted.cursor is None else place_in(wanted.cursor)
        async with transaction():
            runs = (row.run for key, row in self.rows.items() if row.run and key.tenant == tenant)
            found = sorted((run for run in runs if fits(run, wanted)), key=place, reverse=True)
            rest = [run for run in found if after is None or place(run) < after]
            page = within_bytes(rest[: wanted.limit], wanted.max_bytes)
            cursor = cursor_after(page[-1]) if len(page) < len(rest) else None
            return Page([replace(run, result=None) for run in page], cursor)

    async def stoppable(self, tenant: str, wanted: RunFilter) -> Sequence[RunKey]:
        async with transaction():
            runs = [row.run for key, row in self.rows.items() if row.run and key.tenant == tenant]
            found = sorted((run for run in runs if may_be_stopped(run, wanted)), key=place)
            return [run.key for run in found[: wanted.limit]]

    async def erase(self, key: RunKey) -> None:
        async with transaction():
            row = self.rows.get(key)
            if row is None or row.run is None:
                raise RunNotFoundError
            if not row.run.finished:
                raise RunNotEndedError
            self.rows[key] = Row(fence=row.run.fence)
            self.erased.add(key)
            for file in [file for file in self.files if file[0] == key]:
                del self.files[file]
