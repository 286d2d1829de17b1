"""JSON text of the database is parsed exactly, whatever its length."""

import gc
import json
from typing import Any

import pytest

from caseworker.platform.postgres.json_text import LONG_TEXT, load

VALUES: list[Any] = [
    None,
    True,
    -0.5,
    0.1,
    1e308,
    5e-324,
    2**63 - 1,
    2**63,
    -(2**200),
    "",
    "\u00e4\U0001f600\\u0000",
    {"": [], "a": {}},
    {"a": {"b": [1, 2.5, "x", None, False]}},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_are_parsed_as_by_the_standard_library(value: Any) -> None:
    """Long integers stay exact, and numbers keep their type."""
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False).encode()):
        parsed = load(text)

        assert parsed == value
        assert type(parsed) is type(value)


@pytest.mark.parametrize("was_enabled", [True, False])
def test_garbage_collection_is_as_before_after_a_long_text(was_enabled: bool) -> None:
    """Also if the text is not JSON."""
    text = json.dumps([[0]] * LONG_TEXT)
    (gc.enable if was_enabled else gc.disable)()
    try:
        assert load(text) == json.loads(text)
        with pytest.raises(ValueError, match="EOF"):
            load(text[:-1])
        assert gc.isenabled() is was_enabled
    finally:
        gc.enable()
