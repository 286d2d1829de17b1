"""What is said in a run and stored once: with the call that has brought it.

Messages of a result and events of a turn that repeat a long text of a journaled call are stored
with the key of that call in its place. Whoever reads them gets the text put back.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from caseworker.engine.events import CONTENT_CHUNK, STREAMED, TOOL_CALL_END, TOOL_CALL_START
from caseworker.nodes.templates import compact
from caseworker.observability.redaction import redact_text

MAX_SHOWN_CHARS: Final = 4000
"""Of the arguments and of the result of a tool in an event."""
LEAST_CHARS: Final = 100
"""A shorter text is stored where it is: its place would take as much."""

TEXT_OF: Final = "text_of"
"""Key of the data of an event whose text is stored with a call: the key of that call."""
CHARS: Final = "chars"
REPLY_OF: Final = "reply_of"
RESULT_OF: Final = "result_of"
"""Keys of a message: the call of a model that it is the answer of, the call of a tool."""


def shown(text: str) -> str:
    """Return arguments or the result of a tool as events show them."""
    return redact_text(text, max_chars=MAX_SHOWN_CHARS)


def part_in(call_key: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the data of a part of an answer without the text, if that is long."""
    chars = len(data["content"])
    if chars < LEAST_CHARS:
        return data
    rest = {name: value for name, value in data.items() if name != "content"}
    return {**rest, CHARS: chars, TEXT_OF: call_key}


def key_in_event(kind: str, data: Mapping[str, Any]) -> str | None:
    """Return the key of the call that stores the text of an event; None if it has all of it."""
    return data.get(TEXT_OF) if kind in _PUT_BACK else None


def whole_event_data(kind: str, data: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """Return the data of an event with its text, which is in the value of the call it names."""
    rest = {name: data[name] for name in data if name not in (TEXT_OF, CHARS)}
    if kind in STREAMED:
        text = value["text" if kind == CONTENT_CHUNK else "thinking"]
        return {**rest, "content": text[data["offset"] : data["offset"] + data[CHARS]]}
    if kind == TOOL_CALL_END:
        return {**rest, "result": shown(compact(value))}
    called = dict(rest["tool_call"])
    arguments = value["tool_calls"][called.pop("index") - 1]["arguments"]
    return {**rest, "tool_call": {**called, "arguments": shown(arguments)}}


def key_in_message(message: Any) -> str | None:
    """Return the key of the call that stores what a message says; None if it says it itself."""
    if not isinstance(message, Mapping) or "content" in message:
        return None
    key = message.get(REPLY_OF) or message.get(RESULT_OF)
    return key if isinstance(key, str) else None


def whole_message(message: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """Return a message that names a call, with what that call has brought."""
    if REPLY_OF in message:
        calls = value.get("tool_calls")
        beside = {"tool_calls": calls} if calls else {}
        return {"role": message["role"], "content": value.get("text", ""), **beside}
    rest = {name: message[name] for name in message if name not in (RESULT_OF, "role")}
    return {"role": message["role"], "content": compact(value), **rest}


def conversations_of(result: Any) -> Iterator[dict[str, Any]]:
    """Yield the results of agents in the result of a run: of an agent, or of the steps of a graph.

    They are those of the given object, to be changed.
    """
    if not isinstance(result, dict):
        return
    outputs = result.get("outputs")
    steps = outputs.values() if isinstance(outputs, dict) else ()
    for each in (result, *(step.get("result") for step in steps if isinstance(step, dict))):
        if isinstance(each, dict) and isinstance(each.get("messages"), list):
            yield each


_PUT_BACK: Final = STREAMED | {TOOL_CALL_START, TOOL_CALL_END}
