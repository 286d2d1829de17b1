"""Reads the body of a request that a client wrote: the parts of its messages, and its size."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from caseworker.models.pricing import BYTES_PER_TOKEN

_NESTED: Final = ("content", "source", "file", "image_url", "input_audio")
"""Fields of a message or a part that hold further parts."""
_ID_FIELDS: Final = ("tool_call_id", "tool_use_id")
_DATA_FIELDS: Final = ("data", "url", "image_url", "file_data")
_DATA_CHARS: Final = 1_000
"""Length in characters above which encoded data is not counted as text."""
_DATA_TOKENS: Final = 1_600
"""Tokens that one image counts: about the most that providers charge for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientBody:
    """A body with the values that the gateway reads in it; see :func:`read_body`."""

    document: Mapping[str, Any]
    canonical: bytes
    """The body as JSON with sorted names, by which an equal request is recognised."""
    size_bytes: int
    """Size for the estimate of its tokens."""
    messages: Sequence[dict[str, Any]]
    """Messages for the trace, each with its content as text."""
    results: Sequence[tuple[str, Any]]
    """ID and content of each tool result."""


def read_body(document: Mapping[str, Any]) -> ClientBody:
    """Read a checked body. This takes a tenth of a second for one MiB of short messages."""
    return ClientBody(
        document=document,
        canonical=json.dumps(document, sort_keys=True, ensure_ascii=False).encode(),
        size_bytes=body_bytes(document),
        messages=shown_messages(document),
        results=tuple(_results_in(document)),
    )


def parts_of(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the messages in a list and all their parts, but not the arguments of tool calls."""
    if isinstance(value, list):
        for each in value:
            yield from parts_of(each)
    elif isinstance(value, dict):
        yield value
        for name in _NESTED:
            yield from parts_of(value.get(name))


def body_bytes(body: Mapping[str, Any]) -> int:
    """Return the size of a body as JSON in bytes, for the estimate of its tokens.

    Images and other encoded data count as a fixed number of tokens each, not as text.
    """
    data = [len(each) for part in parts_of(body.get("messages")) for each in _data_in(part)]
    written = len(json.dumps(body, ensure_ascii=False).encode())
    return written - sum(data) + len(data) * _DATA_TOKENS * BYTES_PER_TOKEN


def shown_messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a body for the trace, each with its content as text."""
    system = body.get("system")
    first = [] if system is None else [{"role": "system", "content": system}]
    return [_plain(each) for each in (*first, *body["messages"]) if isinstance(each, dict)]


def _results_in(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the ID and the content of each tool result in the messages of a body."""
    for part in parts_of(body["messages"]):
        for name in _ID_FIELDS:
            if isinstance(called := part.get(name), str):
                yield called, part.get("content")


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    text = "\n".join(text for text in map(_text_of, parts) if text)
    return {**message, "role": str(message.get("role", "")), "content": text}


def _text_of(part: Any) -> str:
    """Return a part of a message as text; encoded data is replaced by the type of the part."""
    if part is None or isinstance(part, str):
        return part or ""
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    if any(True for each in parts_of(part) for _ in _data_in(each)):
        return f"[{part.get('type')}]" if isinstance(part, dict) else ""
    return json.dumps(part, ensure_ascii=False)


def _data_in(part: Mapping[str, Any]) -> Iterator[str]:
    """Yield the encoded data of a part: data URLs, and base64 text in ``data``."""
    for name in _DATA_FIELDS:
        value = part.get(name)
        if not isinstance(value, str) or len(value) <= _DATA_CHARS:
            continue
        if value.startswith("data:") or (name == "data" and part.get("type") != "text"):
            yield value
