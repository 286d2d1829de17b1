"""The JSON Schemas of the arguments of tools: how they are written, and how they are checked."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from jsonschema_rs import Draft202012Validator, ValidationError

from caseworker.observability.redaction import redact_text
from caseworker.tools.caller_schema import CallerSchema, TooMuchWorkError, first_error
from caseworker.tools.ports import ToolContext, ToolRefusedError, ToolResult, ToolSpec, failure
from caseworker.trace.json_values import copy_object

MAX_PROBLEMS = 3
MAX_LISTED_CHARS = 5000
"""Of a longer value only the first error is found."""
_MASK = "the value"
_NOT_JSON = "The arguments are not plain JSON, or are nested too deeply: simplify them."
_TOO_LONG = "The arguments are too long, or too deep, for so large a schema: shorten them."
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""An escaped NUL in a JSON text, which no database text can hold."""


def object_of(required: str, **properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object of these properties alone; ``required`` names some of them."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": properties,
    }


def text(most: int, description: str = "", *, least: int = 1) -> dict[str, Any]:
    """Return the schema of a text of ``least`` to ``most`` characters."""
    return _described({"type": "string", "minLength": least, "maxLength": most}, description)


def whole(lowest: int, highest: int, description: str = "") -> dict[str, Any]:
    """Return the schema of a whole number, which JSON may hold as 2 or as 2.0."""
    return _described({"type": "integer", "minimum": lowest, "maximum": highest}, description)


def choice(options: Iterable[str], description: str = "") -> dict[str, Any]:
    """Return the schema of one of several words."""
    return _described({"type": "string", "enum": list(options)}, description)


def day(description: str = "") -> dict[str, Any]:
    """Return the schema of a date as YYYY-MM-DD."""
    return _described({"type": "string", "format": "date"}, description)


def items(of: Mapping[str, Any], least: int, most: int, description: str = "") -> dict[str, Any]:
    """Return the schema of a list of ``least`` to ``most`` items."""
    found = {"type": "array", "items": of, "minItems": least, "maxItems": most}
    return _described(found, description)


def _described(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return schema | {"description": description} if description else schema


class UnfitSchemaError(ValueError):
    """A tool's own JSON Schema is broken, refers elsewhere or accepts unknown arguments."""


class ArgumentCheck:
    """The compiled schema of one tool.

    A message names the argument and says what to do. It never repeats a value: arguments may hold
    what must not reach a log.
    """

    def __init__(self, spec: ToolSpec, *, foreign: bool = False) -> None:
        """Compile the schema.

        A ``foreign`` schema was written by a caller or an MCP server: it is bounded, and may accept
        unknown arguments.

        Raises:
            UnfitSchemaError: the schema is unfit; the message names the tool.
        """
        schema = dict(spec.parameters)
        strict = schema.get("additionalProperties") is False
        if schema.get("type") != "object" or not (strict or foreign):
            raise UnfitSchemaError(
                f"the schema of tool {spec.name!r} must be an object without additionalProperties"
            )
        self._known = ", ".join(sorted(schema.get("properties", ()))) or "no arguments"
        self._bounded: CallerSchema | None = None
        try:
            if foreign:
                self._bounded = CallerSchema(schema, formats=True)
            else:
                self._validator = Draft202012Validator(
                    schema, retriever=_refuse, mask=_MASK, validate_formats=True
                )
        except (ValidationError, ValueError) as error:
            raise UnfitSchemaError(f"the schema of tool {spec.name!r} is unfit: {error}") from error

    def problem(self, args: Mapping[str, Any]) -> str | None:
        """Return what is wrong with ``args``, or None."""
        problems = [message for _, message in self.problems(args)]
        if not problems:
            return None
        shown = sorted(problems)[:MAX_PROBLEMS]
        more = len(problems) - len(shown)
        return " ".join(shown) + (f" And {more} more." if more else "")

    def problems(self, args: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return what is wrong with ``args``: each a dotted place, and what to do."""
        text = _stored(args)
        if text is None:
            return [("", _NOT_JSON)]
        try:
            if self._bounded is None:
                errors = _errors_in(self._validator, dict(args), len(text))
            else:
                found = self._bounded.errors(dict(args), len(text))
                if found is None:
                    return [("", "They do not fit their schema: compare them with it.")]
                errors = found
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
                inside = f" in '{place}'" if place else f" (the tool takes {self._known})"
                return f"{strange} is not known{inside}: leave it out."
            case "type":
                return f"'{place}' must be of type {' or '.join(details['types'])}: change it."
            case "enum":
                return f"'{place}' must be one of {details['options']}: choose one."
            case "format" if details["format"] == "date":
                return f"'{place}' must be a date written YYYY-MM-DD: change it."
            case _:
                return f"'{place or 'arguments'}': {error.message}: change it."


class CheckedTool(ABC):
    """What the built-in tools share: arguments that fit the schema, and refusals as results."""

    spec: ToolSpec

    def __init__(self) -> None:
        self._check = ArgumentCheck(self.spec)

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Run the tool; arguments that it cannot use end in a failure dict with the reason."""
        problem = self._check.problem(args)
        if problem is not None:
            return failure(problem, "invalid_arguments")
        try:
            return await self.answer(args, context)
        except ToolRefusedError as refusal:
            return refusal.result()

    @abstractmethod
    async def answer(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Return the result for arguments that follow the schema.

        Raises:
            ToolRefusedError: there is none.
        """


def _errors_in(validator: Draft202012Validator, value: Any, chars: int) -> list[ValidationError]:
    """Return the errors of a value of ``chars`` characters; only the first one of a long value.

    The library makes all errors at once, and half a million of them take seconds.
    """
    if validator.is_valid(value):
        return []
    if chars <= MAX_LISTED_CHARS:
        return list(validator.iter_errors(value))
    return first_error(validator, value)


def is_storable(value: Mapping[str, Any]) -> bool:
    """Return whether a journal can hold an object: no NaN, NUL, lone surrogate or deep nest."""
    return _stored(value) is not None


def _stored(args: Mapping[str, Any]) -> str | None:
    """Return the arguments as a journal holds them; None for NaN, NUL or lone surrogates."""
    try:
        text = json.dumps(copy_object(args), ensure_ascii=False)
        text.encode()
    except (ValueError, RecursionError):
        return None
    return None if _NUL.search(text) else text


def _refuse(uri: str) -> Any:
    raise ValueError(f"references to other documents are refused ({uri})")
