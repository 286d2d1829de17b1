"""The symbols of companies that people call by name."""

import re
from collections.abc import Mapping
from types import MappingProxyType

SYMBOLS: Mapping[str, str] = MappingProxyType(
    {
        "alphabet": "GOOG",
        "apple": "AAPL",
        "apple computer": "AAPL",
        "facebook": "FB",
        "google": "GOOG",
        "international business machines": "IBM",
        "meta": "FB",
        "meta platforms": "FB",
        "microsoft": "MSFT",
    }
)
"""Symbols by the name of the company, small letters without its legal form."""

_LEGAL_FORM = re.compile(r"[,.]?\s+(?:inc|incorporated|corp|corporation|co|company|plc|ltd)\.?$")
_SYMBOL = re.compile(r"[A-Z0-9][A-Z0-9.\-^=]{0,14}")


def symbol_of(name: str) -> str | None:
    """Return the symbol that ``name`` stands for, in any case; None if it cannot be one.

    A name that is not in the table is taken for a symbol, because a source may know it.
    """
    words = " ".join(name.lower().removeprefix("$").split())
    known = SYMBOLS.get(_LEGAL_FORM.sub("", words))
    if known is not None:
        return known
    symbol = words.upper()
    return symbol if _SYMBOL.fullmatch(symbol) else None
