"""Numbers as answers write them."""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation

_NUMBER = re.compile(
    r"[+-]?(\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))(\.\d+)?(?:[eE][+-]?\d{1,4})?", re.ASCII
)
_MAX_CHARS = 4000
_APART = re.compile(r"[^\w.,:+-]+", re.ASCII)
"""What stands between numbers and words; the parts of a date, a time or a name are none."""


def number_in(text: str) -> Decimal | None:
    """Return the number that ``text`` is, thousands separators allowed; None if it is none."""
    text = text.strip()
    if len(text) > _MAX_CHARS or not _NUMBER.fullmatch(text):
        return None
    try:
        return Decimal(text.replace(",", ""))
    except InvalidOperation:
        return None


def numbers_among(value: object) -> Iterator[Decimal]:
    """Yield the numbers in a JSON value, those in its texts included; keys are names, not found."""
    match value:
        case bool() | None:
            return
        case int() | float():
            number = number_in(str(value))
            if number is not None:
                yield number
        case str():
            for word in _APART.split(value):
                number = number_in(word.rstrip(".,:"))
                if number is not None:
                    yield number
        case Mapping():
            for inner in value.values():
                yield from numbers_among(inner)
        case list() | tuple():
            for inner in value:
                yield from numbers_among(inner)
