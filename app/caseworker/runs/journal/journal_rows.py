"""Converts calls, events and the ends of runs to JSON rows and back, and determines their size.

A row is serialized when its write is submitted, not when its batch is sent. The size of a write is
therefore known when its connection is chosen, and a repeated batch only joins existing texts. A
large write is serialized piece by piece and yields to the event loop in between.

A run writes a dozen rows per turn, most of them in a few common formats. These rows are stored as
lists in which each value has a fixed position. Values that follow from other columns are left out.
A row in any other form stores its values by name, as earlier releases did for all rows. Readers get
the same data in both cases: the database view ``journal`` expands calls, and this module expands
events.

See docs/internals.md, "The journal and its barrier".
"""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Final

from caseworker.core.budget.accounts import AccountLimit, Hold, HoldAnswer, HoldKey
from caseworker.core.budget.budget import Dimension
from caseworker.core.trace.frozen_json import FrozenJson
from caseworker.core.trace.node import FIELDS
from caseworker.engine.events import (
    CALL_COMPLETED,
    CALL_STARTED,
    CONTENT_CHUNK,
    THINKING,
    TOOL_CALL_END,
    TOOL_CALL_START,
    TURN_END,
    TURN_START,
    USAGE,
)
from caseworker.nodes.agent.references import CHARS, TEXT_OF
from caseworker.platform.postgres.json_text import dump, exact_dump
from caseworker.runs.ports import JournalWrite
from caseworker.runs.postgres.rows import Row
from caseworker.runs.run import CallRecord, EventRecord, FinishRun, RunKey

Ownership = tuple[RunKey, int]
"""A run's key, and the fencing token of its owner."""

BREATH_BYTES = 256 * 1024
"""Number of bytes to serialize before yielding to the event loop."""
ROW_BYTES = 1024
"""Bytes of text that take as long to serialize as the other columns of a row."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnersWrite:
    """A journal write by the owner of a run; its rows are serialized as JSON strings."""

    owner: Ownership
    """The run that is written, and the fencing token of the writer."""
    owner_row: str
    """The same as a JSON text, with the column names of a run."""
    what: JournalWrite | FinishRun
    calls: Mapping[tuple[Ownership, str], str]
    """Journal rows to write, as JSON texts, by owner and CallNode ID."""
    events: Mapping[tuple[Ownership, int], str]
    """Event rows to write, as JSON texts, by owner and sequence number."""
    settled: Sequence[str]
    """Holds to settle with their actual amounts, as JSON texts."""
    holds: Sequence[Mapping[str, Any]]
    """Calls to reserve in accounts, as JSON objects."""
    end: str | None
    """Row that ends the run; None if the write does not end it."""
    size_bytes: int
    """Total size of all rows in bytes; the texts are ASCII."""


async def as_rows(write: JournalWrite | FinishRun) -> OwnersWrite:
    """Return a write with its rows as JSON texts.

    Raises:
        ValueError: the write contains a number that is not valid JSON.
        TypeError: the write contains a value that is not JSON.
    """
    owner = write.key, write.fence
    of_run = key_to_json(*owner)
    rows, texts, unyielded = list[dict[str, Any]](), list[str](), 0
    records: tuple[CallRecord | EventRecord, ...] = (*write.calls, *write.events)
    for record in records:
        if isinstance(record, CallRecord):
            rows.append(row := call_to_json(of_run, record))
        else:
            rows.append(row := _event_row(of_run, record))
        unyielded += ROW_BYTES + len(row.get("value") or "")
        if unyielded >= BREATH_BYTES:
            unyielded = 0
            await asyncio.sleep(0)
    ids = [(owner, record.node["node_id"]) for record in write.calls]
    numbers = [(owner, record.seq) for record in write.events]
    for row in rows:
        if type(row.get("brief")) is tuple:
            row["brief"] = dump(row["brief"])[1:-1]
        texts.append(dump(row))
        unyielded += len(texts[-1])
        if unyielded >= BREATH_BYTES:
            unyielded = 0
            await asyncio.sleep(0)
    size_bytes, of_calls = sum(map(len, texts)), len(write.calls)
    end = None
    if isinstance(write, FinishRun):
        end = dump(finish_to_json(write, size_bytes))
        size_bytes += len(end)
    accounts = () if isinstance(write, FinishRun) else write.accounts
    holds = () if isinstance(write, FinishRun) else write.holds
    return OwnersWrite(
        owner=owner,
        owner_row=dump(of_run),
        settled=[dump(hold_to_json(of_run, hold)) for hold in write.settled],
        holds=[{**hold_to_json(of_run, hold), "accounts": accounts} for hold in holds],
        what=write,
        calls=dict(zip(ids, texts[:of_calls], strict=True)),
        events=dict(zip(numbers, texts[of_calls:], strict=True)),
        end=end,
        size_bytes=size_bytes,
    )


def key_to_json(key: RunKey, fence: int) -> dict[str, Any]:
    """Return the columns that identify a run and its owner's fencing token."""
    return {"tenant_id": key.tenant, "run_id": key.run_id, "fence": fence}


