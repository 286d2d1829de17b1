"""Long JSON values are written in pieces."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.platform import json_pieces
from caseworker.platform.json_pieces import PieceEncoder

LONG = 300_000
VALUES: dict[str, Any] = {
    "text": 'a"b\\\n日本\ud800\U0001f600' * LONG,
    "key": {"k" * LONG: 1},
    "list of texts": ["a"] * LONG,
    "list of objects": [{"b": [1, None, True], "a": {"text": "x" * 90}}] * 5_000,
    "deep": [[{"b": {"z": "x" * LONG, "a": []}}, "y" * LONG], {}],
    "one long element": [*([1] * 120), "x" * LONG, *([2] * 120)],
    "object": {str(n): n for n in range(LONG)},
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_long_values_are_written_like_in_the_standard_library(value: Any) -> None:
    """No piece is much longer than the limit, and together they are the same text."""
    for options in ({}, {"sort_keys": True}, {"separators": (",", ":")}):
        pieces = list(PieceEncoder(**options).pieces(value))

        assert "".join(pieces) == json.dumps(value, ensure_ascii=False, **options)
        assert len(pieces) > 1
        assert max(map(len, pieces)) <= 3 * json_pieces._PIECE_CHARS


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_value_is_written_like_in_the_standard_library(value: Any) -> None:
    """The sizes of the pieces do not change the text."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("_PIECE_CHARS", 3), ("_PIECE_VALUES", 2), ("_BATCH", 2)):
            patch.setattr(json_pieces, name, size)
        written = "".join(PieceEncoder(sort_keys=True).pieces(value))
    assert written == json.dumps(value, ensure_ascii=False, sort_keys=True)
