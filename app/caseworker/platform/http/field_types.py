"""Base models and field types for requests and responses, with their validation messages."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

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

from caseworker.platform.http.json_text import is_storable
from caseworker.platform.validation import refusal

Model = TypeVar("Model", bound=BaseModel)


class BodyModel(BaseModel):
    """Base model for request bodies. Types are strict, and unknown fields are rejected."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True
    )


class QueryModel(BaseModel):
    """Base model for query parameters. Unknown parameters are rejected."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class View(BaseModel):
    """Base model for responses, built from the attributes of a domain object."""

    model_config = ConfigDict(
        from_attributes=True, frozen=True, use_attribute_docstrings=True, serialize_by_alias=True
    )


class DocumentedAs:
    """Annotation that documents a JSON object by one or several models, without validating it.

    Values stored by the service are returned unchanged: validation would slow down every response
    and reject values stored by earlier versions. Graphs in requests are validated later, so that
    all problems are reported at once.
    """

    def __init__(self, *models: type[BaseModel]) -> None:
        self._models = models

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema for the OpenAPI document."""
        choices: list[CoreSchema | tuple[CoreSchema, str]] = [
            model.__pydantic_core_schema__ for model in self._models
        ]
        return handler(core_schema.union_schema(choices))  # also for one model: gives a reference


MAX_REASON_CHARS = 500

_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,32}(?:/[A-Za-z0-9_+-]{1,32}){0,2}", re.ASCII)


def named_like(pattern: str, most: int, message: str) -> AfterValidator:
    """Return a validator for names of 1 to ``most`` characters that match an anchored pattern.

    Other names are rejected with ``message``.
    """
    form = re.compile(pattern[1:-1], re.ASCII)

    def check(value: str) -> str:
        if len(value) > most or not form.fullmatch(value):
            raise refusal(message)
        return value

    return AfterValidator(check)


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


STORABLE = AfterValidator(_text)
"""Validator that rejects text the database cannot store. In an annotation, it must follow the
length constraints of the string; otherwise their messages would name items instead of
characters."""

StorableText = Annotated[str, STORABLE]
"""Text that the database can store: no NUL characters and no unpaired surrogates."""

Instant = Annotated[
    datetime,
    BeforeValidator(_instant),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2025-09-08T12:00:00Z"]}),
]
"""A timestamp in RFC 3339 format, converted to UTC."""

ZoneName = Annotated[
    str,
    AfterValidator(_zone),
    Field(json_schema_extra={"maxLength": 64}, examples=["Europe/Paris"]),
]

Reason = Annotated[str, StringConstraints(max_length=MAX_REASON_CHARS), STORABLE]
"""Reason for cancelling a run, shown in receipts and traces."""

Cursor = Annotated[str, StringConstraints(max_length=512), STORABLE]


class PageQuery(QueryModel):
    """Query parameters that select a page of a list."""

    limit: Annotated[int, Field(ge=1, le=200)] = 50
    """Maximum number of items on the page."""
    cursor: Cursor | None = None
    """Value of ``next_cursor`` from the previous page; omitted for the first page."""


def by_kind(models: Iterable[type[Model]]) -> Mapping[str, type[Model]]:
    """Return models by the only value of their field ``kind``."""
    return {get_args(model.model_fields["kind"].annotation)[0]: model for model in models}
