"""JSON Schemas for tool arguments: functions that build them, and a validator."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any, Self
from uuid import UUID

from jsonschema_rs import Draft202012Validator, ValidationError
from pydantic import TypeAdapter

from caseworker.core.trace.json_values import copy_object
from caseworker.platform.logs.redaction import redact_text
from caseworker.tools.caller_schema import CallerSchema, TooMuchWorkError, first_error
from caseworker.tools.ports import (
    Tool,
    ToolContext,
    ToolRefusedError,
    ToolResult,
    ToolSpec,
    failure,
)

MAX_PROBLEMS = 3
MAX_LISTED_CHARS = 5000
"""Maximum size, in characters, of a value for which all errors are reported. For a larger value
only the first error is reported."""
_MASK = "the value"
_NOT_JSON = "The arguments are not plain JSON, or are nested too deeply: simplify them."
_TOO_LONG = "The arguments are too long, or too deep, for so large a schema: shorten them."
_FORMS = {
    "date": "a date written YYYY-MM-DD",
    "date-time": "a date and time written YYYY-MM-DDThh:mm:ssZ",
    "time": "a time written hh:mm:ssZ",
}
_FORMS_OF_PYTHON = {
    "date": "a date written YYYY-MM-DD",
    "date-time": "a date and time written YYYY-MM-DDThh:mm:ss, with or without a zone",
    "time": "a time written hh:mm:ss, with or without a zone",
    "duration": "a duration such as PT5M or 00:05:00",
}


def _accepts(kind: Any) -> Callable[[str], bool]:
    adapter = TypeAdapter[Any](kind)

    def is_accepted(text: str) -> bool:
        try:
            adapter.validate_python(text)
        except ValueError:
            return False
        return True

    return is_accepted


_OF_PYTHON: Mapping[str, Callable[[str], bool]] = {
    "date": _accepts(date),
    "date-time": _accepts(datetime),
    "time": _accepts(time),
    "duration": _accepts(timedelta),
    "uuid": _accepts(UUID),
    "regex": lambda _: True,
    "uri": lambda _: True,
}
"""Checks of formats for arguments that pydantic, or the program behind a URL, validates again.

JSON Schema requires a zone in a time, for example, but a ``datetime`` takes a local time too. A
``NaiveDatetime`` takes no other. The format is the same.
"""
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""An escaped NUL in a JSON text, which the database cannot store as text."""


def object_of(required: str, **properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema for an object with only these properties.

    ``required`` contains the names of the required properties, separated by spaces.
    """
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": properties,
    }


def text(max_chars: int, description: str = "", *, min_chars: int = 1) -> dict[str, Any]:
    """Return the schema for a string of ``min_chars`` to ``max_chars`` characters."""
    return _described(
        {"type": "string", "minLength": min_chars, "maxLength": max_chars}, description
    )


def integer(lowest: int, highest: int, description: str = "") -> dict[str, Any]:
    """Return the schema for an integer, which JSON may write as 2 or as 2.0."""
    return _described({"type": "integer", "minimum": lowest, "maximum": highest}, description)


def choice(options: Iterable[str], description: str = "") -> dict[str, Any]:
    """Return the schema for one of the given strings."""
    return _described({"type": "string", "enum": list(options)}, description)


def day(description: str = "") -> dict[str, Any]:
    """Return the schema for a date in the form YYYY-MM-DD."""
    return _described({"type": "string", "format": "date"}, description)


def items(
    of: Mapping[str, Any], min_items: int, max_items: int, description: str = ""
) -> dict[str, Any]:
    """Return the schema for an array of ``min_items`` to ``max_items`` items of schema ``of``."""
    schema = {"type": "array", "items": of, "minItems": min_items, "maxItems": max_items}
    return _described(schema, description)


def _described(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return schema | {"description": description} if description else schema


class UnfitSchemaError(ValueError):
    """A tool's JSON Schema is invalid, refers to other documents, or allows unknown arguments."""


def _fault_in_schema(error: ValidationError | ValueError) -> str:
    """Return one line with the keyword at fault."""
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())
    place = ".".join(map(str, error.instance_path))
    if error.kind.name == "anyOf" and place.rpartition(".")[2] == "type":
        return f"{place} is not a type of JSON Schema, such as string or object"
    return f"{place}: {' '.join(error.message.split())}".removeprefix(": ")


