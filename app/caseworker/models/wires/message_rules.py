"""Adapts a conversation's messages to the rules of the endpoint that receives them.

Endpoints reject a whole request because of a single invalid ID, invalid name, blank text or
unanswered call, even one that they produced themselves.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from caseworker.core.trace.json_values import JSON
from caseworker.models.forms import storable_json, storable_text
from caseworker.models.ports import Message, ToolCall
from caseworker.models.wires.reply import is_object

NO_RESULT = "There is no result: the tool was not called."
"""Text sent as the result of a tool call that has none."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_UNNAMED = "unnamed"
_INVALID = "INVALID_JSON"
_HALF = re.compile(r"\\u[dD][89a-fA-F]|\\u0000")
"""Matches escapes that may be half of a surrogate pair, or NUL."""


@dataclass(frozen=True, slots=True)
class IdRule:
    """The rule for tool call IDs that an endpoint accepts. IDs are unique in a conversation."""

    pattern: re.Pattern[str]
    replaced: re.Pattern[str] = _NOT_IN_NAMES
    """Pattern of the characters that are replaced by ``_`` in an invalid ID."""
    hashed_chars: int | None = None
    """Length of the hash that replaces an invalid ID; None means that characters are replaced
    instead."""

    def valid(self, call_id: str, used_ids: Mapping[str, Any] | set[str]) -> str:
        """Return the ID if it is valid and unused, otherwise derive a valid, unused one from it."""
        if self.pattern.fullmatch(call_id) and call_id not in used_ids:
            return call_id
        base, number = self.replaced.sub("_", call_id) or "call", 1
        while True:
            ending = "" if number == 1 else f"_{number}"
            candidate = base[: 40 - len(ending)] + ending
            if self.hashed_chars is not None:
                hashed = hashlib.sha256(f"{call_id}{ending}".encode(errors="replace")).hexdigest()
                candidate = hashed[: self.hashed_chars]
            if candidate not in used_ids:
                return candidate
            number += 1


OPENAI_IDS = IdRule(re.compile(r"[!-~]{1,40}"), replaced=re.compile(r"[^!-~]"))
ANTHROPIC_IDS = IdRule(re.compile(r"[a-zA-Z0-9_-]{1,64}"))
MISTRAL_IDS = IdRule(re.compile(r"[a-zA-Z0-9]{9}"), hashed_chars=9)


def sent_back(messages: Sequence[Message], ids: IdRule, origin: str) -> list[Message]:
    """Convert the messages of a request to the form that the endpoint accepts.

    Every tool call gets exactly one result, directly after it. Results without a call are omitted,
    and so are assistant messages without text and calls. Invalid IDs and names are replaced, and
    arguments become an object. An assistant's thinking is sent only to the endpoint that produced
    it; see ``state_of``.
    """
    used_ids, valid_messages, at = set[str](), list[Message](), 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if message.role == "assistant" and (message.tool_calls or not message.content.strip()):
            end = next(
                (n for n in range(at, len(messages)) if messages[n].role == "assistant"),
                len(messages),
            )
            valid_messages += _turn(message, messages[at:end], ids, used_ids, origin)
        elif message.role != "tool":
            valid_messages.append(message)
    return valid_messages


def state_of(message: Message, origin: str) -> Mapping[str, Any]:
    """Return a message's provider state; empty if another endpoint produced it."""
    state = message.provider_state or {}
    return state if state.get("provider") == origin else {}


def object_in(arguments: str) -> dict[str, Any]:
    """Parse tool arguments to a JSON object, as endpoints require."""
    try:
        value = storable_json(JSON.decode(arguments if arguments.strip() else "{}"))
    except (ValueError, RecursionError):
        value = storable_text(arguments)
    return value if isinstance(value, dict) else {_INVALID: value}


def _turn(
    message: Message, following: Sequence[Message], ids: IdRule, used_ids: set[str], origin: str
) -> Iterator[Message]:
    """Yield an assistant's message with its calls, followed by their results.

    A message without text and calls is left out.
    """
    results = [each for each in following if each.role == "tool"]
    calls_by_id = state_of(message, origin).get("calls", {})
    calls, answers, state = list[ToolCall](), list[Message](), dict[str, Any]()
    for call in message.tool_calls:
        call_id = ids.valid(call.id, used_ids)
        used_ids.add(call_id)
        answer = next((each for each in results if each.tool_call_id == call.id), None)
        if answer is None:
            answer = Message(role="tool", content=NO_RESULT, tool_name=call.name)
        else:
            results.remove(answer)
        if call.id in calls_by_id:
            state[call_id] = calls_by_id[call.id]
        name = _name(call.name)
        calls.append(ToolCall(id=call_id, name=name, arguments=_arguments(call.arguments)))
        answers.append(replace(answer, tool_call_id=call_id, tool_name=name))
    if message.content.strip() or calls:
        content = message.content if message.content.strip() else ""
        if state:
            message = replace(
                message, provider_state={**(message.provider_state or {}), "calls": state}
            )
        yield replace(message, content=content, tool_calls=tuple(calls))
    yield from answers


def _name(name: str) -> str:
    if _NAME.fullmatch(name):
        return name
    return _NOT_IN_NAMES.sub("_", name)[:64] or _UNNAMED


def _arguments(written: str) -> str:
    """Return arguments unchanged if they are an object, else converted to one."""
    if is_object(written) and not _HALF.search(written):
        return written
    return json.dumps(object_in(written), ensure_ascii=False)
