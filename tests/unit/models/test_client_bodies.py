"""The size of a client's body for the token estimate, and its messages for the trace."""

import json
from typing import Any

import pytest

from caseworker.models.client_bodies import body_bytes, shown_messages

DATA = "iVBORw0KGgo" * 10_000
IMAGES = [
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
    {"type": "input_image", "image_url": f"data:image/png;base64,{DATA}"},
    {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
    {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf,{DATA}"}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
    {
        "type": "tool_result",
        "tool_use_id": "1",
        "content": [{"type": "image", "source": {"type": "base64", "data": DATA}}],
    },
]
TEXTS = [
    {"type": "text", "text": f"data:image/png;base64,{DATA}"},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": DATA}},
    {"type": "tool_use", "id": "1", "name": "show", "input": {"url": f"data:image/png,{DATA}"}},
    {"type": "image_url", "image_url": {"url": f"https://example.com/{DATA}"}},
]


def _body(*parts: Any) -> dict[str, Any]:
    return {"model": "small", "messages": [{"role": "user", "content": list(parts)}]}


@pytest.mark.parametrize("part", IMAGES, ids=lambda part: str(part["type"]))
def test_encoded_data_counts_as_a_fixed_number_of_tokens(part: Any) -> None:
    """Two images count 1,600 tokens of three bytes each, whatever their size."""
    assert 9_600 <= body_bytes(_body(part, part)) <= 10_600


@pytest.mark.parametrize("part", TEXTS, ids=lambda part: str(part["type"]))
def test_text_counts_by_its_length_even_if_it_looks_like_data(part: Any) -> None:
    """Providers count text, arguments of tools and plain documents as text."""
    assert body_bytes(_body(part)) == len(json.dumps(_body(part)))


def test_the_trace_shows_the_system_prompt_first_and_no_encoded_data() -> None:
    """Texts of a message are joined; other parts are shown as JSON, images by their type."""
    use = {"type": "tool_use", "id": "1", "name": "add", "input": {"a": 1}}
    body = _body({"type": "text", "text": "Look:"}, IMAGES[4], use)
    body["system"] = [{"type": "text", "text": "Be brief."}]

    assert shown_messages(body) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"Look:\n[image]\n{json.dumps(use)}"},
    ]


@pytest.mark.parametrize("content", [None, 7, True, {"a": "b"}, ["x", 7, None, {"text": 7}]])
def test_the_trace_shows_odd_content_as_text(content: Any) -> None:
    """A message with content of another type never fails the call."""
    (shown,) = shown_messages({"messages": [{"role": 7, "content": content}, "odd", None]})

    assert isinstance(shown["content"], str)
    assert shown["role"] == "7"
