"""Structured-output modes: how a model is asked for JSON.

The modes are a schema parameter, the provider's JSON mode, or instructions in the prompt alone. Not
every endpoint supports all three. The strictest mode is tried first. If the endpoint rejects its
parameter, the request is repeated in the next simpler mode, and later requests start there. Later
requests also start in a simpler mode if an endpoint accepts the parameter but replies with prose.
Constraints that a mode does not enforce are added to the prompt. Text around the JSON in a reply is
removed.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from caseworker.models.ports import Message, ModelRequest

MAX_REPLY_CHARS = 1_000_000
"""Maximum length, in characters, of a reply that is searched for JSON."""

UNSTORABLE_CHARACTER = re.compile("[\0\ud800-\udfff]")
"""Matches characters that cannot be stored: NUL, which the database rejects, and lone surrogates,
which UTF-8 cannot encode."""
_MAX_TRIES = 100
"""Maximum number of opening braces to try in a reply; each try may be linear in its length."""
_FENCE = re.compile(r"^ {0,3}```([A-Za-z0-9]*)[ \t]*$", re.MULTILINE)
_BLACK = re.compile(r"\S")
_DECODER = json.JSONDecoder()
_INSTRUCTION = (
    "Your whole reply must be one JSON value that follows this JSON Schema, without prose and"
    " without a code fence: {schema}"
)


_STATED = "Your whole reply must be that one JSON value, without prose and without a code fence."


class StatedSchema(dict[str, Any]):
    """A JSON Schema that the messages already contain, so no mode adds it to the prompt.

    Build it once and share it between requests. It must not be modified.
    """

    @cached_property
    def text(self) -> str:
        """The schema as canonical JSON text, cached after the first use."""
        return json.dumps(self, ensure_ascii=False, sort_keys=True)

    @cached_property
    def digest(self) -> str:
        """SHA-256 hash of ``text`` in hex, cached after the first use."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class ReplyForm(StrEnum):
    """A structured-output mode. Members are ordered from the strictest to the simplest."""

    SCHEMA = "schema"
    """The endpoint receives the schema in a request parameter and enforces it."""
    JSON = "json"
    """The endpoint's JSON mode guarantees an object, and the prompt contains the schema."""
    TEXT = "text"
    """Only the prompt asks for JSON; the endpoint enforces nothing."""

    @property
    def simplicity(self) -> int:
        """Position of the mode in the enumeration; later modes enforce less of the schema."""
        return list(ReplyForm).index(self)


class StructuredOutput(StrEnum):
    """Configured structured-output mode. AUTO picks the strictest that the endpoint supports."""

    AUTO = "auto"
    SCHEMA = "schema"
    JSON = "json"
    TEXT = "text"


def forms_for(configured: StructuredOutput, schema: Mapping[str, Any]) -> tuple[ReplyForm, ...]:
    """Return the structured-output modes to try for a request, the strictest first.

    JSON mode can only produce objects. A schema of any other type therefore skips it and falls back
    to instructions in the prompt.
    """
    is_object = schema.get("type") == "object"
    if configured is StructuredOutput.AUTO:
        json_mode = (ReplyForm.JSON,) if is_object else ()
        return (ReplyForm.SCHEMA, *json_mode, ReplyForm.TEXT)
    form = ReplyForm(configured.value)
    return (ReplyForm.TEXT if form is ReplyForm.JSON and not is_object else form,)


def in_form(request: ModelRequest, form: ReplyForm) -> ModelRequest:
    """Return the request converted to a simpler mode, or unchanged without a schema."""
    if request.json_schema is None:
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


def storable_text(text: str) -> str:
    """Return the text with NUL and lone surrogates replaced by U+FFFD."""
    return UNSTORABLE_CHARACTER.sub("\ufffd", text)


def storable_json(value: Any) -> Any:
    """Apply ``storable_text`` to every string in a JSON value, including the keys."""
    if isinstance(value, str):
        return UNSTORABLE_CHARACTER.sub("\ufffd", value)
    if isinstance(value, Mapping):
        stored = {}
        for name, item in value.items():
            plain = item is None or isinstance(item, int | float)
            stored[UNSTORABLE_CHARACTER.sub("\ufffd", name)] = (
                item if plain else storable_json(item)
            )
        return stored
    if isinstance(value, list | tuple):
        return [storable_json(item) for item in value]
    return value


def json_in_reply(reply: str) -> str:
    """Return the JSON part of a reply, or the whole reply if it has none."""
    part = json_part(reply)
    return reply if part is None else part


def is_prose(reply: str) -> bool:
    """Return whether a non-blank reply contains no JSON, not even the start of truncated JSON."""
    has_bracket = any(mark in reply for mark in "{[")
    return bool(reply.strip()) and not has_bracket and json_part(reply) is None


def _instructed(messages: tuple[Message, ...], instruction: str) -> tuple[Message, ...]:
    """Append an instruction to the system message; many local models allow only one."""
    if messages and messages[0].role == "system":
        content = f"{messages[0].content}\n{instruction}\n"
        return (Message(role="system", content=content), *messages[1:])
    return (Message(role="system", content=instruction), *messages)


def json_part(reply: str) -> str | None:
    """Extract the JSON from a reply that may have text around it, or return None.

    The result is the whole reply if it is JSON. Otherwise it is the first fenced block that is
    JSON, or else the first complete JSON object. A reply that is cut off inside an object yields
    None, even if complete objects are nested in it. Broken JSON is not repaired.
    """
    if len(reply) > MAX_REPLY_CHARS:
        return None
    if _is_json(reply):
        return reply.strip()
    return next(filter(_is_json, _fenced(reply)), None) or _first_object(reply)


def _fenced(reply: str) -> Iterator[str]:
    """Yield the contents of code fences; a fence ends at the next fence without a language tag."""
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
                return None  # the reply is cut off inside this value
            start = text.find("{", max(start + 1, error.pos))
        except (ValueError, RecursionError):
            return None
        else:
            return text[start:end]
    return None