def finish_to_json(finish: FinishRun, written_bytes: int) -> dict[str, Any]:
    """Return the row that ends a run.

    ``written_bytes`` is the size of the calls and events that are stored with it.
    """
    return {
        **key_to_json(finish.key, finish.fence),
        "status": finish.status.value,
        "finish_reason": finish.finish_reason,
        "result": finish.result,
        "usage": finish.usage,
        "stop": finish.stop,
        "active_seconds": finish.active_seconds,
        "delivered_at": finish.delivered_at.isoformat() if finish.delivered_at else None,
        "written_bytes": written_bytes,
    }


def hold_to_json(of_run: Mapping[str, Any], hold: Hold) -> dict[str, Any]:
    """Return the row of a hold, or of its settlement; ``of_run`` as in :func:`call_to_json`."""
    return {
        **of_run,
        "seq": int(hold.node_id[1:]),
        "attempt": hold.attempt,
        "cost_usd": str(hold.cost_usd),
        "tokens": hold.tokens,
        "llm_calls": hold.llm_calls,
        "api_calls": hold.api_calls,
    }


def hold_answers(rows: Sequence[Sequence[Any]]) -> Mapping[HoldKey, HoldAnswer]:
    """Return the answers to the holds of a run, from the rows of ``JOURNAL_WITH_HOLDS``."""
    return {
        (f"n{seq:06d}", attempt): HoldAnswer(granted, [_limit_in(limit) for limit in limits or ()])
        for seq, attempt, granted, limits in rows
    }


def _limit_in(row: Mapping[str, Any]) -> AccountLimit:
    amounts = {name: Decimal(row[name]) for name in ("used", "reserved", "limit")}
    until = None if row["until"] is None else date.fromisoformat(row["until"])
    dimension = Dimension(row["dimension"])
    return AccountLimit(**{**row, **amounts, "until": until, "dimension": dimension})


def call_to_json(of_run: Mapping[str, Any], record: CallRecord) -> dict[str, Any]:
    """Return the row of ``calls`` for a record.

    ``of_run`` are the columns of the run and of its writer, from :func:`key_to_json`. The row
    embeds the value as a string, which is cheaper to encode.
    """
    node, value = record.node, record.value
    if type(value) is FrozenJson:
        value = value.text
    elif value is not None:
        value = exact_dump(value)
    row = {
        **of_run,
        "seq": int(node["node_id"][1:]),
        "status": node["status"],
        "call_key": record.call_key,
        "request_hash": record.request_hash,
        "outcome": record.outcome,
        "value": value,
        "request": record.request and brief_request(record.request),
    }
    brief = brief_call(record)
    if brief is None:
        return {**row, "charge": record.charge, "node": node}
    return {**row, "brief": brief}


def call_from_row(row: Row) -> CallRecord:
    """Return the record in a row of ``journal``, with its request if the row contains it."""
    return CallRecord(**{name: row[name] for name in _CALL_COLUMNS}, request=row.get("request"))


def event_to_json(of_run: Mapping[str, Any], record: EventRecord) -> dict[str, Any]:
    """Return the row of ``events`` for an event; ``of_run`` as in :func:`call_to_json`."""
    row = _event_row(of_run, record)
    if "brief" in row:
        row["brief"] = dump(row["brief"])[1:-1]
    return row


def _event_row(of_run: Mapping[str, Any], record: EventRecord) -> dict[str, Any]:
    """Return the row of an event, with its compact values as a tuple instead of their text."""
    row = {
        **of_run,
        "seq": record.seq,
        "ts": record.ts.isoformat(),
        "step_id": record.step_id,
        "node_id": record.node_id,
    }
    brief = brief_event(record)
    if brief is None:
        row |= {"type": record.type, "data": record.data}
    else:
        row["type"], row["brief"] = brief
    if record.once_key is not None:
        row["once_key"] = brief_once(record)
    return row


def event_from_row(row: Row) -> EventRecord:
    """Return the event in a row of ``events``."""
    kind, data = whole_event(row)
    return EventRecord(type=kind, data=data, **{name: row[name] for name in _EVENT_COLUMNS})


_CALL_COLUMNS = tuple(CallRecord.__dataclass_fields__.keys() - {"request"})
_EVENT_COLUMNS = ("seq", "ts", "step_id", "node_id")
"""Fields stored unchanged in columns of the same name."""

CALL_KEY: Final = "call_key"
"""Key in a node's metadata that holds the call key, which is also in a column of the row."""

_LETTERS: Final[Mapping[str, str]] = {each: each.letter for each in Dimension if each.letter}

_NODE_FIELDS = frozenset(FIELDS)


