"""Cuts a question into words, numbers, dates and signs."""

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

MAX_CHARS: Final = 1000
"""Characters of the longest question that is read."""
MAX_TOKENS: Final = 250
MAX_NUMBER_CHARS: Final = 60


class Kind(Enum):
    """What a token is."""

    WORD = auto()
    """Letters, in lower case, perhaps with an apostrophe inside: ``what's``."""
    NUMBER = auto()
    """Digits without thousands separators: ``2340``, ``0.5``, ``1e6``."""
    ORDINAL = auto()
    """The digits of ``3rd``."""
    DATE = auto()
    """Something that looks like a date, as written: ``2025-01-15``, ``03/04/2025``."""
    SIGN = auto()
    """An operator or a punctuation mark."""
    UNKNOWN = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """One token and where it stands in the text."""

    kind: Kind
    text: str
    start: int
    end: int
    glued: bool = False
    """True if nothing, not even a space, stands between it and the token before it."""


class TooLongError(ValueError):
    """The question is longer than what is read."""


_SAME = str.maketrans(
    {
        "\u00a0": " ",  # no-break spaces
        "\u202f": " ",
        "\u2009": " ",
        "\u2018": "'",  # curly apostrophes
        "\u2019": "'",
        "\u2212": "-",  # minus
        "\u2013": "-",  # en dash
        "\u2010": "-",  # hyphens
        "\u2011": "-",
        "\u00d7": "*",
        "\u22c5": "*",
        "\u00b7": "*",
        "\u00f7": "/",
    }
)
"""Other forms of the same character; each is one character, so places in the text stay right."""

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<date>\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?
          (?:[Zz]|[+-]\d\d:?\d\d)?(?![\w:])
        |\d{4}([-/.])\d{1,2}\2\d{1,2}(?![\w])(?!\2\d)
        |\d{1,2}([-/.])\d{1,2}\3\d{4}(?![\w])(?!\3\d))
      |(?P<ordinal>\d+(?:st|nd|rd|th)(?![\w]))
      |(?P<number>\d+(?:,\d+)*(?:\.\d+)?(?:[eE][+-]?\d+(?![\w]))?|\.\d+)
      |(?P<word>[A-Za-z]+(?:['_][A-Za-z]+)*)
      |(?P<sign>\*\*|//|[-+*/%^()=!?.,:;$\u20ac\u00a3\u221a\u03c0\u00b2\u00b3])
      |(?P<unknown>\S)
    )""",
    re.ASCII | re.VERBOSE | re.IGNORECASE,
)
_KINDS = {
    "date": Kind.DATE,
    "ordinal": Kind.ORDINAL,
    "number": Kind.NUMBER,
    "word": Kind.WORD,
    "sign": Kind.SIGN,
    "unknown": Kind.UNKNOWN,
}
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?", re.ASCII)


def unified(text: str) -> str:
    """Return the text with one form of every sign that has several; its length stays the same."""
    return text.translate(_SAME)


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a unified question and one of kind ``END``.

    Raises:
        TooLongError: the text has more characters or tokens than a question may have.
    """
    if len(text) > MAX_CHARS:
        raise TooLongError(f"the question is longer than {MAX_CHARS} characters")
    tokens: list[Token] = []
    position = 0
    while match := _TOKEN.match(text, position):
        glued = position > 0 and match.start(match.lastgroup or 0) == position
        tokens += _tokens_of(match, glued=glued)
        position = match.end()
    if len(tokens) > MAX_TOKENS:
        raise TooLongError(f"the question has more than {MAX_TOKENS} words and signs")
    return [*tokens, Token(Kind.END, "", len(text), len(text))]


def _tokens_of(match: re.Match[str], *, glued: bool) -> list[Token]:
    name = match.lastgroup or "unknown"
    text, start, end = match[name], match.start(name), match.end()
    kind = _KINDS[name]
    if kind is Kind.NUMBER:
        return _numbers(text, start, glued=glued)
    if kind is Kind.ORDINAL:
        text = text[:-2]
    if len(text) > MAX_NUMBER_CHARS and kind is not Kind.WORD:
        kind = Kind.UNKNOWN
    return [Token(kind, text if kind is Kind.DATE else text.lower(), start, end, glued)]


def _numbers(text: str, start: int, *, glued: bool) -> list[Token]:
    """Tell ``2,340`` from the list ``2,34``; what may be either is unknown."""
    end = start + len(text)
    if len(text) > MAX_NUMBER_CHARS:
        return [Token(Kind.UNKNOWN, text, start, end, glued)]
    if "," not in text or _THOUSANDS.fullmatch(text):
        return [Token(Kind.NUMBER, text.replace(",", "").lower(), start, end, glued)]
    parts = text.split(",")
    if any(len(part.partition(".")[0]) == 3 for part in parts[1:]):
        return [Token(Kind.UNKNOWN, text, start, end, glued)]
    tokens: list[Token] = []
    for part in parts:
        if tokens:
            tokens.append(Token(Kind.SIGN, ",", start - 1, start, glued=True))
        tokens.append(
            Token(Kind.NUMBER, part.lower(), start, start + len(part), glued or bool(tokens))
        )
        start += len(part) + 1
    return tokens