class ArgumentCheck:
    """Validates a tool's arguments against its compiled schema.

    An error message names the argument and the fix. It never repeats a value, because arguments may
    contain sensitive data that must not be logged.
    """

    def __init__(
        self, spec: ToolSpec, *, foreign: bool = False, strict_formats: bool = True
    ) -> None:
        """Compile the schema.

        A ``foreign`` schema comes from a caller or an MCP server: its size and work are limited,
        and it may allow unknown arguments. Its formats are not strict. Without
        ``strict_formats``, a date or time may have any form that Python's types take.

        Raises:
            UnfitSchemaError: the schema is unusable; the message names the tool.
        """
        self._schema = schema = dict(spec.parameters)
        strict = schema.get("additionalProperties") is False
        if schema.get("type") != "object" or not (strict or foreign):
            raise UnfitSchemaError(
                f"the schema of tool {spec.name!r} must be an object without additionalProperties"
            )
        self._argument_names = ", ".join(sorted(schema.get("properties", ()))) or "no arguments"
        self._bounded: CallerSchema | None = None
        strict_formats = strict_formats and not foreign
        self._forms = _FORMS if strict_formats else _FORMS_OF_PYTHON
        try:
            if foreign:
                self._bounded = CallerSchema(schema, formats=_OF_PYTHON)
            else:
                self._validator = Draft202012Validator(
                    schema,
                    retriever=_refuse,
                    mask=_MASK,
                    validate_formats=True,
                    formats=None if strict_formats else dict(_OF_PYTHON),
                )
        except (ValidationError, ValueError) as error:
            message = f"the schema of tool {spec.name!r} is invalid: {_fault_in_schema(error)}"
            raise UnfitSchemaError(message) from error

    @classmethod
    def of(cls, tool: Tool) -> Self:
        """Return the check for a local tool.

        Raises:
            UnfitSchemaError: the schema is unusable; the message names the tool.
        """
        return cls(tool.spec, strict_formats=not getattr(tool, "checks_formats", False))

    def problem(self, args: Mapping[str, Any]) -> str | None:
        """Return one message that describes the errors in ``args``, or None if they are valid."""
        problems = [message for _, message in self.problems(args)]
        if not problems:
            return None
        reported = sorted(problems)[:MAX_PROBLEMS]
        more = len(problems) - len(reported)
        return " ".join(reported) + (f" And {more} more." if more else "")

    def problems(self, args: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the errors in ``args``, each as a dotted path and a message with the fix."""
        text = _stored(args)
        if text is None:
            return [("", _NOT_JSON)]
        try:
            if self._bounded is None:
                errors = _errors_in(self._validator, dict(args), len(text))
            else:
                raw_errors = self._bounded.errors(dict(args), len(text))
                if raw_errors is None:
                    return [("", "They do not fit their schema: compare them with it.")]
                errors = raw_errors
        except TooMuchWorkError:
            return [("", _TOO_LONG)]
        except ValueError:
            return [("", _NOT_JSON)]
        return [(".".join(map(str, e.instance_path)), self._message(e)) for e in errors]

    def _message(self, error: ValidationError) -> str:
        place = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path
        ).lstrip(".")
        details = error.kind.as_dict()
        match error.kind.name:
            case "required":
                missing = f"{place}.{details['property']}" if place else details["property"]
                return f"'{missing}' is missing: add it."
            case "additionalProperties":
                names = [redact_text(name, max_chars=40) for name in details["unexpected"][:3]]
                strange = ", ".join(f"'{name}'" for name in names)
                inside = f" in '{place}'" if place else f" (the tool takes {self._argument_names})"
                return f"{strange} is not known{inside}: leave it out."
            case "type" | "format" if form := self._form_at(error.schema_path):
                return f"'{place}' must be {form}: change it."
            case "type":
                return f"'{place}' must be of type {' or '.join(details['types'])}: change it."
            case "enum":
                return f"'{place}' must be one of {details['options']}: choose one."
            case _:
                return f"'{place or 'arguments'}': {error.message}: change it."

    def _form_at(self, path: Sequence[str | int]) -> str | None:
        """Return the form of a date or time whose schema has the keyword at ``path``."""
        schema: Any = self._schema
        try:
            for part in path[:-1]:
                schema = schema[part]
            return self._forms.get(schema.get("format"))
        except (AttributeError, LookupError, TypeError):  # relative to the $id of a subschema
            return None


class CheckedTool(ABC):
    """Base class for the built-in tools; validates arguments and returns refusals as results."""

    spec: ToolSpec

    def __init__(self) -> None:
        self._check = ArgumentCheck(self.spec)

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Run the tool; invalid arguments and refusals return a failure dict with the reason."""
        problem = self._check.problem(args)
        if problem is not None:
            return failure(problem, "invalid_arguments")
        try:
            return await self.answer(args, context)
        except ToolRefusedError as refusal:
            return refusal.result()

    @abstractmethod
    async def answer(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Return the result for arguments that match the schema.

        Raises:
            ToolRefusedError: the tool has no result for these arguments.
        """


def _errors_in(validator: Draft202012Validator, value: Any, chars: int) -> list[ValidationError]:
    """Return the errors of a value of ``chars`` characters; only the first one for a long value.

    The library builds all errors at once, which takes seconds for half a million of them.
    """
    if validator.is_valid(value):
        return []
    if chars <= MAX_LISTED_CHARS:
        return list(validator.iter_errors(value))
    return first_error(validator, value)


def fits_journal(value: Mapping[str, Any]) -> bool:
    """Return whether the journal can store an object.

    It cannot store NaN, NUL, lone surrogates or deep nesting.
    """
    return _stored(value) is not None


def _stored(args: Mapping[str, Any]) -> str | None:
    """Return the JSON text of the arguments, or None if the journal cannot store it."""
    try:
        text = json.dumps(copy_object(args), ensure_ascii=False)
        text.encode()
    except (ValueError, RecursionError):
        return None
    return None if _NUL.search(text) else text


def _refuse(uri: str) -> Any:
    raise ValueError(f"references to other documents are refused ({uri})")
