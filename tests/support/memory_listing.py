"""How the runs in memory are listed: newest first, page by page."""

import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime

from app.runs.errors import InvalidRunError
from app.runs.ports import RunFilter, json_of_text
from app.runs.run import Run, RunKind

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
