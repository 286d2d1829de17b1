"""Company names and their symbols."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.stocks.price_tool import SYMBOLS, symbol_of


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
    ],
)
def test_a_name_or_a_ticker_in_any_case_is_a_symbol(name: str, symbol: str) -> None:
    """The legal form in a name is ignored."""
    assert symbol_of(name) == symbol


@given(name=st.sampled_from(sorted(SYMBOLS)), upper=st.booleans())
def test_every_company_of_the_table_is_found_in_any_case(name: str, upper: bool) -> None:
    """Each symbol is also its own name."""
    symbol = symbol_of(name.upper() if upper else name.title())

    assert symbol == SYMBOLS[name]
    assert symbol_of(symbol) == symbol


@pytest.mark.parametrize("name", ["General Motors", "../etc", " "])
def test_what_can_be_no_symbol_is_refused(name: str) -> None:
    """The message says which symbols are valid."""
    with pytest.raises(ToolRefusedError, match="ticker"):
        symbol_of(name)


@given(name=st.text(max_size=80))
def test_no_text_makes_a_symbol_with_strange_characters(name: str) -> None:
    """A symbol may become part of a URL and of a file name."""
    try:
        symbol = symbol_of(name)
    except ToolRefusedError:
        return

    assert len(symbol) <= 15
    assert symbol.isascii()
    assert " " not in symbol
