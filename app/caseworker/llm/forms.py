"""How a model is asked for JSON: by a schema, by JSON mode, or by the prompt alone.

Not every endpoint has all three. The best form is tried first; an endpoint that refuses its
parameter is asked again in the next simpler one, and from then on starts there. So does one that
accepts the parameter and still replies with prose, from the next question on. What a form does not
enforce is stated in the prompt, and text around the JSON of a reply is cut off.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from caseworker.llm.ports import Message, ModelRequest

MAX_REPLY_CHARS = 1_000_000
"""A longer reply is not searched for JSON."""

NO_CHARACTER = re.compile("[\0\ud800-\udfff]")
"""NUL, which no database stores, and halves of a surrogate pair, which no encoding sends."""
_MAX_TRIES = 100
"""So many braces of a reply are looked at; each may take time that grows with the reply."""
_FENCE = re.compile(r"^ {0,3}```([A-Za-z0-9]*)[ \t]*$", re.MULTILINE)
_BLACK = re.compile(r"\S")
_DECODER = json.JSONDecoder()
_INSTRUCTION = (
    "Your whole reply must be one JSON value that follows this JSON Schema, without prose and"
    " without a code fence: {schema}"
)


_STATED = "Your whole reply must be that one JSON value, without prose and without a code fence."


class StatedSchema(dict[str, Any]):
    """A JSON Schema that says what the messages say already; no form repeats it in the prompt.

    It is made once for many requests and never changed.
    """

    @cached_property
    def text(self) -> str:
        """It as JSON, written down once."""
        return json.dumps(self, ensure_ascii=False, sort_keys=True)

    @cached_property
    def digest(self) -> str:
        """What tells it from another one, worked out once."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class ReplyForm(StrEnum):
    """One way to ask for JSON, from the strictest to the simplest."""

    SCHEMA = "schema"
    """The protocol's own parameter carries the schema."""
    JSON = "json"
    """JSON mode: the protocol guarantees an object; the prompt describes it."""
    TEXT = "text"
    """The prompt alone asks for it."""

    @property
    def simplicity(self) -> int:
        """The position in the order of the members, from 0."""
        return list(ReplyForm).index(self)


class StructuredOutput(StrEnum):
    """The configured form, or the best that the endpoint has."""

    AUTO = "auto"
    SCHEMA = "schema"
    JSON = "json"
    TEXT = "text"


def forms_for(configured: StructuredOutput, schema: Mapping[str, Any]) -> tuple[ReplyForm, ...]:
    """Return the forms in which a reply can be asked for, the best one first.

    JSON mode yields objects only, so any other document is asked for by the prompt.
    """
    is_object = schema.get("type") == "object"
    if configured is StructuredOutput.AUTO:
        json_mode = (ReplyForm.JSON,) if is_object else ()
        return (ReplyForm.SCHEMA, *json_mode, ReplyForm.TEXT)
    form = ReplyForm(configured.value)
    return (ReplyForm.TEXT if form is ReplyForm.JSON and not is_object else form,)


def in_form(request: ModelRequest, form: ReplyForm) -> ModelRequest:
    """Return the request, which carries a schema, in one of the forms."""
    if form is ReplyForm.SCHEMA or request.json_schema is None:
        return request
    instruction = _STATED
    if not isinstance(request.json_schema, StatedSchema):
        schema = json.dumps(request.json_schema, ensure_ascii=False, sort_keys=True)
        instruction = _INSTRUCTION.format(schema=schema)
    return replace(
        request,
        messages=_instructed(request.messages, instruction),
        json_schema=None,
        json_object=form is ReplyForm.JSON,
    )


def storable(text: str) -> str:
    """Return what a provider wrote, with U+FFFD for what cannot be stored or sent on."""
    return NO_CHARACTER.sub("\ufffd", text)


def storable_json(value: Any) -> Any:
    """Return the same of every text in a JSON value."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, Mapping):
        return {storable(name): storable_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable_json(item) for item in value]
    return value


def read_json(reply: str) -> str:
    """Return the JSON in a reply, or the reply itself where there is none."""
    found = json_part(reply)
    return reply if found is None else found


def is_prose(reply: str) -> bool:
    """Return whether a reply holds no JSON at all, not even one that breaks off."""
    begun = any(mark in reply for mark in "{[")
    return bool(reply.strip()) and not begun and json_part(reply) is None


def _instructed(messages: tuple[Message, ...], instruction: str) -> tuple[Message, ...]:
    """Add an instruction to the system message; many local models allow only one."""
    if messages and messages[0].role == "system":
        content = f"{messages[0].content}\n{instruction}\n"
        return (Message(role="system", content=content), *messages[1:])
    return (Message(role="system", content=instruction), *messages)


def json_part(reply: str) -> str | None:
    """Return the JSON in a reply that may have words around it; None if there is none.

    It is the whole reply, or the first fenced block that is JSON, or the first complete JSON
    object. A reply that breaks off inside an object has none, whatever complete objects stand
    within it. Nothing is repaired.
    """
    if len(reply) > MAX_REPLY_CHARS:
        return None
    if _is_json(reply):
        return reply.strip()
    return next(filter(_is_json, _fenced(reply)), None) or _first_object(reply)


def _fenced(reply: str) -> Iterator[str]:
    """Yield what stands in fences; the first one opens, the next one without a word closes."""
    begin: int | None = None
    for fence in _FENCE.finditer(reply):
        if begin is None:
            begin = fence.end()
        elif not fence[1]:
            yield reply[begin : fence.start()].strip()
            begin = None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _first_object(text: str) -> str | None:
    start = text.find("{")
    for _ in range(_MAX_TRIES):
        if start < 0:
            break
        try:
            _, end = _DECODER.raw_decode(text, start)
        except json.JSONDecodeError as error:
            if error.msg.startswith("Unterminated string") or not _BLACK.search(text, error.pos):
                return None  # the reply ends inside the value that it began
            start = text.find("{", max(start + 1, error.pos))
        except (ValueError, RecursionError):
            return None
        else:
            return text[start:end]
    return None
