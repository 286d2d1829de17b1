"""Rows of the journal and of the events in few bytes: values by their place, and not by name.

A run writes a dozen rows with every turn, most of them of a few known forms. Such a row holds a
list in which each value has its place; what follows from other columns of the row is left out. A
row of any other form holds its values by name, as all rows once did, and is read the same way:
calls by the view ``journal`` of the database, which gives them back whole, and events here.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import RowMapping

from caseworker.adapters.postgres.json_text import dump
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
from caseworker.runs.run import CallRecord, EventRecord
from caseworker.trace.node import FIELDS

CALL_KEY: Final = "call_key"
"""Key of the metadata of a call's node, which is a column of its row as well."""

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
"""The letters by which a charge names what was spent; the view knows them as well."""

_NODE_FIELDS = frozenset(FIELDS)


def brief_call(record: CallRecord) -> list[Any] | None:
    """Return node and charge of a row of the journal as a list; None if they do not fit into one.

    The list ends with the last value that is not what it usually is.
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
    """Return what a call of a conversation asked as a list, if it only names what others brought.

    The list holds the call with which the conversation began, after how many messages this one
    stands, and each message: ``[reply_of]``, or ``[tool_call_id, tool_name, result_of]``.
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
"""The types of events that are stored in few bytes: the code in place of the type, which no type
that a node may use looks like, and what their data holds."""

_FIELDS_OF = {kind: frozenset(names) for kind, (_, names) in _FORMS.items()}
_OF_CODE = {code: (kind, names) for kind, (code, names) in _FORMS.items()}

_HERE = "~"
"""Begins the key of a call of the turn, in place of the path of the step and of the turn."""


def brief_event(record: EventRecord) -> tuple[str, str] | None:
    """Return the code and the values of an event; None if its data is not of the usual form."""
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
    """Return type and data of an event as they were written."""
    if row["brief"] is None:
        return row["type"], row["data"]
    kind, names = _OF_CODE[row["type"]]
    values = json.loads(f"[{row['brief']}]")
    if names[-1] == TEXT_OF:
        values[-1] = f"{row['step_id']}/turn/{values[0]}{values[-1][len(_HERE) :]}"
    return kind, dict(zip(names, values, strict=True))


def brief_once(record: EventRecord) -> str | None:
    """Return the key of an event that is stored once, without the step and the type it begins with.

    Such a rest begins with ``|``, and no whole key does.
    """
    begin = f"{record.step_id}|{record.type}|"
    key = record.once_key
    return key[len(begin) - 1 :] if key is not None and key.startswith(begin) else key


def whole_once(step_id: str | None, kind: str, key: str) -> str:
    """Return the key of a stored event as it was written."""
    if not key.startswith("|"):
        return key
    return f"{step_id}|{_OF_CODE[kind][0] if kind in _OF_CODE else kind}{key}"
