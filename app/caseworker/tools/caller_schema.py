"""JSON Schemas from untrusted sources: API clients and MCP servers.

Compiling and validating hold the GIL, so both are limited in advance. The constructor limits bytes,
depth, patterns and expansion through ``$ref``. Each validation is limited by the product of the
instance's size and the schema's size.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError

from caseworker.tools.schema_size import SchemaSize

MAX_COMPILED_BYTES: Final = 64 * 1024
"""Maximum size of a compiled pattern in bytes. Matching may visit all of it for each character."""
MAX_WORK: Final = 20_000_000
"""Maximum work of one validation, in subschema checks: instance characters times schema size."""
MAX_ERRORS: Final = 4000
"""Maximum number of possible errors for which all errors are listed. The library needs about 30
microseconds for each."""

_MASK = "the value"


class TooMuchWorkError(ValueError):
    """Validating the instance could take too long."""


class CallerSchema:
    """A compiled JSON Schema (draft 2020-12) without references to other documents."""

    def __init__(
        self,
        schema: Mapping[str, Any],
        *,
        formats: Mapping[str, Callable[[str], bool]] | None = None,
    ) -> None:
        """Measure and compile a schema.

        ``formats`` enables validation of ``format``, with these checks instead of the usual ones.

        Raises:
            ValueError: the schema is invalid, exceeds a limit, or refers to another document. The
                message names the limit and quotes nothing.
        """
        self.schema = schema
        self._size = SchemaSize.of(schema)
        options = RegexOptions(size_limit=MAX_COMPILED_BYTES, dfa_size_limit=MAX_COMPILED_BYTES)
        try:
            self._validator = Draft202012Validator(
                dict(schema),
                retriever=_refuse,
                mask=_MASK,
                validate_formats=formats is not None,
                formats=None if formats is None else dict(formats),
                pattern_options=options,
            )
        except (ValidationError, ValueError):
            raise ValueError(
                "This is not a self-contained JSON Schema (draft 2020-12) whose patterns take"
                f" linear time and at most {MAX_COMPILED_BYTES:,} bytes."
            ) from None

    def errors(self, value: Any, chars: int) -> list[ValidationError] | None:
        """Return the errors in a JSON value with ``chars`` characters; empty if it is valid.

        If there may be many errors, return only the first one. If even finding the first error
        would take too long, return None for an invalid value.

        Raises:
            TooMuchWorkError: the validation would take too long.
        """
        values, depth = _extent(value)
        if self._size.work(chars, depth) > MAX_WORK:
            raise TooMuchWorkError
        if self._validator.is_valid(value):
            return []
        if self._size.errors(values, depth) <= MAX_ERRORS:
            return list(self._validator.iter_errors(value))
        if self._size.has_branches:
            return None
        return first_error(self._validator, value)


def first_error(validator: Draft202012Validator, value: Any) -> list[ValidationError]:
    """Return a list with the first error in a value; empty if the value is valid."""
    try:
        validator.validate(value)
    except ValidationError as error:
        return [error]
    return []


def _extent(value: Any) -> tuple[int, int]:
    """Return the number of nested values and the depth of a value."""
    level, values, depth = [value], 0, 0
    while level:
        values += len(level)
        depth += 1
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
    return values, depth


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"a reference to another document ({uri})")
