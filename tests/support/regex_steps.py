"""Counts the steps of a backtracking regular expression.

It uses the parser of the standard library and matches like its engine, but one visible step at a
time and without its optimisations, so it never takes fewer steps. Every match is compared with that
of the real engine.
"""

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_parser = importlib.import_module("re._parser")
_codes = importlib.import_module("re._constants")

_REPEATS = (_codes.MAX_REPEAT, _codes.MIN_REPEAT, _codes.POSSESSIVE_REPEAT)
_ONE_CHARACTER = (_codes.LITERAL, _codes.NOT_LITERAL, _codes.ANY, _codes.IN)


class CountingPattern:
    """Searches like a compiled pattern and counts the steps."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._tree = list(_parser.parse(pattern.pattern, pattern.flags))
        self._ignores_case = bool(pattern.flags & re.IGNORECASE)
        self._text = ""
        self.steps = 0

    def search(self, string: str, pos: int = 0, /) -> re.Match[str] | None:
        """Return the first match that starts at ``pos`` or later."""
        self._text = string
        found = self._pattern.search(string, pos)
        for start in range(pos, len(string) + 1):
            self.steps += 1
            end = next(self._ends(self._tree, 0, start, self._ignores_case), None)
            if end is not None:
                assert found is not None
                assert found.span() == (start, end)
                return found
        assert found is None
        return None

    def finditer(self, string: str) -> Iterator[re.Match[str]]:
        """Yield the matches in order; none may be empty."""
        at = 0
        while found := self.search(string, at):
            yield found
            at = found.end()

    def _ends(self, items: Sequence[Any], number: int, at: int, fold: bool) -> Iterator[int]:
        """Yield the ends of the items from ``number`` on that start at ``at``, in order."""
        if number == len(items):
            yield at
            return
        code, argument = items[number]
        for middle in self._one(code, argument, at, fold):
            yield from self._ends(items, number + 1, middle, fold)

    def _one(self, code: Any, argument: Any, at: int, fold: bool) -> Iterator[int]:
        self.steps += 1
        if code in _ONE_CHARACTER:
            if at < len(self._text) and self._fits(code, argument, self._text[at], fold):
                yield at + 1
        elif code is _codes.BRANCH:
            for way in argument[1]:
                yield from self._ends(list(way), 0, at, fold)
        elif code is _codes.SUBPATTERN:
            _, added, removed, inner = argument
            folds = (fold or bool(added & re.IGNORECASE)) and not removed & re.IGNORECASE
            yield from self._ends(list(inner), 0, at, folds)
        elif code in _REPEATS:
            yield from self._repeated(code, argument, at, fold)
        else:
            yield from self._without_width(code, argument, at, fold)

    def _without_width(self, code: Any, argument: Any, at: int, fold: bool) -> Iterator[int]:
        if code is _codes.AT:
            holds = self._stands(argument, at)
        else:
            direction, inner = argument
            start = at if direction > 0 else at - inner.getwidth()[0]
            ends = self._ends(list(inner), 0, start, fold) if start >= 0 else iter(())
            holds = (next(ends, None) is not None) == (code is _codes.ASSERT)
        if holds:
            yield at

    def _repeated(
        self, code: Any, argument: tuple[int, Any, Any], at: int, fold: bool
    ) -> Iterator[int]:
        least, top, items = argument[0], int(argument[1]), list(argument[2])
        if code is _codes.MAX_REPEAT and not (len(items) == 1 and items[0][0] in _ONE_CHARACTER):
            yield from self._greedy(items, least, top, at, fold)
            return
        ends = [at]
        if code is _codes.MIN_REPEAT:
            yield from self._lazy(items, least, top, at, fold)
            return
        while len(ends) <= top:
            end = next(self._ends(items, 0, ends[-1], fold), None)
            if end is None:
                break
            ends.append(end)
        if code is _codes.POSSESSIVE_REPEAT:
            yield from ends[-1:] if len(ends) > least else ()
            return
        for end in reversed(ends[least:]):
            self.steps += 1
            yield end

    def _greedy(
        self, items: list[Any], least: int, most: int, at: int, fold: bool
    ) -> Iterator[int]:
        if most > 0:
            for middle in self._ends(items, 0, at, fold):
                yield from self._greedy(items, least - 1, most - 1, middle, fold)
        if least <= 0:
            yield at

    def _lazy(self, items: list[Any], least: int, most: int, at: int, fold: bool) -> Iterator[int]:
        while True:
            if least <= 0:
                yield at
            end = next(self._ends(items, 0, at, fold), None) if most > 0 else None
            if end is None:
                return
            at, least, most = end, least - 1, most - 1

    def _stands(self, where: Any, at: int) -> bool:
        if where is _codes.AT_BOUNDARY:
            before = at > 0 and _is_word(self._text[at - 1])
            return before != (at < len(self._text) and _is_word(self._text[at]))
        if where is _codes.AT_END:
            return self._text[at:] in ("", "\n")
        assert where is _codes.AT_END_STRING
        return at == len(self._text)

    def _fits(self, code: Any, argument: Any, character: str, fold: bool) -> bool:
        forms = {character, character.lower(), character.upper()} if fold else {character}
        if code is _codes.ANY:
            return character != "\n" or bool(self._pattern.flags & re.DOTALL)
        if code is _codes.IN:
            negated = argument[0][0] is _codes.NEGATE
            return negated != any(_is_in(entry, form) for entry in argument for form in forms)
        same = any(ord(form) == argument for form in forms if len(form) == 1)
        return same == (code is _codes.LITERAL)


def _is_in(entry: Any, character: str) -> bool:
    code, argument = entry
    if len(character) != 1 or code is _codes.NEGATE:
        return False
    if code is _codes.LITERAL:
        return bool(ord(character) == argument)
    if code is _codes.RANGE:
        return bool(argument[0] <= ord(character) <= argument[1])
    return _CATEGORIES[str(argument)](character)


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


_CATEGORIES: dict[str, Callable[[str], bool]] = {
    "CATEGORY_DIGIT": str.isdecimal,
    "CATEGORY_NOT_DIGIT": lambda character: not character.isdecimal(),
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_NOT_SPACE": lambda character: not character.isspace(),
    "CATEGORY_WORD": _is_word,
    "CATEGORY_NOT_WORD": lambda character: not _is_word(character),
}
