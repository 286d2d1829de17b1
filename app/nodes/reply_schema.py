"""JSON that a model was asked for: the schema it must follow, and how its reply is read."""

import json
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Annotated, Any, NoReturn

from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError
from pydantic import WithJsonSchema

from app.llm.forms import NO_CHARACTER
from app.nodes.reading import field_of, read_by, refusal
from app.nodes.schema_size import SchemaSize
from app.tools.arguments import errors_in
from app.trace.json_values import MAX_DEPTH

MAX_REPLY_CHARS = 1_000_000
MAX_COMPILED_BYTES = 64 * 1024
"""Of one pattern; every character of a text may visit all of it."""

MAX_WORK = 20_000_000
"""Characters of a reply times what is asked of each, in checks of a subschema."""

MAX_FAULTS = 3

_MASK = "the value"


class UnfitReplyError(ValueError):
    """A reply that is no JSON or does not follow its schema; the message quotes nothing of it."""


class ReplySchema:
    """A JSON Schema (draft 2020-12) that refers to nothing outside itself.

    Compiling and checking hold the interpreter, so both are bounded beforehand: the schema by its
    size and its patterns, a reply by its length times what the schema asks of each part of it.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Compile a schema, or raise ValueError: it is none, is too large, or refers elsewhere."""
        self.schema = schema
        self._size = SchemaSize.of(schema)
        try:
            self._validator = Draft202012Validator(
                dict(schema),
                retriever=_refuse,
                mask=_MASK,
                pattern_options=RegexOptions(
                    size_limit=MAX_COMPILED_BYTES, dfa_size_limit=MAX_COMPILED_BYTES
                ),
            )
        except (ValidationError, ValueError):
            raise ValueError(
                "This is no JSON Schema (draft 2020-12) that stands by itself, with patterns"
                f" that take linear time and {MAX_COMPILED_BYTES:,} bytes at most."
            ) from None

    def read(self, reply: str) -> Any:
        """Return the JSON of a reply, or raise UnfitReplyError."""
        value, depth = _json_in(reply)
        if self._size.work(len(reply), depth) > MAX_WORK:
            raise UnfitReplyError("The reply is too long, or too deep, for so large a JSON Schema.")
        faults = [_shown(error) for error in errors_in(self._validator, value, len(reply))]
        if faults:
            more = len(faults) - MAX_FAULTS
            shown_faults = "; ".join(faults[:MAX_FAULTS]) + (
                f"; and {more} more" if more > 0 else ""
            )
            raise UnfitReplyError(f"The reply does not follow its JSON Schema: {shown_faults}.")
        return value


def _shown(error: ValidationError) -> str:
    place = field_of(error.instance_path) or "the whole"
    return f"{error.kind.name} at {place}"


def _json_in(reply: str) -> tuple[Any, int]:
    """Return the value in a reply, and how deep it is nested."""
    if len(reply) > MAX_REPLY_CHARS:
        raise UnfitReplyError(f"The reply is longer than {MAX_REPLY_CHARS} characters.")
    try:
        value = json.loads(reply, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        raise UnfitReplyError("The reply is not JSON alone.") from None
    level, depth = [value], 0
    while level:
        level = [inner for one in level for inner in _inside(one)]
        depth += 1
        if depth > MAX_DEPTH:
            raise UnfitReplyError("The reply is nested too deeply.")
    return value, depth


def _inside(value: Any) -> Iterator[Any]:
    """Yield what stands in a value; refuse what no database stores."""
    if isinstance(value, str):
        if NO_CHARACTER.search(value):
            raise UnfitReplyError("A text in the reply holds a character that is none.")
    elif isinstance(value, dict):
        yield from value
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _finite(written: str) -> float:
    number = float(written)
    if not isfinite(number):
        raise ValueError("no number of JSON, or one that is too large")
    return number


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"a reference to another document ({uri})")


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
"""A JSON Schema in the data of a step."""
