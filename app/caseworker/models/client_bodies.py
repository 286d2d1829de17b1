"""Reads the body of a request that a client wrote: the parts of its messages, and its size."""

import dataclasses
import hashlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from caseworker.models.fields.provider_tools import ProviderTool
from caseworker.models.fields.table import Part
from caseworker.models.tokens import utf8
from caseworker.platform.json_pieces import PieceEncoder

_NESTED: Final = ("content", "output", "source", "file", "image_url", "input_audio")
"""Fields of a message or a part that hold further parts."""
_ID_FIELDS: Final = ("tool_call_id", "tool_use_id")
_SYSTEM_FIELDS: Final = ("system", "instructions")
_REFERENCES: Final = frozenset({"reply_of", "result_of"})
"""Fields by which stored messages refer to calls; a client's fields of these names do not."""
_DATA_FIELDS: Final = ("data", "url", "image_url", "file_data")
_DATA_CHARS: Final = 1_000
"""Length in characters above which encoded data is not counted as text."""
_HASHED: Final = PieceEncoder(sort_keys=True)
_ENCODER: Final = PieceEncoder()
_COUNTED: Final = PieceEncoder(separators=(",", ":"))
_CACHES: Final = b'"cache_control": {'
_CACHES_LONG: Final = b'"ttl": "1h"'


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
    beginnings: Sequence[str]
    """Hash of the system prompt and the first n items of the conversation, from n = 0; the last one
    is that of the whole conversation."""
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

    def texts(self) -> Iterator[str]:
        """Yield about the text that the provider reads: messages without media, other fields."""
        for message in self.messages:
            rest = {name: it for name, it in message.items() if name not in ("role", "content")}
            yield f'{{"role":"{message["role"]}","content":"'
            yield message["content"]
            yield '",'
            yield from _unescaped(rest) if rest else ()
        hidden = {self.field, *_SYSTEM_FIELDS}
        yield from _unescaped({n: it for n, it in self.document.items() if n not in hidden})


def read_body(
    document: Mapping[str, Any], field: str = "messages", parts: Sequence[Part] = ()
) -> ClientBody:
    """Read a checked body, whose conversation is in ``field``; the table of its API gave ``parts``.

    This takes a twentieth of a second for one MiB of short messages.
    """
    items = [_Read.of(each) for each in items_in(document, field)]
    fields = {name: _Read.of(document[name]) for name in document if name != field}
    hashes = {name: each.digest for name, each in fields.items()}
    item_hashes = [each.digest for each in items]
    caching = _Read.of({"cache_control": document.get("cache_control")})
    # Quotes, colons, commas and braces: six bytes for a field of an object, two for an element.
    sizes = [6 * len(document), *(len(utf8(name)) for name in document)]
    sizes += (each.size_bytes for each in (*items, *fields.values()))
    sizes += [2 * max(1, len(items))] if isinstance(document.get(field), list) else []
    return ClientBody(
        document=document,
        hashes=hashes,
        item_hashes=item_hashes,
        field=field,
        written_bytes=sum(sizes),
        caches_seconds=max(each.caches_seconds for each in (*items, *fields.values(), caching)),
        beginnings=list(_beginnings(hashes, item_hashes)),
        messages=shown_messages(document, field),
        results=tuple(_results_in(items_in(document, field))),
        parts=parts,
    )


def items_in(document: Mapping[str, Any], field: str) -> Sequence[Any]:
    """Return the messages or items in ``field``; a text, or an array of tokens, is one."""
    items = document.get(field) or ()
    return [items] if isinstance(items, str | array) else items


@dataclass(frozen=True, slots=True)
class _Read:
    """Hash, size and cache lifetime of the JSON text of a value."""

    digest: str
    size_bytes: int
    caches_seconds: int

    @classmethod
    def of(cls, value: Any) -> "_Read":
        hasher, size, end, caches, lasts = hashlib.blake2b(digest_size=16), 0, b"", False, False
        for piece in _HASHED.pieces(value):
            content = utf8(piece)
            hasher.update(content)
            size += len(content)
            seen = end + content if end else content  # a mark may be in two pieces
            caches, lasts = caches or _CACHES in seen, lasts or _CACHES_LONG in seen
            end = seen[-len(_CACHES) :]
        return cls(hasher.hexdigest(), size, (3600 if lasts else 300) if caches else 0)


def _unescaped(value: Any) -> Iterator[str]:
    """Yield the JSON text of a value with the commonest characters as a model reads them."""
    for piece in _COUNTED.pieces(value):
        yield piece.replace("\\n", "\n").replace('\\"', '"')


def _beginnings(hashes: Mapping[str, str], item_hashes: Sequence[str]) -> Iterator[str]:
    system = [hashes.get(name, "") for name in _SYSTEM_FIELDS]
    hasher = hashlib.blake2b(" ".join(system).encode(), digest_size=16)
    yield hasher.hexdigest()
    for each in item_hashes:
        hasher.update(each.encode())
        yield hasher.hexdigest()


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
    fields = {name: message[name] for name in message if name not in _REFERENCES}
    return {**fields, "role": str(role), "content": text}


def _text_of(part: Any) -> str:
    """Return a part of a message as text; encoded data is replaced by the type of the part."""
    if part is None or isinstance(part, str):
        return part or ""
    if isinstance(part, array):
        return f"[{len(part)} tokens]"
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    if any(True for each in parts_of(part) for _ in _data_in(each)):
        return f"[{part.get('type')}]" if isinstance(part, dict) else ""
    return "".join(_ENCODER.pieces(part))


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
