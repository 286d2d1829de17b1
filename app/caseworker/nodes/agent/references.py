"""Stores a long text only once, in the journaled call that produced it.

Messages in a result and events of a turn often repeat the text of a journaled call. They store the
call's key instead of the text. Readers resolve this reference.
"""

from collections.abc import Mapping
from typing import Any, Final

from caseworker.engine.events import CONTENT_CHUNK, STREAMED, TOOL_CALL_END, TOOL_CALL_START
from caseworker.nodes.templates import compact
from caseworker.platform.logs.redaction import redact_text

MAX_SHOWN_CHARS: Final = 4000
"""Maximum length, in characters, of a tool's arguments or result in an event."""
MIN_CHARS: Final = 100
"""Minimum length in characters of a text that is replaced by a reference. A reference to a
shorter text would save no space."""

TEXT_OF: Final = "text_of"
"""Event data field with the key of the journaled call that stores the event's text."""
CHARS: Final = "chars"
REPLY_OF: Final = "reply_of"
"""Message field with the key of the model call that produced the message as its answer."""
RESULT_OF: Final = "result_of"
"""Message field with the key of the tool call that produced the message as its result."""


def marked(text: str) -> str:
    """Return a tool's arguments or result, redacted and shortened for events."""
    return redact_text(text, max_chars=MAX_SHOWN_CHARS)


def part_in(call_key: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an answer chunk's event data; a reference to ``call_key`` replaces a long text."""
    chars = len(data["content"])
    if chars < MIN_CHARS:
        return data
    rest = {name: value for name, value in data.items() if name != "content"}
    return {**rest, CHARS: chars, TEXT_OF: call_key}


def key_in_event(kind: str, data: Mapping[str, Any]) -> str | None:
    """Return the key of the call that stores an event's text; None if the event holds its text."""
    return data.get(TEXT_OF) if kind in _PUT_BACK else None


def whole_event_data(kind: str, data: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """Return event data with its reference replaced by the text.

    ``value`` is the journaled value of the call that the reference names.
    """
    rest = {name: data[name] for name in data if name not in (TEXT_OF, CHARS)}
    if kind in STREAMED:
        text = value["text" if kind == CONTENT_CHUNK else "thinking"]
        return {**rest, "content": text[data["offset"] : data["offset"] + data[CHARS]]}
    if kind == TOOL_CALL_END:
        return {**rest, "result": marked(compact(value))}
    called = dict(rest["tool_call"])
    arguments = value["tool_calls"][called.pop("index") - 1]["arguments"]
    return {**rest, "tool_call": {**called, "arguments": marked(arguments)}}


def key_in_message(message: Any) -> str | None:
    """Return the key of the call that stores a message's content.

    None if the message holds its content.
    """
    if not isinstance(message, Mapping) or "content" in message:
        return None
    key = message.get(REPLY_OF) or message.get(RESULT_OF)
    return key if isinstance(key, str) else None


def whole_message(message: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """Return a message with its reference replaced by the content.

    ``value`` is the journaled value of the call that the reference names.
    """
    if REPLY_OF in message:
        calls = value.get("tool_calls")
        beside = {"tool_calls": calls} if calls else {}
        return {"role": message["role"], "content": value.get("text", ""), **beside}
    rest = {name: message[name] for name in message if name not in (RESULT_OF, "role")}
    return {"role": message["role"], "content": compact(value), **rest}


_PUT_BACK: Final = STREAMED | {TOOL_CALL_START, TOOL_CALL_END}
