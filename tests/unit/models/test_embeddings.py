"""Replies with vectors: split, packed and replayed."""

import base64
import json
import zlib
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.models.embeddings import SplitReply, Vectors, bulk_bytes, replayed
from caseworker.models.relay import WIRE

SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)


def in_base64(vector: Sequence[float]) -> str:
    """Return a vector as providers encode it."""
    return base64.b64encode(array("f", vector).tobytes()).decode()


def reply_of(vectors: Sequence[Any], **fields: Any) -> dict[str, Any]:
    """Return a reply with vectors."""
    data = [
        {"object": "embedding", "index": at, "embedding": each} for at, each in enumerate(vectors)
    ]
    usage = {"prompt_tokens": 3, "total_tokens": 3}
    return {"object": "list", "data": data, "model": "m", "usage": usage, **fields}


def recorded(document: Any, vectors: Vectors) -> dict[str, Any]:
    """Return the journal value of a reply."""
    packed = base64.b64encode(zlib.compress(orjson.dumps(document))).decode()
    about = {"form": vectors.form, "dimensions": vectors.about["dimensions"]}
    wire = {"content_type": "application/json", "packed": packed, "vectors": about}
    return {WIRE: wire, "bulk": vectors.bulk}


def repeated(content: bytes) -> tuple[Vectors, bytes]:
    """Return the packed vectors of a reply, and the replayed reply."""
    split = SplitReply.of(content)
    vectors = Vectors.read(split.texts)
    assert vectors is not None
    value = recorded(split.document(), vectors)
    assert bulk_bytes(value) == vectors.size_bytes
    return vectors, replayed(value).content or b""


@pytest.mark.req("cw/15.embeddings")
@pytest.mark.parametrize(
    ("numbers", "encode", "form"),
    [
        (SINGLES, list, "f"),
        (SINGLES, in_base64, "base64"),
    ],
)
@given(data=st.data())
def test_floats_of_32_bits_are_packed_in_four_bytes_and_replayed_with_equal_values(
    data: st.DataObject, numbers: Any, encode: Callable[[Any], Any], form: str
) -> None:
    """The parsed reply is equal, in the same encoding."""
    dimensions = data.draw(st.integers(1, 8))
    one = st.lists(numbers, min_size=dimensions, max_size=dimensions)
    vectors = data.draw(st.lists(one, min_size=1, max_size=5))
    document = reply_of([encode(each) for each in vectors])

    packed, again = repeated(json.dumps(document, indent=1).encode())

    assert json.loads(again) == document
    assert packed.form == form
    assert packed.size_bytes == 4 * dimensions * len(vectors)


@pytest.mark.req("cw/15.embeddings")
@given(st.lists(DOUBLES, min_size=1, max_size=5))
def test_other_floats_are_packed_in_eight_bytes_at_most(vector: list[float]) -> None:
    """Short decimals, as in OpenAI's reference, are other values in 32 bits."""
    document = reply_of([[*vector, 0.0023064255]])

    packed, again = repeated(json.dumps(document).encode())

    assert json.loads(again) == document
    assert packed.form == "d"


def test_the_description_has_the_number_the_dimensions_and_a_digest() -> None:
    """Equal vectors have equal digests, in any encoding."""
    one, _ = repeated(json.dumps(reply_of([[0.5, 1.5], [2.5, 3.5]])).encode())
    same, _ = repeated(
        json.dumps(reply_of([in_base64([0.5, 1.5]), in_base64([2.5, 3.5])])).encode()
    )
    other, _ = repeated(json.dumps(reply_of([[0.5, 1.5], [2.5, 3.0]])).encode())

    assert one.about == same.about
    assert (one.about["count"], one.about["dimensions"]) == (2, 2)
    assert len(one.about["digest"]) == 16
    assert other.about["digest"] != one.about["digest"]


@pytest.mark.parametrize(
    "vectors",
    [
        [[1, 2], [3, 4]],
        [[0.5, None]],
        [[0.5], [0.5, 0.5]],
        [[0.5], in_base64([0.5])],
        [in_base64([0.5])[:-1]],
        ["AAA="],
        [[]],
        [[[0.5]]],
        [{"a": 0.5}],
    ],
    ids=str,
)
def test_vectors_of_another_form_are_not_packed(vectors: Sequence[Any]) -> None:
    """Whole numbers would become floats; the reply is stored like any other."""
    split = SplitReply.of(json.dumps(reply_of(vectors)).encode())

    assert split.document() is None or Vectors.read(split.texts) is None


@pytest.mark.parametrize(
    "document",
    [
        {"data": []},
        {"embedding": [0.5]},
        [{"embedding": [0.5]}],
        {**reply_of([[0.5]]), "more": {"embedding": [0.5]}},
        {"data": [{"embedding": [0.5], "nested": {"embedding": [0.5]}}]},
    ],
    ids=str,
)
def test_a_document_of_another_form_is_not_taken_apart(document: Any) -> None:
    """A vector is one of an item of ``data``, and each item has one."""
    assert SplitReply.of(json.dumps(document).encode()).document() is None
