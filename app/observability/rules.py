"""How a kind of secret or of personal data is found in a text and replaced.

Every rule takes linear time. A pattern whose repetition has no upper bound is possessive and begins
at the edge of a word, so that each word is read once; all others are bounded. What a judge lets
stand is searched again from its second character on, for something may begin inside.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

Judge = Callable[[re.Match[str]], str | None]
"""Returns what takes the place of a match; None if it may stay."""


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


def marked(mark: str) -> Judge:
    """Return a judge that lets nothing stand; ``mark`` may refer to groups of the pattern."""
    if "\\" in mark:
        return lambda found: found.expand(mark)
    return lambda _: mark


def applied(rules: Iterable[Rule], text: str) -> str:
    """Return ``text`` after all rules, each applied to what those before it have left."""
    lowered = text.lower()
    for rule in rules:
        text = rule.applied(text, lowered)
    return text
