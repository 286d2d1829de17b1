"""Upper bounds of the tokens of images, documents and sounds in a request.

Only headers are read, from a prefix of limited size; nothing is decoded or fetched.
"""

import base64
import binascii
import io
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import imagesize

from caseworker.models.families import Family
from caseworker.models.tokens import utf8

_RASTER: Final = re.compile(rb"\x89PNG\r\n|\xff\xd8\xff|GIF8|RIFF....WEBP", re.DOTALL)
"""Beginnings of images whose header is read; others count as the largest image."""
_HEADER_CHARS: Final = 1_400_000
"""Characters of base64 text in which a header is searched."""
_BYTES_PER_PIXEL: Final = 16
_METADATA_BYTES: Final = 256 * 1024
"""An image with more bytes than its pixels and this much metadata contradicts its header."""
_BYTES_PER_AUDIO_TOKEN: Final = 20
"""A second of the most compressed speech has about 750 bytes, and at most 32 tokens."""
_NEAR_BYTES_PER_TOKEN: Final = 3
_PAGE: Final = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_PACKED_OBJECTS: Final = re.compile(rb"/ObjStm\b.{0,400}?stream\r?\n", re.DOTALL)
_UNPACKED_BYTES: Final = 8 * 1024 * 1024
_INLINE: Final = re.compile(r"data:([^;,]*)[^,]*,", re.IGNORECASE)


class Size(NamedTuple):
    """Upper bounds of the tokens of a part: one that always holds, and one of usual contents."""

    hard: int
    near: int


class _Data(NamedTuple):
    """Data that a request contains."""

    text: str
    """The data as base64 or as plain text."""
    media_type: str
    is_base64: bool

    @property
    def size_bytes(self) -> int:
        return len(self.text) * 3 // 4 if self.is_base64 else len(utf8(self.text))

    def beginning(self) -> bytes:
        """Return the beginning of the data; empty if it is not valid base64."""
        if not self.is_base64:
            return utf8(self.text[:_HEADER_CHARS])
        try:
            return base64.b64decode(self.text[:_HEADER_CHARS])
        except (binascii.Error, ValueError):
            return b""


def image_size(value: Any, holder: Mapping[str, Any], family: Family, largest: int) -> Size:
    """Return the tokens of an image, from its data in a field of ``holder``, or its address.

    ``largest`` are the tokens of the largest image that the model takes. An image counts as that
    if it is only named, or if its header cannot be read or does not fit its size in bytes.
    """
    data, rule = _data_in(value, holder), family.image_tokens
    beginning = b"" if data is None or rule is None else data.beginning()
    if data is None or rule is None or not _RASTER.match(beginning):
        return Size(largest, largest)
    try:
        width, height = imagesize.get(io.BytesIO(beginning))
    except Exception:  # a malformed header
        return Size(largest, largest)
    pixels = width * height
    if pixels <= 0 or data.size_bytes > pixels * _BYTES_PER_PIXEL + _METADATA_BYTES:
        return Size(largest, largest)
    tokens = rule(width, height)
    return Size(tokens, tokens)


def document_size(
    value: Any, holder: Mapping[str, Any], family: Family, image_tokens: int
) -> Size | None:
    """Return the tokens of a document: one for each byte, and an image for each page.

    None means that only the provider knows its size. Then it may fill the context window.
    """
    data = _data_in(value, holder)
    if data is None:
        return None
    hard, near = data.size_bytes, -(-data.size_bytes // _NEAR_BYTES_PER_TOKEN)
    if "pdf" in data.media_type.lower() or data.text.startswith(("JVBERi", "%PDF")):
        pages = _pages_in(data)
        if pages is None:
            return None
        hard, near = hard + pages * image_tokens, near + pages * image_tokens
    return Size(min(hard, family.context_tokens), min(near, family.context_tokens))


def audio_size(value: Any, holder: Mapping[str, Any]) -> Size | None:
    """Return the tokens of a sound; None if it is only named."""
    data = _data_in(value, holder)
    if data is None:
        return None
    tokens = data.size_bytes // _BYTES_PER_AUDIO_TOKEN + 100
    return Size(tokens, tokens)


def _data_in(value: Any, holder: Mapping[str, Any]) -> _Data | None:
    """Return the data in a field; None if the field holds an address."""
    if not isinstance(value, str):
        return None
    if (inline := _INLINE.match(value[:1_000])) is not None:
        is_base64 = ";base64" in inline.group().lower()
        return _Data(value[inline.end() :], inline.group(1), is_base64)
    if "://" in value[:20]:
        return None
    media_type = str(holder.get("media_type") or holder.get("format") or "")
    if holder.get("type") == "text":
        return _Data(value, media_type, False)
    return _Data(value, media_type, True)


def _pages_in(document: _Data) -> int | None:
    """Return the number of pages of a PDF document; None if it cannot be told."""
    try:
        content = base64.b64decode(document.text) if document.is_base64 else utf8(document.text)
        pages, unpacked = len(_PAGE.findall(content)), 0
        for objects in _objects_in(content):
            pages, unpacked = pages + len(_PAGE.findall(objects)), unpacked + len(objects)
            if unpacked > _UNPACKED_BYTES:
                return None
    except (binascii.Error, ValueError, zlib.error):
        return None
    return pages or None


def _objects_in(content: bytes) -> Iterator[bytes]:
    """Yield the packed objects of a PDF document."""
    for start in _PACKED_OBJECTS.finditer(content):
        end = content.find(b"endstream", start.end())
        yield zlib.decompressobj().decompress(content[start.end() : end], _UNPACKED_BYTES)
