"""Names of companies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tools.stocks.companies import SYMBOLS, symbol_of


@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        ("Apple", "AAPL"),
        ("apple inc.", "AAPL"),
        ("Apple, Inc.", "AAPL"),
        ("  MICROSOFT   Corporation ", "MSFT"),
        ("International Business Machines Corp", "IBM"),
        ("Facebook", "FB"),
        ("Alphabet", "GOOG"),
        ("$aapl", "AAPL"),
        ("ibm", "IBM"),
        ("brk.b", "BRK.B"),
        ("Inc", "INC"),
        ("General Motors", None),
        ("../etc", None),
        ("", None),
    ],
)
def test_a_name_or_a_ticker_in_any_case_is_a_symbol(name: str, symbol: str | None) -> None:
    """What can be neither is refused."""
    assert symbol_of(name) == symbol


@given(name=st.sampled_from(sorted(SYMBOLS)), upper=st.booleans())
def test_every_company_of_the_table_is_found_in_any_case(name: str, upper: bool) -> None:
    """And its symbol stands for itself."""
    symbol = symbol_of(name.upper() if upper else name.title())

    assert symbol == SYMBOLS[name]
    assert symbol_of(symbol) == symbol


@given(name=st.text(max_size=80))
def test_no_text_makes_a_symbol_with_strange_characters(name: str) -> None:
    """A symbol may be part of an address and of a file name."""
    symbol = symbol_of(name)

    assert symbol is None or (len(symbol) <= 15 and symbol.isascii() and " " not in symbol)
