"""Our own messages for pydantic errors, which never quote the input.

All messages consist of fixed texts and limits from our schemas.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, LiteralString, Self

from pydantic import BaseModel, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from caseworker.platform.suggestions import suggestion

ERROR_TYPE: Final = "caseworker"
"""Pydantic error type that marks our own messages."""
_UNKNOWN: Final = f"{ERROR_TYPE}_unknown"
"""Pydantic error type of unknown fields. Only shown errors get a suggestion: a body may have
100,000 unknown fields, and each comparison takes 0.1 ms."""

MESSAGES: Mapping[str, str] = {
    "missing": "This field is required.",
    "extra_forbidden": "Unknown field.",
    "unexpected_keyword_argument": "Unknown field.",
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


def refusal(message: str) -> PydanticCustomError:
    """Return an error with our own message, for validators to raise."""
    template: LiteralString = "{message}"
    return PydanticCustomError(ERROR_TYPE, template, {"message": message})


def field_of(names: Iterable[str | int]) -> str:
    """Return the given names and indexes as a dotted path.

    A key chosen by the caller is included only if it looks like a name, so that data sent by
    mistake is not echoed.
    """
    return ".".join(
        str(name) if isinstance(name, int) or _PLAIN_NAME.fullmatch(name) else "*" for name in names
    )


def validation_message(error: Mapping[str, Any]) -> str:
    """Return our message for a pydantic error.

    If the error contains the input, the message may say which type it has, or which of our names
    resembles it most.
    """
    if error["type"] == ERROR_TYPE:
        return str(error["msg"])
    if error["type"] == _UNKNOWN:
        known_fields = error["ctx"]["known"]
        return MESSAGES["extra_forbidden"] + (
            suggestion(error["loc"][-1], known_fields) or _listed(known_fields)
        )
    ctx = {name: _short(limit) for name, limit in (error.get("ctx") or {}).items()}
    message = MESSAGES.get(error["type"], OTHER).format_map(ctx)
    value = error.get("input", ...)
    if error["type"].endswith("_type") and (kind := _TYPES.get(type(value))):
        return f"{message[:-1]}, not {kind}."
    return message + suggestion(value, _QUOTED.findall(str(ctx.get("expected", ""))))


_TYPES: Final[Mapping[type, str]] = {
    str: "a string",
    bool: "a boolean",
    float: "a fraction",
    list: "an array",
    dict: "an object",
    type(None): "null",
}
_QUOTED = re.compile("'([^']*)'")


def _short(limit: Any) -> Any:
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


class Suggesting(BaseModel):
    """Base model whose errors about unknown fields name the field that was probably meant."""

    @model_validator(mode="wrap")
    @classmethod
    def _suggest(cls, value: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        foreign = cls.foreign_fields()
        known_fields = (*_fields_of(cls), *foreign)
        if isinstance(value, dict) and foreign.keys() & value.keys():
            is_unset = {name for name in foreign if value.get(name) is None}
            value = {name: it for name, it in value.items() if name not in is_unset}
        try:
            return read(without_surplus(value, known_fields))
        except ValidationError as error:
            raise with_suggestions(error, known_fields, foreign) from None

    @classmethod
    def foreign_fields(cls) -> Mapping[str, str]:
        """Return messages for fields that only similar models have, by name; null is accepted."""
        return _NO_FIELDS


_NO_FIELDS: Final[Mapping[str, str]] = {}


@cache
def _fields_of(model: type[BaseModel]) -> Sequence[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def without_surplus(data: Any, known_fields: Collection[str]) -> Any:
    """Return an object without the unknown fields after the first ``_MAX_UNKNOWN``.

    It stays invalid, and no response shows their errors. Building an error for each of 80,000
    fields would hold the event loop for most of a second.
    """
    if not isinstance(data, dict) or len(data) <= len(known_fields) + _MAX_UNKNOWN:
        return data
    unknown = [name for name in data if name not in known_fields]
    surplus = frozenset(unknown[_MAX_UNKNOWN:])
    return {name: value for name, value in data.items() if name not in surplus}


_MAX_UNKNOWN: Final = 100


def with_suggestions(
    error: ValidationError, known_fields: Collection[str], foreign: Mapping[str, str] = _NO_FIELDS
) -> ValidationError:
    """Return an error about an object that suggests a known field for each unknown one.

    ``foreign`` has messages for fields that only similar objects have.
    """
    errors = error.errors(include_url=False)
    if not any(_is_unknown(one) for one in errors):
        return error
    lines = [_with_suggestion(one, known_fields, foreign) for one in errors]
    return ValidationError.from_exception_data(error.title, lines)


def _listed(fields: Collection[str]) -> str:
    if len(fields) > _MAX_LISTED:
        return " /openapi.json lists the allowed fields."
    return f" Known fields: {', '.join(fields)}."


_MAX_LISTED: Final = 12


def _is_unknown(error: Mapping[str, Any]) -> bool:
    """Return whether the error is about an unknown field of the object itself."""
    kinds = ("extra_forbidden", "unexpected_keyword_argument")
    return error["type"] in kinds and len(error["loc"]) == 1


def _with_suggestion(
    error: Mapping[str, Any], known_fields: Collection[str], foreign: Mapping[str, str]
) -> InitErrorDetails:
    """Return an error with our own message; errors with our own types keep them."""
    kind, ctx = error["type"], error.get("ctx") or {}
    if _is_unknown(error) and (message := foreign.get(str(error["loc"][0]))) is not None:
        kind, ctx = ERROR_TYPE, {"message": message}
    elif _is_unknown(error):
        kind, ctx = _UNKNOWN, {"known": list(known_fields)}
    elif not kind.startswith(ERROR_TYPE):
        kind, ctx = ERROR_TYPE, {"message": validation_message(error)}
    template: LiteralString = "{message}"
    error_type = PydanticCustomError(kind, template, ctx)
    return InitErrorDetails(type=error_type, loc=error["loc"], input=error["input"])
