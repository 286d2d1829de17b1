"""Reads the body of a request that a client wrote: the parts of its messages, and its size."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from caseworker.models.fields.provider_tools import ProviderTool
from caseworker.models.fields.table import Part
from caseworker.models.tokens import utf8

_NESTED: Final = ("content", "output", "source", "file", "image_url", "input_audio")
"""Fields of a message or a part that hold further parts."""
_ID_FIELDS: Final = ("tool_call_id", "tool_use_id")
_SYSTEM_FIELDS: Final = ("system", "instructions")
_REFERENCES: Final = frozenset({"reply_of", "result_of"})
"""Fields by which stored messages refer to calls; a client's fields of these names do not."""
_DATA_FIELDS: Final = ("data", "url", "image_url", "file_data")
_DATA_CHARS: Final = 1_000
"""Length in characters above which encoded data is not counted as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientBody:
    """A body with the values that the gateway reads in it; see :func:`read_body`."""

    document: Mapping[str, Any]
    hashes: Mapping[str, str]
    """Hash of each field but the conversation, by which an equal request is recognised."""
    item_hashes: Sequence[str]
    """Hash of each message or item of the conversation."""
    field: str
    """Name of the field with the conversation."""
    written_bytes: int
    """Size as JSON."""
    caches_seconds: int
    """Seconds for which the provider is asked to cache a part of the prompt; 0 if it is not."""
    messages: Sequence[dict[str, Any]]
    """Messages for the trace, each with its content as text."""
    results: Sequence[tuple[str, Any]]
    """ID and content of each tool result."""
    parts: Sequence[Part] = ()
    """Occurrences of fields that cost more than their text."""
    references: Mapping[str, int | None] = dataclasses.field(default_factory=dict)
    """Objects at the provider to which the body refers, with the tokens, input and output, of the
    recorded reply that named them; None if they are not stored."""
    provider_tools: Sequence[ProviderTool] = ()
    """Tools that the provider executes, in a run that limits its spending."""

    def text(self) -> str:
        """Return about the text that the provider reads: messages without media, other fields."""
        hidden = {self.field, *_SYSTEM_FIELDS}
        others = {name: each for name, each in self.document.items() if name not in hidden}
        text = json.dumps([self.messages, others], ensure_ascii=False, separators=(",", ":"))
        return text.replace("\\n", "\n").replace('\\"', '"')

    def prefixes(self) -> Iterator[str]:
        """Yield a hash of the system prompt and the first n items of the conversation, from n = 0.

        The last one is that of the whole conversation.
        """
        system = [self.hashes.get(name, "") for name in _SYSTEM_FIELDS]
        hasher = hashlib.blake2b(" ".join(system).encode(), digest_size=16)
        yield hasher.hexdigest()
        for each in self.item_hashes:
            hasher.update(each.encode())
            yield hasher.hexdigest()


def read_body(
    document: Mapping[str, Any], field: str = "messages", parts: Sequence[Part] = ()
) -> ClientBody:
    """Read a checked body, whose conversation is in ``field``; the table of its API gave ``parts``.

    This takes a tenth of a second for one MiB of short messages.
    """
    items = items_in(document, field)
    text = json.dumps(document, ensure_ascii=False)
    written, caches = len(utf8(text)), '"cache_control": {' in text
    return ClientBody(
        document=document,
        hashes={name: _hash_of(document[name]) for name in document if name != field},
        item_hashes=list(map(_hash_of, items)),
        field=field,
        written_bytes=written,
        caches_seconds=(3600 if '"ttl": "1h"' in text else 300) if caches else 0,
        messages=shown_messages(document, field),
        results=tuple(_results_in(items)),
        parts=parts,
    )


def items_in(document: Mapping[str, Any], field: str) -> Sequence[Any]:
    """Return the messages or items in ``field``; a text is the message of a user."""
    said = document.get(field) or ()
    return [said] if isinstance(said, str) else said


def _hash_of(value: Any) -> str:
    content = utf8(json.dumps(value, sort_keys=True, ensure_ascii=False))
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def parts_of(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the messages in a list and all their parts, but not the arguments of tool calls."""
    if isinstance(value, list):
        for each in value:
            yield from parts_of(each)
    elif isinstance(value, dict):
        yield value
        for name in _NESTED:
            yield from parts_of(value.get(name))


def shown_messages(body: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    """Return the conversation of a body for the trace, each message with its content as text."""
    system = [body[name] for name in _SYSTEM_FIELDS if body.get(name) is not None]
    first = [{"role": "system", "content": each} for each in system]
    return [_plain(each) for each in (*first, *items_in(body, field))]


def _results_in(items: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the ID and the content of each tool result in a conversation."""
    for part in parts_of(items):
        for name in _ID_FIELDS:
            if isinstance(called := part.get(name), str):
                yield called, part.get("content")
        if _is_output(part) and isinstance(called := part.get("call_id"), str):
            yield called, part.get("output")


def _is_output(item: Mapping[str, Any]) -> bool:
    """Return whether an item of the Responses API is the result of a tool call."""
    return str(item.get("type")).endswith("_output")


def _plain(message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        message = {"role": "user", "content": message}
    role = message.get("role", "tool" if _is_output(message) else "")
    content = message.get("output" if role == "tool" and "output" in message else "content")
    parts = content if isinstance(content, list) else [content]
    text = "\n".join(text for text in map(_text_of, parts) if text)
    kept = {name: message[name] for name in message if name not in _REFERENCES}
    return {**kept, "role": str(role), "content": text}


def _text_of(part: Any) -> str:
    """Return a part of a message as text; encoded data is replaced by the type of the part."""
    if part is None or isinstance(part, str):
        return part or ""
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    if any(True for each in parts_of(part) for _ in _data_in(each)):
        return f"[{part.get('type')}]" if isinstance(part, dict) else ""
    return json.dumps(part, ensure_ascii=False)


def _data_in(part: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield the encoded data of a part, and whether it is a document.

    Data are data URLs, and base64 text in ``data``.
    """
    for name in _DATA_FIELDS:
        value = part.get(name)
        if not isinstance(value, str) or len(value) <= _DATA_CHARS:
            continue
        if value.startswith("data:") or (name == "data" and part.get("type") != "text"):
            kind = value if value.startswith("data:") else f"data:{part.get('media_type')}"
            yield value, kind.startswith(("data:application", "data:text"))
