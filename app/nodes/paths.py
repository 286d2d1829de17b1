"""Dotted paths into the inputs of a step, such as ``default.items.0.price``.

The first name is an input handle; the others are keys of objects and indexes of lists. A path
finds JSON values and nothing else: no attribute is read and nothing is called, whatever a name
looks like.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from app.kernel.graph import DEFAULT_HANDLE

MAX_PATH_CHARS = 256
MAX_PATH_NAMES = 32

HANDLE = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_INDEX = re.compile(r"[0-9]{1,9}", re.ASCII)


@final
class _Missing:
    """The type of ``MISSING``."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""What a path finds where there is nothing; null is something."""


class PathError(ValueError):
    """A text that is no path; the message says what one looks like."""


class MissingValueError(LookupError):
    """The inputs of a step hold nothing where a path leads."""

    def __init__(self, path: "Path") -> None:
        super().__init__(f"There is no value at {path.text}.")


@dataclass(frozen=True, slots=True)
class Path:
    """A way into the inputs of a step."""

    text: str
    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Path":
        """Read a path.

        Raises:
            PathError: it is none.
        """
        names = tuple(text.split("."))
        if len(text) > MAX_PATH_CHARS or len(names) > MAX_PATH_NAMES:
            raise PathError(
                f"A path has at most {MAX_PATH_CHARS} characters and {MAX_PATH_NAMES} names."
            )
        if not HANDLE.fullmatch(names[0]) or not all(names):
            raise PathError(
                "A path is an input handle, and behind it, each after a dot, keys and indexes,"
                " such as default.items.0."
            )
        return cls(text, names)

    def find(self, inputs: Mapping[str, Any]) -> Any:
        """Return the value that the path leads to, or ``MISSING``."""
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
        """Return the value that the path leads to.

        Raises:
            MissingValueError: there is none.
        """
        value = self.find(inputs)
        if value is MISSING:
            raise MissingValueError(self)
        return value


DEFAULT_PATH = Path(DEFAULT_HANDLE, (DEFAULT_HANDLE,))
