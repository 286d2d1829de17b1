"""Results of earlier actions in the arguments of later ones: ``${result.1}``.

A plan may use what an action before has found without asking the planner again. ``${result.1}`` is
what action 1 found, ``${result.1.closes.0}`` a value inside its result. A text that is one place
and nothing else becomes the value itself, of whatever kind; inside a longer text it becomes text.
Places are filled once: what a result holds is never read as a place, and nothing is ever evaluated.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from app.nodes.case.answer import finding
from app.tools.ports import ToolResult

MAX_FILLED_CHARS = 100_000
"""How much text, or JSON written as text, the places of one action may be filled with."""

MISSING_RESULT = "missing_result"
"""The code of an action that had nothing to be filled with, and was therefore not run."""

_PLACE = re.compile(r"\$\{result\.([1-9])((?:\.[A-Za-z0-9_-]{1,64}){0,8})\}", re.ASCII)
_INTENDED = re.compile(r"\$\{results?\b")
_INDEX = re.compile(r"[0-9]{1,6}", re.ASCII)


class UnfilledPlaceError(ValueError):
    """A place that cannot be filled; the message says why and repeats no value."""


def require_earlier(args: Mapping[str, Any], number: int) -> None:
    """Check that the places in the arguments of the ``number``-th action lead to earlier ones.

    Raises:
        UnfilledPlaceError: one does not, or is not written as a place is.
    """
    for text in _texts(args):
        places = [int(place[1]) for place in _PLACE.finditer(text)]
        if len(places) != len(_INTENDED.findall(text)):
            raise UnfilledPlaceError("write ${result.1}, or ${result.1.name} for a part of it")
        if any(place >= number for place in places):
            raise UnfilledPlaceError("only the results of earlier actions can be used")


def fill(args: Mapping[str, Any], results: Mapping[int, ToolResult]) -> dict[str, Any]:
    """Return the arguments with ``results``, by the number of their action, in their places.

    Raises:
        UnfilledPlaceError: there is no such result or part of it, or it is too large.
    """
    filling = _Filling(results)
    return {name: filling.value(value) for name, value in args.items()}


class _Filling:
    """One filling of the arguments of an action, with what may still be put in."""

    def __init__(self, results: Mapping[int, ToolResult]) -> None:
        self._results = results
        self._left = MAX_FILLED_CHARS

    def value(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self.value(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner) for inner in value]
        if not isinstance(value, str):
            return value
        whole = _PLACE.fullmatch(value)
        if whole is None:
            return _PLACE.sub(self._text_at, value)
        found = self._found_at(whole)
        self._take(_as_text(found))
        return found

    def _text_at(self, place: re.Match[str]) -> str:
        result = self._result_at(place)
        text = _as_text(self._found_at(place)) if place[2] else finding(result)
        if text is None:
            raise _nothing_at(place)
        self._take(text)
        return text

    def _found_at(self, place: re.Match[str]) -> Any:
        found: Any = self._result_at(place)
        if not place[2]:
            found = found["value"] if "value" in found else finding(found)
        for name in place[2].split(".")[1:]:
            found = _part(found, name)
        if found is None:
            raise _nothing_at(place)
        return found

    def _result_at(self, place: re.Match[str]) -> ToolResult:
        result = self._results.get(int(place[1]))
        if result is None or "error" in result:
            raise UnfilledPlaceError(f"Action {place[1]} has no result that could be used here.")
        return result

    def _take(self, text: str) -> None:
        self._left -= len(text)
        if self._left < 0:
            raise UnfilledPlaceError(
                f"The results to be used here come to more than {MAX_FILLED_CHARS} characters."
            )


def _part(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, list) and _INDEX.fullmatch(name) and int(name) < len(value):
        return value[int(name)]
    return None


def _nothing_at(place: re.Match[str]) -> UnfilledPlaceError:
    return UnfilledPlaceError(f"There is no value at {place[0]}.")


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
