"""The JSON reader accepts only storable values, in linear time."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.platform.http.bodies import (
    MalformedJsonError,
    UnstorableTextError,
    has_more_values,
    is_nested_deeper,
    read_json,
)

DEPTH = 8
INT64 = 2**63


def read(text: str | bytes) -> Any:
    return read_json(text.encode() if isinstance(text, str) else text, max_depth=DEPTH)


def test_plain_json_is_read_as_it_is() -> None:
    """Valid JSON is returned with equal values."""
    assert read('{"a": [1, -2.5, true, null, "\\u00e9\\ud83d\\ude00"]}') == {
        "a": [1, -2.5, True, None, "é😀"]
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "nul",
        '{"a": 1,}',
        "{'a': 1}",
        '{"a": 1} {"b": 2}',
        '{"a": "\t"}',
        '{"a": "\x00"}',
        '{"a": 01}',
        '{"a": "\\x"}',
        "NaN",
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": -Infinity}',
        '{"a": 1, "a": 2}',
        '{"b": {"a": 1, "\\u0061": 2}}',
    ],
)
def test_what_is_not_json_is_refused(text: str) -> None:
    """Invalid JSON is rejected, including forms that Python's parser accepts."""
    with pytest.raises(MalformedJsonError):
        read(text)


@pytest.mark.parametrize(
    "body",
    [
        b"\xef\xbb\xbf{}",
        b'{"a": "\xff"}',
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": "\xc0\x80"}',
        '{"a": 1}'.encode("utf-16"),
        '{"a": 1}'.encode("utf-32"),
        b"\x1f\x8b\x08",
    ],
)
def test_what_is_not_utf_8_is_refused(body: bytes) -> None:
    """Byte order marks, other encodings, encoded surrogates and overlong forms are rejected."""
    with pytest.raises(MalformedJsonError):
        read(body)


@pytest.mark.parametrize("number", [INT64 - 1, -INT64, 0])
def test_integers_of_64_bits_are_exact(number: int) -> None:
    """64-bit integers are read exactly."""
    assert read(f'{{"a": {number}}}') == {"a": number}


@pytest.mark.parametrize(
    "digits", [str(INT64), str(-INT64 - 1), "9" * 21, "9" * 5000, "-" + "9" * 5000]
)
def test_longer_integers_are_refused(digits: str) -> None:
    """Integers beyond 64 bits are rejected; Python could not read back 5,000 stored digits."""
    with pytest.raises(MalformedJsonError, match="64 bits"):
        read(f'{{"a": {digits}}}')


@pytest.mark.parametrize("digits", ["1e999", "-1e999", "1" + "0" * 400 + ".0"])
def test_numbers_beyond_a_double_are_refused(digits: str) -> None:
    """A number beyond a double is rejected, because it would become infinity."""
    with pytest.raises(MalformedJsonError, match="too large"):
        read(f"[{digits}]")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"input": "\\u0000"}', "input"),
        ('{"metadata": {"a": ["x", "\\ud800"]}}', "metadata.a.1"),
        ('{"metadata": {"a": "\\udc00\\ud800"}}', "metadata.a"),
        ('{"metadata": {"\\u0000": 1}}', "metadata.*"),
    ],
)
def test_strings_that_no_database_stores_are_named(text: str, field: str) -> None:
    """NUL and unpaired surrogates are rejected with the path of their field."""
    with pytest.raises(UnstorableTextError) as refused:
        read(text)

    assert [violation.field for violation in refused.value.violations] == [field]


def test_nesting_is_counted_outside_of_strings() -> None:
    """The nesting check ignores brackets inside strings, also after escaped quotes."""
    deepest = "[" * DEPTH + "]" * DEPTH

    assert not is_nested_deeper(deepest.encode(), DEPTH)
    assert is_nested_deeper(f"[{deepest}]".encode(), DEPTH)
    assert not is_nested_deeper(json.dumps(["[" * 50, '\\"[{' * 50]).encode(), DEPTH)
    assert not is_nested_deeper(b"[],{}," * 50, DEPTH)
    assert is_nested_deeper(b'["\\\\",' * 9, DEPTH)


def test_too_deep_a_body_is_refused_before_it_is_parsed() -> None:
    """A body that is nested too deeply is rejected before parsing exhausts the stack."""
    with pytest.raises(MalformedJsonError, match="8 levels"):
        read("[" * 200_000)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-INT64, INT64 - 1)
        | st.text(st.characters(codec="utf-8", exclude_characters="\0")),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        ),
        max_leaves=20,
    )
)
def test_whatever_python_writes_is_read_back_or_refused_in_words(value: Any) -> None:
    """The reader returns the same values as Python's parser, or rejects the text."""
    text = json.dumps(value)
    try:
        assert read(text) == value
    except MalformedJsonError:
        assert is_nested_deeper(text.encode(), DEPTH)
    except UnstorableTextError:
        assert "\\u0000" in text


@given(st.recursive(st.none() | st.text('[]{},"\\\n'), lambda inner: st.lists(inner, max_size=4)))
def test_a_body_that_is_refused_for_its_number_of_values_has_more(value: Any) -> None:
    """Commas in strings do not count."""
    values = [value]
    for each in values:
        values += each if isinstance(each, list) else ()
    text = json.dumps([value, value]).encode()

    assert not has_more_values(text, 2 * len(values) + 1)
    assert has_more_values(json.dumps([1] * 9).encode(), 8)
    assert has_more_values(json.dumps({str(n): "" for n in range(9)}).encode(), 8)
