"""The size of a client's body for the token estimate, and its messages for the trace."""

import hashlib
import json
from typing import Any

import pytest

from caseworker.models.client_bodies import read_body, shown_messages

DATA = "iVBORw0KGgo" * 10_000
IMAGES = [
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
    {"type": "input_image", "image_url": f"data:image/png;base64,{DATA}"},
    {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
    {
        "type": "tool_result",
        "tool_use_id": "1",
        "content": [{"type": "image", "source": {"type": "base64", "data": DATA}}],
    },
]
DOCUMENTS = [
    {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf,{DATA}"}},
    {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{DATA}"},
    {"type": "document", "source": {"media_type": "application/pdf", "data": DATA}},
]
TEXTS = [
    {"type": "text", "text": f"data:image/png;base64,{DATA}"},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": DATA}},
    {"type": "tool_use", "id": "1", "name": "show", "input": {"url": f"data:image/png,{DATA}"}},
    {"type": "image_url", "image_url": {"url": f"https://example.com/{DATA}"}},
]


def _body(*parts: Any) -> dict[str, Any]:
    return {"model": "small", "messages": [{"role": "user", "content": list(parts)}]}


def test_the_trace_shows_the_system_prompt_first_and_no_encoded_data() -> None:
    """Texts of a message are joined; other parts are shown as JSON, images by their type."""
    use = {"type": "tool_use", "id": "1", "name": "add", "input": {"a": 1}}
    body = _body({"type": "text", "text": "Look:"}, IMAGES[3], use)
    body["system"] = [{"type": "text", "text": "Be brief."}]

    assert shown_messages(body, "messages") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"Look:\n[image]\n{json.dumps(use)}"},
    ]


@pytest.mark.parametrize("content", [None, 7, True, {"a": "b"}, ["x", 7, None, {"text": 7}]])
def test_the_trace_shows_odd_content_as_text(content: Any) -> None:
    """A message with content of another type never fails the call."""
    body = {"messages": [{"role": 7, "content": content}, "odd", None]}

    first, *others = shown_messages(body, "messages")

    assert isinstance(first["content"], str)
    assert first["role"] == "7"
    assert others == [{"role": "user", "content": "odd"}, {"role": "user", "content": ""}]


def test_items_of_a_response_are_shown_as_messages_and_their_results_found() -> None:
    """A text is the message of a user; a result of a tool has the role of one."""
    call = {"type": "function_call", "call_id": "1", "name": "add", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "1", "output": "3"}
    body = {"instructions": "Be brief.", "input": [{"role": "user", "content": "hi"}, call, result]}

    read = read_body(body, "input")

    assert read.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {**call, "role": "", "content": ""},
        {**result, "role": "tool", "content": "3"},
    ]
    assert read.results == (("1", "3"),)
    assert read_body({"input": "hi"}, "input").messages == [{"role": "user", "content": "hi"}]


MARKED = {"type": "ephemeral", "ttl": "1h"}
PARTS = [{"type": "text", "text": "x" * 100}] * 3_000
LONG_BODIES: dict[str, dict[str, Any]] = {
    "long text": {"messages": [{"role": "user", "content": 'say "hi"\n' * 50_000}]},
    "many parts": {"messages": [{"role": "user", "content": PARTS}]},
    "mark after a long text": {
        "messages": [
            {"role": "user", "content": [{"text": "x" * 300_000, "cache_control": MARKED}]}
        ]
    },
    "mark of the whole body": {"messages": [], "cache_control": MARKED},
    "text": {"messages": "hi", "system": "y" * 300_000},
}


@pytest.mark.parametrize("body", LONG_BODIES.values(), ids=LONG_BODIES)
def test_a_long_body_is_read_like_a_short_one(body: dict[str, Any]) -> None:
    """Hashes, size and marks are those of the JSON text, however many pieces it is written in."""
    body = {"model": "m", **body}
    read = read_body(body)

    def digest(value: Any) -> str:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    items = [body["messages"]] if isinstance(body["messages"], str) else body["messages"]
    assert read.item_hashes == [digest(each) for each in items]
    assert read.hashes == {name: digest(body[name]) for name in body if name != "messages"}
    assert read.written_bytes == len(json.dumps(body, ensure_ascii=False).encode())
    assert read.caches_seconds == (3600 if '"ttl": "1h"' in json.dumps(body) else 0)
    assert len(read.beginnings) == len(items) + 1


def test_the_text_of_a_body_is_counted_as_the_model_reads_it() -> None:
    """Escapes of JSON are no characters of a message."""
    message = {"role": "user", "content": 'say "hi"\n\t\\'}

    text = "".join(read_body({"model": "m", "messages": [message]}).texts())

    assert message["content"] in text
    assert '"model":"m"' in text
