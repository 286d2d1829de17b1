"""JSON replies from models: parsing, and validation against a schema."""

from collections.abc import Iterator
from typing import Annotated, Any

from jsonschema_rs import ValidationError
from pydantic import WithJsonSchema

from caseworker.core.trace.json_values import JSON, MAX_DEPTH
from caseworker.models.forms import UNSTORABLE_CHARACTER
from caseworker.nodes.strict_parsing import read_by
from caseworker.platform.validation import field_of, refusal
from caseworker.tools.caller_schema import CallerSchema, TooMuchWorkError

MAX_REPLY_CHARS = 1_000_000
MAX_FAULTS = 3


class UnfitReplyError(ValueError):
    """A reply is not JSON or violates its schema. The error does not quote the reply."""


class ReplySchema(CallerSchema):
    """A JSON Schema for a model's reply."""

    def read(self, reply: str) -> Any:
        """Parse and validate a reply, or raise UnfitReplyError."""
        value = _json_in(reply)
        try:
            errors = self.errors(value, len(reply))
        except TooMuchWorkError:
            message = "The reply is too long, or too deep, for so large a JSON Schema."
            raise UnfitReplyError(message) from None
        if errors is None:
            raise UnfitReplyError("The reply does not follow its JSON Schema.")
        faults = [_problem_text(error) for error in errors]
        if faults:
            more = len(faults) - MAX_FAULTS
            shown_faults = "; ".join(faults[:MAX_FAULTS]) + (
                f"; and {more} more" if more > 0 else ""
            )
            raise UnfitReplyError(f"The reply does not follow its JSON Schema: {shown_faults}.")
        return value


def _problem_text(error: ValidationError) -> str:
    place = field_of(error.instance_path) or "the whole"
    return f"{error.kind.name} at {place}"


def _json_in(reply: str) -> Any:
    """Parse the JSON of a reply and reject values that cannot be stored."""
    if len(reply) > MAX_REPLY_CHARS:
        raise UnfitReplyError(f"The reply is longer than {MAX_REPLY_CHARS} characters.")
    try:
        value = JSON.decode(reply)
    except (ValueError, RecursionError):
        raise UnfitReplyError("The reply is not JSON alone.") from None
    level, depth = [value], 0
    while level:
        level = [inner for one in level for inner in _inside(one)]
        depth += 1
        if depth > MAX_DEPTH:
            raise UnfitReplyError("The reply is nested too deeply.")
    return value


def _inside(value: Any) -> Iterator[Any]:
    """Yield the nested values; reject text that the database cannot store."""
    if isinstance(value, str):
        if UNSTORABLE_CHARACTER.search(value):
            raise UnfitReplyError(
                "A text in the reply contains a NUL character or an unpaired surrogate."
            )
    elif isinstance(value, dict):
        yield from value
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _read_schema(value: Any) -> ReplySchema:
    if not isinstance(value, dict):
        raise refusal("This must be a JSON object.")
    try:
        return ReplySchema(value)
    except ValueError as error:
        raise refusal(str(error)) from None


SchemaField = Annotated[
    ReplySchema,
    read_by(_read_schema),
    WithJsonSchema({"type": "object", "description": "A JSON Schema (draft 2020-12)."}),
]
"""Field type for a JSON Schema in a step's data."""
