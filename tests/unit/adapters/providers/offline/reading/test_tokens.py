"""How a question is cut into tokens."""

import pytest

from app.adapters.providers.offline.reading.words.tokens import (
    MAX_CHARS,
    Kind,
    TooLongError,
    tokenize,
    unified,
)


def cut(text: str) -> list[tuple[Kind, str]]:
    """Return the kinds and texts of the tokens, without the end."""
    return [(token.kind, token.text) for token in tokenize(unified(text))[:-1]]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2,340", ["2340"]),
        ("1,234,567.89", ["1234567.89"]),
        ("2,4", ["2", "4"]),
        ("1,2,3", ["1", "2", "3"]),
        ("1.5,2", ["1.5", "2"]),
        (".5", [".5"]),
        ("5.", ["5"]),
        ("1e6", ["1e6"]),
        ("1E-6", ["1e-6"]),
    ],
)
def test_commas_separate_thousands_or_numbers(text: str, numbers: list[str]) -> None:
    """Groups of three belong together, others are a list."""
    assert [found for kind, found in cut(text) if kind is Kind.NUMBER] == numbers


@pytest.mark.parametrize("text", ["1,00,000", "1,234,56", "0,123", "2,3400,123", "9" * 61])
def test_a_number_that_may_be_two_things_is_none(text: str) -> None:
    """It is left for the question to fail on."""
    assert [kind for kind, _ in cut(text)] == [Kind.UNKNOWN]


@pytest.mark.parametrize(
    "text",
    [
        *("2025-01-15", "2025/1/5", "2025.01.15", "15.01.2025", "1/2/2025", "12-31-2024"),
        *("2025-01-15T10:30Z", "2025-01-15T10:30:00+02:00", "2025-01-15 10:30"),
    ],
)
def test_what_looks_like_a_date_is_one_token_as_it_was_written(text: str) -> None:
    """The calendar tool will read it."""
    assert cut(text) == [(Kind.DATE, text)]


@pytest.mark.parametrize("text", ["10/2/5", "100-20-30", "1/2", "12345-01-15", "1.2.3", "2025-01"])
def test_what_may_be_a_calculation_is_not_a_date(text: str) -> None:
    """Only a year of four digits makes three numbers a date."""
    assert Kind.DATE not in [kind for kind, _ in cut(text)]


def test_words_keep_their_apostrophes_and_lose_their_capitals() -> None:
    """And curly apostrophes are apostrophes."""
    assert cut("What\u2019s TODAY's 3rd") == [
        (Kind.WORD, "what's"),
        (Kind.WORD, "today's"),
        (Kind.ORDINAL, "3"),
    ]


def test_a_token_knows_its_place_and_whether_a_space_is_before_it() -> None:
    """Messages quote from the place, and ``10%3`` is not ``10% 3``."""
    tokens = tokenize("10% 3")

    assert [(token.start, token.end, token.glued) for token in tokens[:-1]] == [
        (0, 2, False),
        (2, 3, True),
        (4, 5, False),
    ]


@pytest.mark.parametrize("text", ["\uff12", "\u0662", "\u00bd", "\u00b9", "caf\u00e9", "\0"])
def test_characters_of_other_alphabets_are_unknown(text: str) -> None:
    """A digit that is not read is better than one that is read wrong."""
    assert Kind.UNKNOWN in [kind for kind, _ in cut(text)]


@pytest.mark.parametrize("text", ["x" * (MAX_CHARS + 1), "1 " * 300])
def test_a_question_has_a_length(text: str) -> None:
    """In characters and in tokens."""
    with pytest.raises(TooLongError):
        tokenize(text)
