"""Converts rows of runs to domain objects and back, and encodes cursors.

See docs/internals.md, "One row decides".
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any, TypeVar

from sqlalchemy import RowMapping

from caseworker.core.budget.accounts import TENANT
from caseworker.core.budget.budget import Budget
from caseworker.nodes.chat import ChatInput
from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.paging import Page
from caseworker.runs.errors import InvalidRunError
from caseworker.runs.kinds import KINDS, accounts_of, has_client_tools
from caseworker.runs.postgres.tables import CALLER_JSON, runs
from caseworker.runs.run import (
    CancelRequest,
    DefinitionRef,
    NewRun,
    Queueing,
    Run,
    RunKey,
    RunKind,
    RunRequest,
    RunSource,
    RunStatus,
)

Row = Mapping[str, Any] | RowMapping

Position = TypeVar("Position")
Item = TypeVar("Item")

_REQUEST = ("kind", "input", "seed", "timezone", "requires_prices")
"""Fields that every request has and that are stored unchanged."""
_OPTIONS = {name: usual for rules in KINDS.values() for name, usual in rules.options.items()}
"""Fields of one kind, with the values that requests of other kinds store."""
_CONVERTED = {"graph_ref", *_OPTIONS}
_LIMITS = tuple(Budget.__dataclass_fields__)


def _reserves(request: RunRequest) -> tuple[str, ...]:
    """Return the names of the accounts in which a new run's calls reserve from its start on."""
    return accounts_of(request) or ((TENANT,) if has_client_tools(request) else ())


ACCEPTED_COLUMNS: Mapping[str, Callable[[NewRun], Any]] = {
    "tenant_id": attrgetter("key.tenant"),
    "run_id": attrgetter("key.run_id"),
    "kind": attrgetter("request.kind.value"),
    "request": lambda new: request_to_json(new.request),
    **{name: attrgetter(name) for name in ("request_hash", "idempotency_key", *CALLER_JSON)},
    # Columns that affect queueing are left out if they have their defaults.
    "priority": lambda new: new.queueing.priority or None,
    "concurrency_key": attrgetter("queueing.concurrency_key"),
    "concurrency_limit": lambda new: (
        None if new.queueing.concurrency_key is None else new.queueing.concurrency_limit
    ),
    "deadline": lambda new: _text_of(new.request.deadline),
    "webhook": lambda new: (
        None if new.webhook is None else {"url": new.webhook.url, "events": new.webhook.events}
    ),
    "creator": lambda new: new.creator if has_client_tools(new.request) else None,
    # The previous release, which does not know clients' tools, claims no run with this value.
    "reserved_cost_usd": lambda new: 0 if _reserves(new.request) else None,
}
"""The columns of ``runs`` that describe an accepted run, with their values as JSON; None leaves a
column out. The insert, its record and its conflict clause are built from this table."""

_READ_AS: Mapping[str, Callable[[Any], Any]] = {
    "kind": RunKind,
    "status": RunStatus,
    "metadata": lambda stored: stored or {},
}
"""How columns are converted to the field of the same name; the other columns are unchanged."""

_UNCHANGED = tuple(
    name
    for name in Run.__dataclass_fields__
    if name in runs.c and name not in (*_READ_AS, "request")
)
_NEW_FIELDS = tuple(
    name for name in NewRun.__dataclass_fields__ if name in Run.__dataclass_fields__
)


def encode_cursor(list_name: str, position: Any) -> str:
    """Return a position (any JSON value) in the list ``list_name`` as an opaque cursor."""
    return base64.urlsafe_b64encode(json.dumps([list_name, position]).encode()).decode().rstrip("=")


def page_of(
    list_name: str,
    rows: Sequence[Any],
    limit: int,
    position_of: Callable[[Any], Any],
    item_of: Callable[[Any], Item],
) -> Page[Item]:
    """Return a page of the list ``list_name`` with up to ``limit`` items.

    ``rows`` has up to ``limit + 1`` rows; the extra one shows that there is a next page.
    ``position_of`` returns the position of a row for the cursor, and ``item_of`` the object for it.
    """
    page = rows[:limit]
    following = encode_cursor(list_name, position_of(page[-1])) if len(rows) > limit else None
    return Page([item_of(row) for row in page], following)


def id_in(place: Any) -> str:
    """Return the ID in a cursor's position; other values are rejected before they reach SQL.

    Raises:
        ValueError: the position is not an ID.
    """
    if not isinstance(place, str) or not place.isascii() or "\x00" in place:
        raise ValueError(place)
    return place


def instant_and_id(place: Any) -> tuple[datetime, str]:
    """Return the time and the ID in a cursor's position.

    Raises:
        ValueError, TypeError: the position does not consist of a time and an ID.
    """
    at, name = place
    return datetime.fromisoformat(at), id_in(name)


def decode_cursor(list_name: str, cursor: str, read: Callable[[Any], Position]) -> Position:
    """Return the position in a cursor of the list ``list_name``; refuse cursors of other lists.

    ``read`` converts the position from JSON, or raises an error if it is malformed.

    Raises:
        InvalidRunError: the cursor is invalid.
    """
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        cursor_of, position = json.loads(base64.urlsafe_b64decode(padded.encode("ascii")))
        if cursor_of != list_name:
            raise ValueError(cursor_of)
        return read(position)
    except (ValueError, TypeError, RecursionError, binascii.Error):
        message = "Invalid cursor for this list. Omit it to start from the first page."
        raise InvalidRunError("cursor", message) from None


