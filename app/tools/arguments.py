"""Checks the arguments of a tool call against the tool's JSON Schema."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from jsonschema_rs import Draft202012Validator, ValidationError

from app.observability.redaction import redact_text
from app.tools.ports import ToolSpec
from app.tools.registry import ToolRegistry

MAX_PROBLEMS = 3
"""How many problems one message names."""
MAX_DEPTH = 64
"""How deep arguments may be nested."""
_MASK = "the value"
_NOT_JSON = "The arguments are not plain JSON, or are nested too deeply: simplify them."
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""An escaped NUL in a JSON text, which no database text can hold."""


class UnfitSchemaError(ValueError):
    """A tool's own JSON Schema is broken, refers elsewhere or accepts unknown arguments."""


class ArgumentChecks:
    """The compiled schemas of the tools of a registry.

    A message names the argument and says what to do. It never repeats a value: arguments may hold
    what must not reach a log.
    """

    def __init__(self, registry: ToolRegistry) -> None:
        """Compile every schema.

        Raises:
            UnfitSchemaError: a schema is unfit; the message names the tool.
        """
        self._checks = {spec.name: _ArgumentCheck(spec) for spec in registry.specs()}

    def problem(self, name: str, args: Mapping[str, Any]) -> str | None:
        """Return what is wrong with ``args`` for the tool ``name``, or None.

        Raises:
            KeyError: no tool has that name.
        """
        return self._checks[name].problem(args)


class _ArgumentCheck:
    def __init__(self, spec: ToolSpec) -> None:
        schema = dict(spec.parameters)
        if schema.get("type") != "object" or schema.get("additionalProperties") is not False:
            raise UnfitSchemaError(
                f"the schema of tool {spec.name!r} must be an object without additionalProperties"
            )
        self._known = ", ".join(sorted(schema.get("properties", ()))) or "no arguments"
        try:
            self._validator = Draft202012Validator(
                schema, retriever=_refuse, mask=_MASK, validate_formats=True
            )
        except (ValidationError, ValueError) as error:
            raise UnfitSchemaError(f"the schema of tool {spec.name!r} is unfit: {error}") from error

    def problem(self, args: Mapping[str, Any]) -> str | None:
        if not _is_storable(args):
            return _NOT_JSON
        try:
            problems = [self._told(error) for error in self._validator.iter_errors(dict(args))]
        except ValueError:
            return _NOT_JSON
        if not problems:
            return None
        shown = sorted(problems)[:MAX_PROBLEMS]
        more = len(problems) - len(shown)
        return " ".join(shown) + (f" And {more} more." if more else "")

    def _told(self, error: ValidationError) -> str:
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
            case _:
                return f"'{place or 'arguments'}': {error.message}: change it."


def _is_storable(args: Mapping[str, Any]) -> bool:
    """Tell whether a journal can hold the arguments: no NaN, NUL, broken surrogate or abyss."""
    try:
        if _is_deep(args):
            return False
        text = json.dumps(dict(args), allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return _NUL.search(text) is None


def _is_deep(args: Mapping[str, Any]) -> bool:
    """Tell whether the arguments are nested beyond ``MAX_DEPTH``; how deep a parser goes varies."""
    level: list[Any] = [args]
    for _ in range(MAX_DEPTH):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _refuse(uri: str) -> Any:
    raise ValueError(f"references to other documents are refused ({uri})")
