"""The models and values that requests and answers are made of, each with its rule and message."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fastapi import Path
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from caseworker.api.json_text import is_storable
from caseworker.control.budget import MAX_LIMIT
from caseworker.nodes.reading import refusal


class Body(BaseModel):
    """What a caller sends: a number is no string, true is no number, unknown fields are refused."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True
    )


class Query(BaseModel):
    """The query of a request; unknown parameters are refused."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class View(BaseModel):
    """What a caller sees of a value of the domain, made from its attributes."""

    model_config = ConfigDict(
        from_attributes=True, frozen=True, use_attribute_docstrings=True, serialize_by_alias=True
    )


class DocumentedAs:
    """Documents an object by the schema of a model, or of one of several; it validates nothing.

    What the service has stored itself is shown as it is: validating it would cost time with every
    answer, and refuse what an earlier version stored. Graphs are validated later, all problems at
    once.
    """

    def __init__(self, *models: type[BaseModel]) -> None:
        self._models = models

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema that generated clients and people see."""
        choices: list[CoreSchema | tuple[CoreSchema, str]] = [
            model.__pydantic_core_schema__ for model in self._models
        ]
        return handler(core_schema.union_schema(choices))  # also of one: each becomes a reference


MAX_REASON_CHARS = 500

_RUN_ID = r"^(?:[.]{0,2}[A-Za-z0-9_:-]|[.]{3})[A-Za-z0-9._:-]*$"
"""Any of these characters, but not a lone ``.`` or ``..``, which no URL can name."""
_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,32}(?:/[A-Za-z0-9_+-]{1,32}){0,2}", re.ASCII)


def named_like(pattern: str, most: int, message: str) -> AfterValidator:
    """Return what refuses a name unless it is 1 to ``most`` characters of an anchored pattern."""
    form = re.compile(pattern[1:-1], re.ASCII)

    def check(value: str) -> str:
        if len(value) > most or not form.fullmatch(value):
            raise refusal(message)
        return value

    return AfterValidator(check)


def _case_input(value: str) -> str:
    if not value or value.isspace():
        raise refusal("The input must not be blank.")
    return value


def _instant(value: Any) -> datetime:
    if isinstance(value, str) and _RFC3339.fullmatch(value):
        try:
            return datetime.fromisoformat(value.upper()).astimezone(UTC)
        except (ValueError, OverflowError):
            pass
    raise refusal(
        "This must be an RFC 3339 timestamp with an offset, such as 2025-09-08T12:00:00Z. In a "
        "query string, encode + as %2B."
    )


def _zone(value: str) -> str:
    if _ZONE.fullmatch(value):
        try:
            return ZoneInfo(value).key
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
    raise refusal("This must be an IANA time zone, such as Europe/Paris or UTC.")


def _text(value: str) -> str:
    if not is_storable(value):
        raise refusal("This must not contain NUL characters or unpaired surrogates.")
    return value


_ID_OF = Field(
    json_schema_extra={"pattern": _RUN_ID, "minLength": 1, "maxLength": 64},
    examples=["case-2025-09-08.1"],
)


def _id_of(what: str) -> Any:
    return named_like(_RUN_ID, 64, f"A {what} ID has 1 to 64 of the characters A-Z a-z 0-9 . _ : -")


RunId = Annotated[str, _id_of("run"), _ID_OF]
"""Chosen by a caller, or a UUIDv7."""
ThreadId = Annotated[str, _id_of("thread"), _ID_OF]
"""Likewise."""
MessageId = Annotated[str, _id_of("message"), _ID_OF]
"""Made by the service."""

RunIdPath = Annotated[RunId, Path(description="ID of the run.")]

STORABLE = AfterValidator(_text)
"""Stands behind constraints of a string, which would speak of items otherwise."""

StorableText = Annotated[str, STORABLE]
"""A text that the database can store."""

CaseInput = Annotated[
    str, AfterValidator(_case_input), Field(json_schema_extra={"pattern": r"\S", "minLength": 1})
]

Instant = Annotated[
    datetime,
    BeforeValidator(_instant),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2025-09-08T12:00:00Z"]}),
]
"""An RFC 3339 instant, in UTC once it is read."""

ZoneName = Annotated[
    str,
    AfterValidator(_zone),
    Field(json_schema_extra={"maxLength": 64}, examples=["Europe/Paris"]),
]

Reason = Annotated[str, StringConstraints(max_length=MAX_REASON_CHARS), STORABLE]
"""Why a run is cancelled; shown in receipts and traces."""

Cursor = Annotated[str, StringConstraints(max_length=512), STORABLE]

ToolName = Annotated[str, StringConstraints(max_length=128)]

Seed = Annotated[int, Field(ge=-MAX_LIMIT - 1, le=MAX_LIMIT)]


class PageQuery(Query):
    """Which part of a list to show."""

    limit: Annotated[int, Field(ge=1, le=200)] = 50
    """How many a page holds."""
    cursor: Cursor | None = None
    """The ``next_cursor`` of the page before."""
