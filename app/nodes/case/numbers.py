"""Numbers as answers write them."""

import re
from decimal import Decimal, InvalidOperation

_NUMBER = re.compile(
    r"[+-]?(\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))(\.\d+)?(?:[eE][+-]?\d{1,4})?", re.ASCII
)
_MAX_CHARS = 4000


def number_in(text: str) -> Decimal | None:
    """Return the number that ``text`` is, thousands separators allowed; None if it is none."""
    text = text.strip()
    if len(text) > _MAX_CHARS or not _NUMBER.fullmatch(text):
        return None
    try:
        return Decimal(text.replace(",", ""))
    except InvalidOperation:
        return None
