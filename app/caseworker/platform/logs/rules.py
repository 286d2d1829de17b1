"""Redaction rules.

Every rule runs in linear time: an unbounded repetition is possessive and starts at a word boundary.
Most texts match no rule. Each rule therefore declares a cheap precondition for a match.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

SECRET = "[secret]"  # noqa: S105 - a placeholder, not a secret

_REREADINGS = 8
"""How often rejected candidates may cause a text to be scanned again; then matches are replaced."""

Replacement = Callable[[re.Match[str]], str | None]
"""Callback that is called for each match and returns its replacement.

To keep a match, it returns the matched text, or None to search again from the match's second
character.
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """A redaction rule for one kind of secret or personal data.

    The rule is applied only to texts that contain one of its ``hints`` or match its ``shape``. A
    rule without either is applied to every text.
    """

    pattern: re.Pattern[str]
    replacement: Replacement
    hints: tuple[str, ...] = ()
    """Lowercase substrings to search for in the lowercased text."""
    shape: re.Pattern[str] | None = None
    """Pattern to search for in the lowercased text; None if there is none."""
    max_rejected: int | None = None
    """Maximum number of matches per text that the callback may reject by returning None. Further
    matches are replaced. None means no limit."""

    def apply(self, text: str) -> str:
        """Return ``text`` with every match replaced."""
        parts: list[str] = []
        copied = position = rejected = 0
        rereadable = _REREADINGS * len(text)
        while (match := self.pattern.search(text, position)) is not None:
            judged = rereadable > 0 and (self.max_rejected is None or rejected < self.max_rejected)
            mark = self.replacement(match) if judged else SECRET
            if mark is None:
                rejected += 1
                position = match.start() + 1
                rereadable -= match.end() - position
                continue
            parts += (text[copied : match.start()], mark)
            copied = position = match.end()
        return "".join(parts) + text[copied:] if parts else text


def rule(
    pattern: str,
    replacement: str | Replacement,
    *hints: str,
    shape: str | None = None,
    max_rejected: int | None = None,
) -> Rule:
    """Return a rule for ``pattern``.

    A replacement given as a string may refer to groups of the pattern.
    """
    if isinstance(replacement, str):
        template = replacement

        def replacement(match: re.Match[str]) -> str:
            return match.expand(template)

    return Rule(
        re.compile(pattern), replacement, hints, re.compile(shape) if shape else None, max_rejected
    )
