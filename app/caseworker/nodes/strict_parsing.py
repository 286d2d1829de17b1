"""Strict parsing of graph parts.

:mod:`caseworker.platform.validation` provides the error messages.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
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
from caseworker.platform.docstrings import Described
from caseworker.platform.validation import Suggesting, field_of, refusal, validation_message

REPORTED: Final = "caseworker_reported"
"""Pydantic error type of problems that a validator has already reported; they are ignored."""


class StepData(Described, Suggesting):
    """Base class for step configuration and for every other part of a graph."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        arbitrary_types_allowed=True,
    )


def read_by(read: Callable[[Any], Any]) -> GetPydanticSchema:
    """Return a field annotation that validates only with ``read``, regardless of the type."""
    return GetPydanticSchema(lambda *_: core_schema.no_info_plain_validator_function(read))


def reported() -> PydanticCustomError:
    """Return the error that a validator raises after it has reported its problems directly."""
    return PydanticCustomError(REPORTED, "reported")


def problems_in(error: ValidationError, place: str) -> Iterator[Problem]:
    """Yield the problems of a validation error for the data at ``place``."""
    for one in error.errors(include_url=False):
        if one["type"] != REPORTED:
            yield Problem(joined_places(place, field_of(one["loc"])), validation_message(one))


def joined_places(*places: str) -> str:
    """Join nested positions with dots; empty positions are omitted."""
    return ".".join(place for place in places if place)


def _parsed(kind: type | None, noun: str, parse: Callable[[Any], Any]) -> GetPydanticSchema:
    """Return a field annotation that parses values of type ``kind`` and shows parser errors."""

    def read(value: Any) -> Any:
        if kind is not None and not isinstance(value, kind):
            raise refusal(f"This must be a {noun}.")
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
