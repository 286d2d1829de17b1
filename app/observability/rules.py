"""How a kind of secret or of personal data is found in a text and replaced.

Every rule takes linear time. A pattern whose repetition has no upper bound is possessive and begins
at the edge of a word, so that each word is read once; all others are bounded. What a judge lets
stand is searched again from its second character on, for something may begin inside.

Most texts hold nothing, and few rules have to do with any one text. So rules say what must be there
for them to find anything, and a `Sieve` asks each of these questions once.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

SECRET = "[secret]"  # noqa: S105 - it stands where one was

Judge = Callable[[re.Match[str]], str | None]
"""Returns what takes the place of a match; None if it may stay."""

Shape = Callable[[str], object]
"""Says of a text in lower case whether a rule may find something in it."""


class Pattern(Protocol):
    """What a rule asks of a compiled regular expression."""

    def search(self, string: str, pos: int = 0, /) -> re.Match[str] | None:
        """Return the first match that begins at ``pos`` or later."""
        ...


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of what must not be shown."""

    pattern: Pattern
    judge: Judge
    hints: tuple[str, ...] = ()
    """Texts in lower case, one of which is there wherever the pattern matches; none: any text."""
    whole: bool = False
    """True if nothing is looked for inside what the judge has let stand."""
    shape: Shape | None = None
    """True of whatever the pattern matches in; it is asked after the hints, and costs more."""

    def applied(self, text: str, lowered: str) -> str:
        """Return ``text`` without what the rule finds; ``lowered`` is the text in lower case."""
        if self.hints and not any(hint in lowered for hint in self.hints):
            return text
        found = self.pattern.search(text)
        return text if found is None else self._replaced(text, found)

    def _replaced(self, text: str, found: re.Match[str] | None) -> str:
        parts: list[str] = []
        shown_from = 0
        while found is not None:
            mark = self.judge(found)
            if mark is None:
                onward = found.end() if self.whole else found.start() + 1
                found = self.pattern.search(text, onward)
                continue
            parts += (text[shown_from : found.start()], mark)
            shown_from = found.end()
            found = self.pattern.search(text, shown_from)
        return "".join(parts) + text[shown_from:]


@dataclass(frozen=True, slots=True)
class RulesBetween:
    """Rules for what stands between the places where a text is kept as it is."""

    rules: tuple[Rule, ...]
    kept: re.Pattern[str]
    shape: Shape
    hints: tuple[str, ...] = ()

    def applied(self, text: str, lowered: str) -> str:
        """Return ``text`` without what the rules find."""
        parts: list[str] = []
        done = 0
        for found in self.kept.finditer(text):
            parts += (applied(self.rules, text[done : found.start()]), found.group())
            done = found.end()
        if done == 0:
            return applied(self.rules, text, lowered)
        return "".join(parts) + applied(self.rules, text[done:])


class Sieve:
    """Many rules, of which only those are tried that have to do with a text."""

    def __init__(self, rules: Sequence[Rule | RulesBetween]) -> None:
        self._rules = tuple((1 << number, rule) for number, rule in enumerate(rules))
        by_hint: dict[str, int] = {}
        by_shape: dict[Shape | None, int] = {}
        for bit, rule in self._rules:
            for hint in rule.hints:
                by_hint[hint] = by_hint.get(hint, 0) | bit
            if not rule.hints:
                by_shape[rule.shape] = by_shape.get(rule.shape, 0) | bit
        self._always = by_shape.pop(None, 0)
        self._hinted = tuple(by_hint.items())
        self._any_hint = re.compile(_any_of(by_hint) if by_hint else r"(?!)")
        self._shaped = tuple((shape, bits) for shape, bits in by_shape.items() if shape is not None)

    def applied(self, text: str) -> str:
        """Return ``text`` after all rules, each applied to what those before it have left."""
        lowered = text.lower()
        tried = self._tried(lowered)
        if not tried:
            return text
        for bit, rule in self._rules:
            if bit & tried and (not rule.hints or rule.shape is None or rule.shape(lowered)):
                text = rule.applied(text, lowered)
        return text

    def _tried(self, lowered: str) -> int:
        """Return the bits of the rules that may find something."""
        tried = self._always
        if self._any_hint.search(lowered) is not None:
            for hint, bits in self._hinted:
                if hint in lowered:
                    tried |= bits
        for shape, bits in self._shaped:
            if shape(lowered):
                tried |= bits
        return tried


def marked(mark: str) -> Judge:
    """Return a judge that lets nothing stand; ``mark`` may refer to groups of the pattern."""
    if "\\" in mark:
        return lambda found: found.expand(mark)
    return lambda _: mark


def shaped(pattern: str) -> Shape:
    """Return what says whether a pattern is found in a text in lower case."""
    return re.compile(pattern).search


def applied(rules: Iterable[Rule], text: str, lowered: str | None = None) -> str:
    """Return ``text`` after all rules, each applied to what those before it have left."""
    lowered = text.lower() if lowered is None else lowered
    for rule in rules:
        text = rule.applied(text, lowered)
    return text


def _any_of(texts: Iterable[str]) -> str:
    """Return a pattern for any of some texts, in which what begins alike is read once."""
    rests: dict[str, list[str]] = {}
    for text in texts:
        if not text:
            return ""
        rests.setdefault(text[0], []).append(text[1:])
    return f"(?:{'|'.join(re.escape(first) + _any_of(rest) for first, rest in rests.items())})"