def request_to_json(request: RunRequest) -> dict[str, Any]:
    """Convert a request to its stored form, a JSON object."""
    stored = {name: getattr(request, name) for name in _REQUEST}
    stored |= {**_OPTIONS, **request.options}
    if not request.limits_spending:
        # The previous release refuses unknown fields. It reads a number like a truth value.
        stored["requires_prices"] = int(request.requires_prices)
    stored["budget"] = budget = {}
    for name in _LIMITS:
        limit = getattr(request.budget, name)
        if limit is not None:
            budget[name] = str(limit) if isinstance(limit, Decimal) else limit
    stored["deadline"] = request.deadline.isoformat() if request.deadline else None
    if request.start_at is not None:
        stored["start_at"] = request.start_at.isoformat()
    if (source := request.source) is not None:
        stored["source"] = {"run_id": source.run_id, "until": source.until}
    if request.traceparent is not None:
        stored["traceparent"] = request.traceparent
    if request.models is not None:
        stored["models"] = list(request.models)
    if request.chat is not None:
        stored["chat"] = request.chat.to_json()
    if request.graph is not None:
        ref = request.definition_ref
        reference = None if ref is None else {"name": ref.name, "version": ref.version}
        if ref is not None and ref.kind.value != request.kind.value:
            stored["chat"][ref.kind.value], reference = (
                reference,
                None,
            )  # the previous release ignores it
        stored["graph_ref"] = reference
        stored |= {"graph": request.graph, "inputs": dict(request.inputs)}
    return stored


def request_from_json(stored: Mapping[str, Any]) -> RunRequest:
    """Convert the stored form of a request back to the request."""
    limits = dict(stored["budget"])
    if limits.get("max_cost_dollars") is not None:
        limits["max_cost_dollars"] = Decimal(limits["max_cost_dollars"])
    deadline, source, chat = stored["deadline"], stored.get("source"), stored.get("chat", {})
    start_at, ref, kind = stored.get("start_at"), stored.get("graph_ref"), stored["kind"]
    requires_prices = stored.get("requires_prices", True)
    for other in DefinitionKind:
        if other in chat:
            ref, kind = chat[other], other
    read = {
        "kind": RunKind(stored["kind"]),
        "options": {
            name: stored[name]
            for name, usual in KINDS[stored["kind"]].options.items()
            if stored[name] != usual
        },
        "budget": Budget(**limits),
        "requires_prices": bool(requires_prices),
        "limits_spending": isinstance(requires_prices, bool),
        "deadline": datetime.fromisoformat(deadline) if deadline else None,
        "start_at": datetime.fromisoformat(start_at) if start_at else None,
        "definition_ref": DefinitionRef(**ref, kind=DefinitionKind(kind)) if ref else None,
        "source": RunSource(**source) if source else None,
        "chat": ChatInput.of_json(chat) if chat else None,
        "models": tuple(stored["models"]) if "models" in stored else None,
    }
    fields = {name: stored[name] for name in stored if name not in _CONVERTED}
    return RunRequest(**{**fields, **read})


def run_from_row(row: Row) -> Run:
    """Convert a row of ``runs`` to a run; the row must not hold only a cancel request."""
    request = request_from_json(row["request"])
    return Run(
        request=request,
        key=RunKey(row["tenant_id"], row["run_id"]),
        cancel_request=cancel_request_from_row(row),
        queueing=Queueing(
            priority=row["priority"],
            concurrency_key=row["concurrency_key"],
            concurrency_limit=row["concurrency_limit"] or 1,
        ),
        accounts=() if row["reserved_cost_usd"] != 0 else accounts_of(request) or (TENANT,),
        **{name: row[name] for name in _UNCHANGED},
        **{name: read(row[name]) for name, read in _READ_AS.items()},
    )


def accepted_run(new: NewRun, worker_id: str | None, created_at: datetime) -> Run:
    """Return the run that an insert has just stored, claimed or queued."""
    claimed = worker_id is not None
    return Run(
        kind=new.request.kind,
        status=RunStatus.RUNNING if claimed else RunStatus.QUEUED,
        created_at=created_at,
        started_at=created_at if claimed else None,
        attempts=int(claimed),
        fence=int(claimed),
        worker_id=worker_id,
        accounts=_reserves(new.request),
        **{name: getattr(new, name) for name in _NEW_FIELDS},
    )


def cancel_request_from_row(row: Row) -> CancelRequest | None:
    """Return the cancel request in a row of ``runs``, or None."""
    if row["cancel_requested_at"] is None:
        return None
    return CancelRequest(
        requested_by=row["cancel_requested_by"],
        reason=row["cancel_reason"],
        requested_at=row["cancel_requested_at"],
        delivered_at=row.get("cancel_delivered_at"),
    )


def new_run_to_json(new: NewRun, worker_id: str | None) -> dict[str, Any]:
    """Return the row of a new run, which ``worker_id`` executes; None puts the run in the queue."""
    row = {name: value(new) for name, value in ACCEPTED_COLUMNS.items()}
    row |= {"worker_id": worker_id, "claimed": worker_id is not None}
    row["start_at"] = _text_of(new.request.start_at)
    return {name: value for name, value in row.items() if value is not None}


def _text_of(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()
