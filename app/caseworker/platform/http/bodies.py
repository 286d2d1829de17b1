"""Parse untrusted JSON with limits, and describe the fields of requests and responses.

Python's parser accepts more than JSON allows (NaN, duplicate keys, integers of any length), and
Postgres stores less (no NUL, no unpaired surrogates). Both differences are rejected here.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any, NoReturn, Self, TypeVar, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    GetPydanticSchema,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from caseworker.platform.docstrings import Described
from caseworker.platform.http.problems import MAX_VIOLATIONS, Violation
from caseworker.platform.validation import ERROR_TYPE, Suggesting, field_of, refusal

_BOM = b"\xef\xbb\xbf"
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{},'))

_SHAPE = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_NUMBERS = (b"0" * 19, b"e000", b"e+000")
"""Parts of the shape of numbers that may be too large; other bodies skip the check per number.

A regular expression takes twenty times as long: 20 ms for a body of one megabyte.
"""
VALUE_BYTES = 64
"""Bytes of memory for a parsed value, such as an empty object."""
_QUICK_BYTES = 2**21
"""Size of a text whose values are counted exactly, which takes about ten milliseconds."""
_INT64_DIGITS = 19
_INT64 = 2**63


class MalformedJsonError(ValueError):
    """The text is not acceptable JSON; the message explains how to correct it."""


class UnstorableTextError(ValueError):
    """The text is valid JSON, but contains strings that the database cannot store."""

    def __init__(self, violations: list[Violation]) -> None:
        super().__init__("Strings must not contain NUL characters or unpaired surrogates.")
        self.violations = violations


def is_storable(text: str) -> bool:
    """Return whether the database can store a text."""
    return "\0" not in text and is_unicode(text)


def is_unicode(text: str) -> bool:
    """Return whether a text has no unpaired surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_json(body: bytes, *, max_depth: int, accepts: Callable[[str], bool] = is_storable) -> Any:
    """Parse a request body, whose strings are those that ``accepts`` returns true for.

    Raises:
        MalformedJsonError: it is not JSON, is nested deeper than ``max_depth``, or holds duplicate
            keys or numbers beyond 64 bits.
        UnstorableTextError: it has other strings, which hold NUL or unpaired surrogates.
    """
    if body.startswith(_BOM):
        raise MalformedJsonError("The body must not start with a byte order mark.")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise MalformedJsonError("The body is not valid UTF-8.") from None
    if is_nested_deeper(body, max_depth):
        raise MalformedJsonError(f"The body exceeds {max_depth} levels of nesting.")
    try:
        shape = body.translate(_SHAPE)
        is_long = any(part in shape for part in _LONG_NUMBERS)
        value = (_CAREFUL if is_long else _DECODER).decode(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise MalformedJsonError(f"The body is not valid JSON: {error.msg} at {place}.") from None
    if "\\u" in text:  # NUL and unpaired surrogates can only come from escapes
        _require(value, accepts)
    return value


def is_nested_deeper(body: bytes, limit: int) -> bool:
    """Return whether arrays and objects in a JSON text are nested deeper than ``limit``."""
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    depth = 0
    for bracket in _outside_of_strings(_structure(body)).translate(None, b","):
        if bracket in b"[{":
            depth += 1
            if depth > limit:
                return True
        else:
            depth -= 1
            if depth < 0:
                return False  # invalid JSON; the parser gives a better message
    return False


def has_more_values(body: bytes, limit: int) -> bool:
    """Return whether a JSON text certainly has more than ``limit`` values, without parsing it."""
    if body.count(b",") < limit:
        return False
    structure = _structure(body)
    if structure.count(b'"') > 4 * limit:  # two for a string and two for its key
        return True
    return _outside_of_strings(structure).count(b",") >= limit


def memory_of(body: bytes, value_bytes: int = VALUE_BYTES) -> int:
    """Estimate the bytes of memory that a JSON text and its parsed values take.

    ``value_bytes`` is the memory of one value.
    The commas in the strings of a long text count as values, because finding them would take long.
    """
    values = body.count(b",")
    if len(body) < values * value_bytes and len(body) <= _QUICK_BYTES:
        values = _outside_of_strings(_structure(body)).count(b",")
    return len(body) + value_bytes * values


def _structure(body: bytes) -> bytes:
    """Return the quotation marks of the strings of a JSON text, and all brackets and commas.

    Each step is one pass in C, so a body of 20 MB takes less than 0.1 s.
    """
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return unescaped.translate(None, _NOT_STRUCTURE)


def _outside_of_strings(structure: bytes) -> bytes:
    """Return the brackets and commas that are not in strings; the last string may have no end."""
    return b"".join(structure.split(b'"')[::2])


def _require(value: Any, accepts: Callable[[str], bool]) -> None:
    message = "Strings must not contain NUL characters or unpaired surrogates."
    places = islice(_refused(value, (), accepts), MAX_VIOLATIONS)
    violations = [Violation(field_of(path), message) for path in places]
    if violations:
        raise UnstorableTextError(violations)


def _refused(
    value: Any, path: tuple[str | int, ...], accepts: Callable[[str], bool]
) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of strings and keys that are not accepted."""
    match value:
        case str():
            if not accepts(value):
                yield path
        case list():
            for index, item in enumerate(value):
                yield from _refused(item, (*path, index), accepts)
        case dict():
            for key, item in value.items():
                if not accepts(key):
                    yield (*path, key)
                yield from _refused(item, (*path, key), accepts)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise MalformedJsonError("The body contains an object with a duplicate key.")
    return members


def _integer(digits: str) -> int:
    if len(digits) > _INT64_DIGITS + 1 or not -_INT64 <= int(digits) < _INT64:
        raise MalformedJsonError(
            "The body contains an integer of more than 64 bits. Send it as a string."
        )
    return int(digits)


def _fraction(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise MalformedJsonError(
            "The body contains a number that is too large. Send it as a string."
        )
    return number


def _constant(_: str) -> NoReturn:
    raise MalformedJsonError("NaN and Infinity are not valid JSON. Omit the field or send null.")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
_CAREFUL = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_integer,
    parse_float=_fraction,
    parse_constant=_constant,
)


Model = TypeVar("Model", bound=BaseModel)


class BodyModel(Described, Suggesting):
    """Base model for request bodies. Types are strict, and unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class QueryModel(Suggesting):
    """Base model for query parameters. Unknown parameters are rejected."""

    # FastAPI reads the descriptions from the fields, and not from a JSON Schema of the model.
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class View(Described):
    """Base model for responses, built from the attributes of a domain object."""

    model_config = ConfigDict(from_attributes=True, frozen=True, serialize_by_alias=True)

    @classmethod
    def of_parts(cls, *parts: object, **members: Any) -> Self:
        """Return a view of the given members; its other fields are attributes of the parts.

        If several parts have an attribute, the first one counts.
        """
        fields = {
            name: getattr(part, name)
            for part in reversed(parts)
            for name in cls.model_fields
            if hasattr(part, name)
        }
        return cls.model_validate({**fields, **members})


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


def named_like(pattern: str, max_chars: int, message: str) -> GetPydanticSchema:
    """Return a validator for names that match an anchored pattern, of at most ``max_chars``.

    Other names are rejected with ``message``.
    """
    form = core_schema.custom_error_schema(
        core_schema.str_schema(pattern=pattern, max_length=max_chars),
        custom_error_type=ERROR_TYPE,
        custom_error_message=message,
    )
    return GetPydanticSchema(lambda of, read: core_schema.chain_schema([read(of), form]))


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
    """Return the models, keyed by the constant value of their field ``kind``."""
    return {get_args(model.model_fields["kind"].annotation)[0]: model for model in models}