def brief_call(record: CallRecord) -> list[Any] | None:
    """Return the node and charge of a journal row as a compact list; None if they do not fit.

    The last three values are left out if all of them have their defaults.
    """
    node = record.node
    if node.keys() != _NODE_FIELDS:
        return None
    about, kind, node_id = node["metadata"], node["kind"], node["node_id"]
    if node_id != f"n{int(node_id[1:]):06d}":
        return None
    if kind == "system" or record.call_key is None:
        if CALL_KEY in about:
            return None
    elif about.get(CALL_KEY) != record.call_key:
        return None
    else:
        about = dict(about)
        del about[CALL_KEY]
    parent, started, ended = node["parent_id"], node["start_ts_ms"], node["end_ts_ms"]
    brief = [
        kind,
        node["name"],
        started,
        None if ended is None else ended - started,
        None if parent is None else int(parent[1:]),
        node["model"],
        node["cost_usd"],
        node["tokens_in"],
        node["tokens_out"],
        {_LETTERS.get(name, name): amount for name, amount in record.charge.items()},
        about,
    ]
    if node["retries_used"] or node["stop_reason"] is not None or node["error_class"] is not None:
        brief += (node["retries_used"], node["stop_reason"], node["error_class"])
    return brief


def brief_request(request: Mapping[str, Any]) -> Any:
    """Return the compact form of a request in a conversation; other requests are unchanged.

    It is a list of the key of the call that started the conversation, the number of messages before
    this request, and the new messages. A message is ``[reply_of]`` or ``[tool_call_id, tool_name,
    result_of]``.
    """
    if request.keys() != _CONTINUED or not isinstance(request["messages"], list):
        return request
    after, brief = request["after"], []
    for message in request["messages"]:
        names = _MESSAGES.get(str(message.get("role"))) if isinstance(message, Mapping) else None
        if names is None or message.keys() != {"role", *names}:
            return request
        brief.append([message[name] for name in names])
    return [after["call_key"], after["messages"], *brief] if brief else request


_CONTINUED: Final = frozenset({"messages", "after"})
_MESSAGES: Final = {
    "assistant": ("reply_of",),
    "tool": ("tool_call_id", "tool_name", "result_of"),
}

_FORMS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    CALL_STARTED: ("~c", ("kind", "name", "model")),
    CALL_COMPLETED: ("~d", ("kind", "name", "model", "attempts", "tokens_in", "tokens_out")),
    TURN_START: ("~t", ("turn_number",)),
    THINKING: ("~k", ("turn_number", "offset", CHARS, TEXT_OF)),
    CONTENT_CHUNK: ("~p", ("turn_number", "offset", CHARS, TEXT_OF)),
    USAGE: ("~u", ("turn_number", "tokens_in", "tokens_out", "cost_usd")),
    TOOL_CALL_START: ("~s", ("turn_number", "tool_call")),
    TOOL_CALL_END: ("~e", ("turn_number", "tool_call_id", "name", TEXT_OF)),
    TURN_END: ("~z", ("turn_number",)),
}
"""Event types with a compact form: their code and the fields of their data.

The code replaces the type; no type that a node may use looks like a code.
"""

_FIELDS_OF = {kind: frozenset(names) for kind, (_, names) in _FORMS.items()}
_OF_CODE = {code: (kind, names) for kind, (code, names) in _FORMS.items()}

_SAME_STEP = "~"
"""Prefix of a call key; it replaces the path of the step and the turn."""


def stored_types(kinds: Iterable[str]) -> list[str]:
    """Return the values of the column ``type`` for events of these types, compact or not."""
    kinds = list(kinds)
    return kinds + [_FORMS[kind][0] for kind in kinds if kind in _FORMS]


def brief_event(record: EventRecord) -> tuple[str, tuple[Any, ...]] | None:
    """Return the code and the values of an event in compact form; None if it does not fit."""
    data, kind = record.data, record.type
    if kind not in _FORMS or data.keys() != _FIELDS_OF[kind]:
        return None
    code, names = _FORMS[kind]
    values = [data[name] for name in names]
    if names[-1] == TEXT_OF:
        turn = f"{record.step_id}/turn/{data['turn_number']}"
        if not str(values[-1]).startswith(turn):
            return None
        values[-1] = _SAME_STEP + values[-1][len(turn) :]
    return code, tuple(values)


def whole_event(row: Row) -> tuple[str, Mapping[str, Any]]:
    """Return the type and the data of an event; reverses :func:`brief_event`."""
    if row["brief"] is None:
        return row["type"], row["data"]
    kind, names = _OF_CODE[row["type"]]
    values = json.loads(f"[{row['brief']}]")
    if names[-1] == TEXT_OF:
        values[-1] = f"{row['step_id']}/turn/{values[0]}{values[-1][len(_SAME_STEP) :]}"
    return kind, dict(zip(names, values, strict=True))


def brief_once(record: EventRecord) -> str | None:
    """Return an event's deduplication key without its prefix (the step ID and the event type).

    A shortened key starts with ``|``; a full key never does.
    """
    begin = f"{record.step_id}|{record.type}|"
    key = record.once_key
    return key[len(begin) - 1 :] if key is not None and key.startswith(begin) else key


def whole_once(step_id: str | None, kind: str, key: str) -> str:
    """Return the full deduplication key; reverses :func:`brief_once`."""
    if not key.startswith("|"):
        return key
    return f"{step_id}|{_OF_CODE[kind][0] if kind in _OF_CODE else kind}{key}"
