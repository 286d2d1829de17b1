"""Arrays of tokens in bodies of embeddings: read, counted, hashed and written."""

import json
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.gateway.dialects.embeddings import EMBEDDINGS
from caseworker.models.client_bodies import ClientBody, read_body
from caseworker.models.families import family_of
from caseworker.models.fields.table import RefusedBodyError
from caseworker.models.maximum import content_of_inputs
from caseworker.models.token_arrays import MAX_ARRAY_TOKENS, MAX_TOKENS, document_with_tokens
from caseworker.platform.json_pieces import PieceEncoder

FAMILY = family_of("text-embedding-3-small")
TOKENS = st.lists(st.integers(0, 2**63 - 1), max_size=20)
BLANKS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")])


def body_of(given_input: Any) -> ClientBody:
    """Return the body with an input, as the gateway reads it."""
    content = json.dumps({"model": "m", "input": given_input}).encode()
    return read_body(document_with_tokens(content, json.loads), EMBEDDINGS.field)


@pytest.mark.req("cw/15.embeddings")
@given(st.one_of(TOKENS, st.lists(TOKENS, min_size=1, max_size=20)), BLANKS)
def test_arrays_of_tokens_are_read_as_they_are_and_written_again(
    tokens: Any, separators: tuple[str, str]
) -> None:
    """No number is lost, and blanks do not matter for the hash."""
    content = json.dumps({"model": "m", "input": tokens, "user": "u"}, separators=separators)
    document = document_with_tokens(content.encode(), json.loads)
    written = "".join(PieceEncoder(separators=(",", ":")).pieces(document))
    body = read_body(document, EMBEDDINGS.field)

    arrays = document["input"] if tokens and isinstance(tokens[0], list) else [document["input"]]
    assert all(isinstance(each, array) for each in arrays)
    assert json.loads(written) == {"model": "m", "input": tokens, "user": "u"}
    assert body.item_hashes == body_of(tokens).item_hashes
    assert content_of_inputs(body, FAMILY).hard_tokens == sum(map(len, arrays))
    assert content_of_inputs(body, FAMILY).near_tokens == sum(map(len, arrays))


@pytest.mark.parametrize(
    "content",
    [
        b'{"model": "m", "input": ["[1, 2]"]}',
        b'{"model": "m", "input": [[1], [2.5]]}',
        b'{"model": "m", "input": [[1], 2]}',
        b'{"model": "m", "input": [[[1]]]}',
        b'{"model": "m", "input": [1, -2]}',
        b'{"model": "m", "input": [9223372036854775808]}',
        b'{"user": "\\"input\\": [1, 2]", "input": "text"}',
        b'{"metadata": {"input": [1, 2]}, "input": "text"}',
    ],
)
def test_other_inputs_are_parsed_as_usual(content: bytes) -> None:
    """Only whole arrays of tokens in the field itself are taken for them."""
    assert document_with_tokens(content, json.loads) == json.loads(content)


@pytest.mark.parametrize(
    "content", [b'{"input": [1 2]}', b'{"input": [[1] [2]]}', b'{"input": [,]}']
)
def test_malformed_arrays_are_left_to_the_parser(content: bytes) -> None:
    """Its message names the place."""
    with pytest.raises(json.JSONDecodeError):
        document_with_tokens(content, json.loads)


@pytest.mark.parametrize(
    ("numbers", "limit"),
    [
        ([0] * (MAX_ARRAY_TOKENS + 1), MAX_ARRAY_TOKENS),
        ([[0] * MAX_ARRAY_TOKENS] * (MAX_TOKENS // MAX_ARRAY_TOKENS + 1), MAX_TOKENS),
    ],
    ids=["one array", "all arrays"],
)
def test_a_body_with_too_many_tokens_is_refused_with_the_limit(numbers: Any, limit: int) -> None:
    """The message names the limit, and the client sends fewer."""
    content = json.dumps({"input": numbers}).encode()

    with pytest.raises(RefusedBodyError, match=str(limit)):
        document_with_tokens(content, json.loads)


@pytest.mark.req("cw/15.embeddings")
def test_texts_have_a_hard_bound_in_bytes_and_a_near_bound_in_tokens() -> None:
    """The other fields of the body are not a part of the input."""
    text = "The budget of a run limits what its calls may cost. "
    content = content_of_inputs(body_of([text] * 4), FAMILY)

    assert content.hard_tokens == 4 * (len(text) + 8)
    assert 4 * 11 < content.near_tokens < 4 * 30


def test_the_trace_shows_texts_and_the_number_of_tokens() -> None:
    """Tokens are not shown."""
    shown = [each["content"] for each in (*body_of(["a"]).messages, *body_of([[1, 2]]).messages)]

    assert shown == ["a", "[2 tokens]"]


def test_equal_inputs_in_other_order_are_other_requests() -> None:
    """Each input has a hash."""
    one, other = body_of([[1, 2], [3]]), body_of([[3], [1, 2]])

    assert one.item_hashes == other.item_hashes[::-1] != other.item_hashes
