"""Strict parsing of graph parts, with error messages written for this service.

Pydantic's messages are not used, because some of them quote the input. All messages here consist of
fixed text and limits from our schemas.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, LiteralString

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetPydanticSchema,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError, core_schema

from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.core.graph.validation import Problem
from caseworker.nodes.templates import (
    DEFAULT_PATH,
    HANDLE,
    JsonTemplate,
    Path,
    PathError,
    TemplateError,
    TextTemplate,
)

OWN: Final = "caseworker"
"""Pydantic error type that marks our own messages."""
REPORTED: Final = "caseworker_reported"
"""Pydantic error type that marks placeholders for problems that are already reported."""

MESSAGES: Mapping[str, str] = {
    "missing": "This field is required.",
    "extra_forbidden": "This field is unknown; remove it.",
    "unexpected_keyword_argument": "This field is unknown; remove it.",
    "string_type": "This must be a string.",
    "string_unicode": "This must be valid Unicode text.",
    "string_too_short": "This must have at least {min_length} characters.",
    "string_too_long": "This must have at most {max_length} characters.",
    "string_pattern_mismatch": "This must match {pattern}",
    "too_short": "This must have at least {min_length} items.",
    "too_long": "This must have at most {max_length} items.",
    "int_type": "This must be a whole number.",
    "int_from_float": "This must be a whole number.",
    "int_parsing": "This must be a whole number.",
    "int_parsing_size": "This must be a whole number.",
    "float_type": "This must be a number.",
    "finite_number": "This must be a finite number.",
    "bool_type": "This must be true or false.",
    "greater_than_equal": "This must be at least {ge}.",
    "less_than_equal": "This must be at most {le}.",
    "literal_error": "This must be one of: {expected}.",
    "enum": "This must be one of: {expected}.",
    "dict_type": "This must be a JSON object.",
    "dataclass_type": "This must be a JSON object.",
    "model_type": "This must be a JSON object.",
    "model_attributes_type": "This must be a JSON object.",
    "list_type": "This must be a JSON array.",
    "recursion_loop": "This is nested too deeply.",
}
"""Maps pydantic error types to our messages."""
OTHER = "This value is not accepted here."

_WORD = "[A-Za-z]{1,24}[0-9]{0,2}"
_NAME = f"{_WORD}(?:_{_WORD}){{0,4}}"
_PLAIN_NAME = re.compile(rf"{_NAME}(?:\.{_NAME})?", re.ASCII)
"""Words joined by underscores, with at most one dot. Tokens and keys do not match, because they mix
letters and digits."""


class StepData(BaseModel):
    """Base class for step configuration and for every other part of a graph."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        arbitrary_types_allowed=True,
    )


def read_by(read: Callable[[Any], Any]) -> GetPydanticSchema:
    """Return a field annotation that validates only with ``read``, regardless of the type."""
    return GetPydanticSchema(lambda *_: core_schema.no_info_plain_validator_function(read))


def refusal(message: str) -> PydanticCustomError:
    """Return an error with our own message, for validators to raise."""
    template: LiteralString = "{message}"
    return PydanticCustomError(OWN, template, {"message": message})


def reported() -> PydanticCustomError:
    """Return an error for a validator to raise after it has reported its problems itself."""
    return PydanticCustomError(REPORTED, "reported")


def problems_in(error: ValidationError, place: str) -> Iterator[Problem]:
    """Yield the problems of a validation error for the data at ``place``."""
    for one in error.errors(include_url=False, include_input=False):
        if one["type"] != REPORTED:
            yield Problem(joined(place, field_of(one["loc"])), message_of(one))


def field_of(names: Iterable[str | int]) -> str:
    """Return the given names and indexes as a dotted path.

    A key chosen by the caller is included only if it looks like a name, so that data sent by
    mistake is not echoed.
    """
    return ".".join(
        str(name) if isinstance(name, int) or _PLAIN_NAME.fullmatch(name) else "*" for name in names
    )


def joined(*places: str) -> str:
    """Join nested positions with dots; empty positions are omitted."""
    return ".".join(place for place in places if place)


def message_of(error: Mapping[str, Any]) -> str:
    """Return our message for a pydantic error."""
    if error["type"] == OWN:
        return str(error["msg"])
    return MESSAGES.get(error["type"], OTHER).format_map(error.get("ctx") or {})


def _parsed(kind: type | None, wanted: str, parse: Callable[[Any], Any]) -> GetPydanticSchema:
    """Return a field annotation that parses values of type ``kind`` and shows parser errors."""

    def read(value: Any) -> Any:
        if kind is not None and not isinstance(value, kind):
            raise refusal(f"This must be a {wanted}.")
        try:
            return parse(value)
        except (TemplateError, PathError) as error:
            raise refusal(str(error)) from None

    return read_by(read)


def _handle(value: str) -> str:
    if not HANDLE.fullmatch(value):
        raise refusal("A handle name has 1 to 64 of the characters A-Z a-z 0-9 _ -")
    return value


TextField = Annotated[
    TextTemplate,
    _parsed(str, "string", TextTemplate.parse),
    WithJsonSchema({"type": "string", "description": "Text; ${path} is replaced with a value."}),
]
"""Field type for a text template."""

JsonField = Annotated[
    JsonTemplate,
    _parsed(None, "", JsonTemplate),
    WithJsonSchema({"description": "Any JSON; ${path} in a string is replaced with a value."}),
]
"""Field type for a JSON template."""

ObjectField = Annotated[
    JsonTemplate,
    _parsed(dict, "JSON object", JsonTemplate),
    WithJsonSchema(
        {
            "type": "object",
            "description": "An object; ${path} in a string is replaced with a value.",
        }
    ),
]
"""Field type for a JSON object template."""

PathField = Annotated[
    Path,
    _parsed(str, "string", Path.parse),
    WithJsonSchema({"type": "string", "examples": ["default.items.0"]}),
]
"""Field type for a dotted path into a step's inputs."""


def usual_path() -> Any:
    """Return the default for a path field, which is the input ``default``."""
    return Field(
        default_factory=lambda: DEFAULT_PATH, json_schema_extra={"default": DEFAULT_HANDLE}
    )


HandleName = Annotated[
    str,
    AfterValidator(_handle),
    Field(json_schema_extra={"pattern": f"^{HANDLE.pattern}$"}),
]
"""Name of a step's input or output."""
