"""How a model is made to reply with JSON: by a schema, by JSON mode, or by words alone.

Not every endpoint has all three. The best form is tried first; an endpoint that refuses its
parameter is asked again in the next simpler one, and from then on starts there. So does one that
takes the parameter and replies with prose all the same, from the next question on. What a form does
not enforce is said in the prompt, and what may stand around the JSON in a reply is cut off.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from app.llm.json_text import json_part
from app.llm.messages import Message, ModelRequest

_INSTRUCTION = (
    "Your whole reply must be one JSON value that follows this JSON Schema, without prose and"
    " without a code fence: {schema}"
)


class ReplyForm(StrEnum):
    """One way to ask for JSON."""

    SCHEMA = "schema"
    """The protocol's own parameter holds the model to the schema."""
    JSON = "json"
    """JSON mode: the protocol promises an object; the prompt describes it."""
    TEXT = "text"
    """The prompt alone asks for it."""

    @property
    def simplicity(self) -> int:
        """How little the endpoint must know, from 0."""
        return list(ReplyForm).index(self)


class StructuredOutput(StrEnum):
    """What is configured: one of the forms, or the best that the endpoint has."""

    AUTO = "auto"
    SCHEMA = "schema"
    JSON = "json"
    TEXT = "text"


def forms_for(configured: StructuredOutput, schema: Mapping[str, Any]) -> tuple[ReplyForm, ...]:
    """Return the forms in which a reply can be asked for, the best one first.

    JSON mode knows objects alone, so any other document is asked for in words.
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
    schema = json.dumps(request.json_schema, ensure_ascii=False, sort_keys=True)
    return replace(
        request,
        messages=_instructed(request.messages, _INSTRUCTION.format(schema=schema)),
        json_schema=None,
        json_object=form is ReplyForm.JSON,
    )


def read_json(reply: str) -> str:
    """Return the JSON in a reply, or the reply itself where there is none to be told apart."""
    found = json_part(reply)
    return reply if found is None else found


def is_prose(reply: str) -> bool:
    """Tell whether a reply does not even try to be JSON; one that breaks off has tried."""
    begun = any(mark in reply for mark in "{[")
    return bool(reply.strip()) and not begun and json_part(reply) is None


def _instructed(messages: tuple[Message, ...], instruction: str) -> tuple[Message, ...]:
    """Put an instruction into the system message; many local models allow only one."""
    if messages and messages[0].role == "system":
        told = Message(role="system", content=f"{messages[0].content}\n{instruction}\n")
        return (told, *messages[1:])
    return (Message(role="system", content=instruction), *messages)
