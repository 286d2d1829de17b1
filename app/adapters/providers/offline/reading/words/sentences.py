"""What stands around a question and is none: decoration, orders, wishes about the answer's form.

An order to disregard instructions has no authority here and is no part of what is asked, so the
sentence is passed over. A sentence that only says how the answer is to be written is joined to the
question before it.
"""

import re
import unicodedata

from app.adapters.providers.offline.reading.words.cursor import (
    Cursor,
    MisreadError,
    Phrases,
    new_cursor,
)
from app.adapters.providers.offline.reading.words.frames import (
    is_courtesy,
    read_closing,
    read_courtesies,
)
from app.adapters.providers.offline.reading.words.rounding import read_decimals
from app.adapters.providers.offline.reading.words.tokens import TooLongError

_BOUNDARY = re.compile(r"(?<=[.?!])\s+(?=[A-Za-z])")
_ORDER = re.compile(
    r"\s*(?:(?:please|now|and|but|also|then)\s+)*"
    r"(?:ignore|disregard|forget|override|bypass|reveal|print|repeat)\s+(?:[a-z']+\s+){0,6}?"
    r"(?:instructions?|rules?|prompts?|guidelines?)\b",
    re.ASCII | re.IGNORECASE,
)
_FIRST_PICTOGRAM = 0x2600
_JOINERS = "\u200d\ufe0f"
_PERCENT: Phrases[bool] = Phrases(
    {
        "(in|as) (percent|a percentage|%)": True,
        "(give|state|express) (it|the answer|the result) (in percent|as a percentage)": True,
    }
)


def tidied(text: str) -> str:
    """Return the question without what is none of it."""
    sentences = [part for part in _BOUNDARY.split(_undecorated(text)) if not _ORDER.match(part)]
    while len(sentences) > 1 and _is_polite(sentences[-1]):
        sentences.pop()
    wishes: list[str] = []
    while len(sentences) > 1 and (wish := _wish_in(sentences[-1])) is not None:
        sentences.pop()
        wishes.insert(0, wish)
    if wishes:
        sentences[-1] = ", ".join([sentences[-1].rstrip(" .?!"), *wishes])
    return " ".join(sentences)


def _undecorated(text: str) -> str:
    """Return the text without the pictograms at its ends."""
    start, end = 0, len(text)
    while start < end and _decorates(text[start]):
        start += 1
    while start < end and _decorates(text[end - 1]):
        end -= 1
    return text[start:end]


def _decorates(char: str) -> bool:
    pictogram = ord(char) >= _FIRST_PICTOGRAM and unicodedata.category(char) == "So"
    return pictogram or char.isspace() or char in _JOINERS


def _is_polite(sentence: str) -> bool:
    try:
        return is_courtesy(new_cursor(sentence))
    except TooLongError:
        return False


def _wish_in(sentence: str) -> str | None:
    """Return a wish about the form of the answer as a clause; None for any other sentence."""
    try:
        cursor = new_cursor(sentence)
        read_courtesies(cursor)
        clauses = [_clause(cursor)]
        while (more := cursor.attempt(_further)) is not None:
            clauses.append(more)
        read_closing(cursor)
    except (MisreadError, TooLongError):
        return None
    return ", ".join(clauses)


def _further(cursor: Cursor) -> str:
    cursor.expect(",", "and")
    return _clause(cursor)


def _clause(cursor: Cursor) -> str:
    if _PERCENT.read(cursor):
        return "as a percentage"
    return f"rounded to {read_decimals(cursor)} decimals"
