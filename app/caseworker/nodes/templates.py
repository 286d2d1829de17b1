"""Text and JSON templates with ``${path}`` placeholders.

A template is parsed once, when its graph is checked. Rendering substitutes values in a single pass:
values are never parsed as templates, and nothing is evaluated. ``$${`` is an escaped ``${``.

A path such as ``default.items.0.price`` refers to a value in a step's inputs. The first name is an
input handle; the following ones are object keys and list indexes. A path only finds JSON values. It
reads no attributes and calls nothing, whatever its names are.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.core.trace.frozen_json import DEFAULT_VALUE_LIMITS, ValueLimits
from caseworker.core.trace.json_values import MAX_DEPTH

MAX_PATH_CHARS = 256
MAX_PATH_NAMES = 32

HANDLE = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_INDEX = re.compile(r"[0-9]{1,9}", re.ASCII)

_PLACE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")


@final
class _Missing:
    """The type of ``MISSING``."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""Result of a path that leads to no value. Null is a value."""


class PathError(ValueError):
    """A text is not a valid path. The message describes the syntax."""


class MissingValueError(LookupError):
    """A step's inputs have no value at a path."""

    def __init__(self, path: "Path") -> None:
        super().__init__(f"There is no value at {path.text}.")


@dataclass(frozen=True, slots=True)
class Path:
    """A path to a value in a step's inputs."""

    text: str
    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Path":
        """Parse a path, or raise PathError."""
        names = tuple(text.split("."))
        if len(text) > MAX_PATH_CHARS or len(names) > MAX_PATH_NAMES:
            raise PathError(
                f"A path has at most {MAX_PATH_CHARS} characters and {MAX_PATH_NAMES} names."
            )
        if not HANDLE.fullmatch(names[0]) or not all(names):
            raise PathError(
                "A path is an input handle, and optionally keys and indexes, joined with dots,"
                " such as default.items.0."
            )
        return cls(text, names)

    def find(self, inputs: Mapping[str, Any]) -> Any:
        """Return the value at the path, or ``MISSING``."""
        value: Any = inputs
        for name in self.names:
            if isinstance(value, Mapping):
                value = value.get(name, MISSING)
            elif isinstance(value, list | tuple) and _INDEX.fullmatch(name):
                index = int(name)
                value = value[index] if index < len(value) else MISSING
            else:
                return MISSING
        return value

    def value_in(self, inputs: Mapping[str, Any]) -> Any:
        """Return the value at the path, or raise MissingValueError."""
        value = self.find(inputs)
        if value is MISSING:
            raise MissingValueError(self)
        return value


DEFAULT_PATH = Path(DEFAULT_HANDLE, (DEFAULT_HANDLE,))


class TemplateError(ValueError):
    """A template has a syntax error. The message states the fix."""


class TooMuchTextError(ValueError):
    """The values to substitute into a template are too large."""

    def __init__(self, max_chars: int) -> None:
        super().__init__(
            f"The values of the template have more than {max_chars:,} characters in total"
            " (limits.max_value_kb)."
        )


def compact(value: Any) -> str:
    """Return a JSON value as compact text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class TextTemplate:
    """A text template. Values are converted to text; objects and lists to compact JSON."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[str | Path]) -> None:
        self._parts = tuple(parts)

    @classmethod
    def parse(cls, text: str) -> "TextTemplate":
        """Parse a template, or raise TemplateError."""
        return cls(_parts(text))

    @property
    def names(self) -> tuple[str, ...]:
        """First name of each path (the input handle), in order of appearance."""
        return tuple(part.names[0] for part in self._parts if isinstance(part, Path))

    def render(self, inputs: Mapping[str, Any], limits: ValueLimits = DEFAULT_VALUE_LIMITS) -> str:
        """Return the text with values substituted, up to the maximum size of a value.

        Raises:
            MissingValueError: a path has no value; the message names it.
            TooMuchTextError: the values are too large.
        """
        return _Rendering(inputs, limits).text(self._parts)


class JsonTemplate:
    """A JSON value whose strings may contain placeholders.

    A string that is only one placeholder becomes the value itself, of any type. Keys have no
    placeholders.
    """

    __slots__ = ("_render", "constant")

    def __init__(self, value: Any) -> None:
        """Parse a template, or raise TemplateError."""
        self._render, self.constant = _read(value, 0)
        """True if it has no placeholders."""

    def render(self, inputs: Mapping[str, Any], limits: ValueLimits = DEFAULT_VALUE_LIMITS) -> Any:
        """Return a copy of the JSON value with all placeholders replaced.

        Raises:
            MissingValueError: a path has no value; the message names it.
            TooMuchTextError: the values are too large.
        """
        return self._render(_Rendering(inputs, limits))


class _Rendering:
    """The state of one rendering: the remaining size, and a cache of texts by path."""

    __slots__ = ("_chars_left", "_inputs", "_max_chars", "_texts")

    def __init__(self, inputs: Mapping[str, Any], limits: ValueLimits) -> None:
        self._inputs = inputs
        self._chars_left = self._max_chars = limits.max_value_bytes
        self._texts: dict[Path, str] = {}

    def text(self, parts: Sequence[str | Path]) -> str:
        return "".join(part if isinstance(part, str) else self._text_at(part) for part in parts)

    def value(self, path: Path) -> Any:
        value = path.value_in(self._inputs)
        if isinstance(value, bool | int | float) or value is None:
            return value
        self._text_at(path)  # charge its size as if written out
        return value

    def _text_at(self, path: Path) -> str:
        text = self._texts.get(path)
        if text is None:
            value = path.value_in(self._inputs)
            text = self._texts[path] = value if isinstance(value, str) else compact(value)
        self._chars_left -= len(text)
        if self._chars_left < 0:
            raise TooMuchTextError(self._max_chars)
        return text


_Render = Callable[[_Rendering], Any]


def _read(value: Any, depth: int) -> tuple[_Render, bool]:
    """Return a render function for a value, and whether the value has no placeholders."""
    if depth > MAX_DEPTH:
        raise TemplateError("This is nested too deeply.")
    if isinstance(value, Mapping):
        items = {key: _read(item, depth + 1) for key, item in value.items()}
        constant = all(constant for _, constant in items.values())
        return lambda r: {key: render(r) for key, (render, _) in items.items()}, constant
    if isinstance(value, list):
        parts = [_read(item, depth + 1) for item in value]
        return lambda r: [render(r) for render, _ in parts], all(fixed for _, fixed in parts)
    if not isinstance(value, str):
        return lambda _: value, True
    match _parts(value):
        case []:
            return lambda _: "", True
        case [str() as text]:
            return lambda _: text, True
        case [Path() as path]:
            return lambda r: r.value(path), False
        case texts:
            return lambda r: r.text(texts), False


def _parts(text: str) -> list[str | Path]:
    """Return the literal texts and paths of a template; adjacent literals are merged."""
    parts: list[str | Path] = []
    literal, end = "", 0
    for place in _PLACE.finditer(text):
        literal += text[end : place.start()]
        end = place.end()
        if place[0] == "$${":
            literal += "${"
            continue
        if literal:
            parts.append(literal)
            literal = ""
        parts.append(_path_in(place))
    literal += text[end:]
    return [*parts, literal] if literal else parts


def _path_in(place: re.Match[str]) -> Path:
    if place[1] is None:
        raise TemplateError("A ${ has no closing }. Add it, or write $${ for a literal ${.")
    try:
        return Path.parse(place[1])
    except PathError as error:
        raise TemplateError(f"There must be a path between ${{ and }}. {error}") from None
