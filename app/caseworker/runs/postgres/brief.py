"""Compact rows for the journal and the events, which store values by position instead of by name.

A run writes a dozen rows per turn, most of them in a few common formats. These rows are stored as
lists in which each value has a fixed position. Values that follow from other columns are left out.
A row in any other form stores its values by name, as earlier releases did for all rows. Readers get
the same data in both cases: the database view ``journal`` expands calls, and this module expands
events.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import RowMapping

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
from caseworker.platform.postgres.json_text import dump
from caseworker.runs.run import CallRecord, EventRecord

CALL_KEY: Final = "call_key"
"""Metadata key of a call's node, whose value is also in a column of the row."""

DIMENSIONS: Final = {
    "tokens": "t",
    "seconds": "s",
    "steps": "p",
    "api_calls": "a",
    "cost_usd": "c",
    "llm_calls_small": "m",
    "llm_calls_big": "b",
    "tool_calls": "o",
    "turns": "r",
    "tokens_estimated": "e",
    "cost_usd_estimated": "f",
    "unpriced_calls": "u",
}
"""One-letter names for the dimensions of a charge; the database view has the same table."""

_NODE_FIELDS = frozenset(FIELDS)


def brief_call(record: CallRecord) -> list[Any] | None:
    """Return the node and the charge of a journal row as a list; None if they do not fit.

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
        about = {name: value for name, value in about.items() if name != CALL_KEY}
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
        {DIMENSIONS.get(name, name): amount for name, amount in record.charge.items()},
        about,
    ]
    if node["retries_used"] or node["stop_reason"] is not None or node["error_class"] is not None:
        brief += (node["retries_used"], node["stop_reason"], node["error_class"])
    return brief


def brief_request(request: Mapping[str, Any] | None) -> Any:
    """Return the compact form of a request in a conversation; other requests are unchanged.

    It is a list of the key of the call that started the conversation, the number of messages before
    this request, and the new messages. A message is ``[reply_of]`` or ``[tool_call_id, tool_name,
    result_of]``.
    """
    if request is None or request.keys() != _CONTINUED or not isinstance(request["messages"], list):
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

_HERE = "~"
"""Prefix of a call key; it replaces the path of the step and the turn."""


def brief_event(record: EventRecord) -> tuple[str, str] | None:
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
        values[-1] = _HERE + values[-1][len(turn) :]
    return code, dump(values)[1:-1]


def whole_event(row: Mapping[str, Any] | RowMapping) -> tuple[str, Mapping[str, Any]]:
    """Return the type and the data of an event as they were before :func:`brief_event`."""
    if row["brief"] is None:
        return row["type"], row["data"]
    kind, names = _OF_CODE[row["type"]]
    values = json.loads(f"[{row['brief']}]")
    if names[-1] == TEXT_OF:
        values[-1] = f"{row['step_id']}/turn/{values[0]}{values[-1][len(_HERE) :]}"
    return kind, dict(zip(names, values, strict=True))


def brief_once(record: EventRecord) -> str | None:
    """Return a deduplication key without its prefix, which is the step ID and the event type.

    A shortened key starts with ``|``; a full key never does.
    """
    begin = f"{record.step_id}|{record.type}|"
    key = record.once_key
    return key[len(begin) - 1 :] if key is not None and key.startswith(begin) else key


def whole_once(step_id: str | None, kind: str, key: str) -> str:
    """Return a deduplication key as it was before :func:`brief_once`."""
    if not key.startswith("|"):
        return key
    return f"{step_id}|{_OF_CODE[kind][0] if kind in _OF_CODE else kind}{key}"
