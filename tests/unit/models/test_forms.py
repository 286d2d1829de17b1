"""Extracting the JSON of a reply that has other text around it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.models.forms import MAX_REPLY_CHARS, json_part
from tests.support.work import counted_calls

DOCUMENT = '{"answer": "a } in a { text", "n": [1, {"deep": true}]}'


@pytest.mark.parametrize(
    ("reply", "part"),
    [
        (DOCUMENT, DOCUMENT),
        (f"  {DOCUMENT}\n", DOCUMENT),
        ("[1, 2]", "[1, 2]"),
        (f"```json\n{DOCUMENT}\n```", DOCUMENT),
        (f"Sure.\n\n```\n{DOCUMENT}\n```\nBye.", DOCUMENT),
        (f"```python\nprint({{}})\n```\n```json\n{DOCUMENT}\n```", DOCUMENT),
        ("```json\n[1, 2]\n```", "[1, 2]"),
        (f"The plan is {DOCUMENT}, and that is all.", DOCUMENT),
        (f"With {{braces}} in prose: {DOCUMENT}", DOCUMENT),
        (f"{DOCUMENT} {{}}", DOCUMENT),
    ],
)
def test_the_json_is_the_whole_reply_or_a_fenced_block_or_the_first_object(
    reply: str, part: str
) -> None:
    """The JSON is returned character by character as the model wrote it."""
    assert json_part(reply) == part


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "There is none.",
        "A list [1, 2] in prose is no object.",
        '{"actions": [{"tool": "calculator", "args": {"expression": "1 + 1"}}',
        '{"answer": "breaks off after {} and',
        'Well: {"a": {"b": 1}, "c":',
        "{'single': 'quotes'}",
        '{"trailing": 1,}',
        "```json\n{broken\n```",
        '{"a":' * 20_000,
        "{" * 20_000,
        " " * MAX_REPLY_CHARS + "{}",
    ],
)
def test_what_is_not_complete_is_not_mended(reply: str) -> None:
    """Incomplete JSON is not repaired, and no part of it is returned."""
    assert json_part(reply) is None


_WORDS = st.text(alphabet=st.characters(exclude_characters='{}[]`"0123456789'), max_size=30)
_OBJECTS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=10),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=8,
    ),
    max_size=4,
)


@given(_WORDS, _OBJECTS, _WORDS)
def test_any_object_is_found_whatever_words_surround_it(
    before: str, value: dict[str, Any], after: str
) -> None:
    """The JSON object is extracted exactly, whatever text surrounds it."""
    document = json.dumps(value)

    assert json_part(f"{before} {document} {after}") == document


@pytest.mark.parametrize("reply", ["{" * 100_000, "```json\n{\n" * 10_000, '{"a":' * 50_000])
def test_a_reply_is_not_read_again_for_each_of_its_braces(reply: str) -> None:
    """Parsing blocks the event loop, so its time must not grow with the square of the length."""
    with counted_calls() as short:
        assert json_part(reply[: len(reply) // 10]) is None
    with counted_calls() as long:
        assert json_part(reply) is None

    assert long.calls <= short.calls + 10
