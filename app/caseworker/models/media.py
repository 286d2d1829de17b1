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

_RASTER: Final = re.compile(rb"\x89PNG\r\n|\xff\xd8\xff|RIFF....WEBP", re.DOTALL)
"""Beginnings of images whose header is read; other images count as the largest one. The frames of a
GIF may be larger than its header states."""
_SOUND: Final = re.compile(rb"RIFF....WAVE|ID3|\xff[\xe0-\xff]", re.DOTALL)
"""Beginnings of WAV and MP3 files. Other formats store silence in almost no bytes."""
_HEADER_CHARS: Final = 1_400_000
"""Characters of base64 text in which a header is searched."""
_BYTES_PER_PIXEL: Final = 16
_METADATA_BYTES: Final = 256 * 1024
"""An image with more bytes than its pixels and this much metadata contradicts its header."""
_BYTES_PER_AUDIO_TOKEN: Final = 20
"""A second of the most compressed speech has about 750 bytes, and at most 32 tokens."""
_NEAR_BYTES_PER_TOKEN: Final = 3
_PAGE: Final = re.compile(rb"/Type\s{0,32}/Page(?![A-Za-z])")
_TEXT_OPERATOR: Final = re.compile(rb"T[jJ]\b")
_DICTIONARY_BYTES: Final = 4096
"""Bytes before a stream of a PDF document that may describe it."""
_ARMORED_BYTES: Final = 1024 * 1024
"""Size of a stream above which printable characters are not decoded, which is slow."""
_MAX_STREAMS: Final = 20_000
_UNPACKED_BYTES: Final = 8 * 1024 * 1024
_WINDOW_BYTES: Final = 64 * 1024
"""Bytes that one search examines; other threads wait while it runs."""
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
        width, height = imagesize.get(io.BytesIO(beginning), exif_rotation=False)
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
    """Return the tokens of a document.

    Plain text has at most one token for each byte. A PDF document may be compressed, so that only
    the context window bounds it; near, it counts a token for each three bytes, of the file or of
    the text in it, and an image for each page.

    None means that only the provider knows its size, as for compressed files of other types. Then
    it may fill the context window.
    """
    data = _data_in(value, holder)
    if data is None:
        return None
    largest, size_bytes, near = family.context_tokens, data.size_bytes, 0
    beginning = data.beginning()
    if "pdf" in data.media_type.lower() or b"%PDF" in beginning[:1024]:
        document = _pdf_in(data)
        if document is None:
            return None
        near, size_bytes = document.pages * image_tokens, max(size_bytes, document.text_bytes)
    elif beginning and b"\0" not in beginning:
        largest = min(largest, size_bytes)
    else:
        return None
    near += -(-size_bytes // _NEAR_BYTES_PER_TOKEN)
    return Size(largest, min(near, largest))


def audio_size(value: Any, holder: Mapping[str, Any]) -> Size | None:
    """Return the tokens of a sound; None for an address or an unknown format."""
    data = _data_in(value, holder)
    if data is None or not _SOUND.match(data.beginning()):
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
    if ":" in value or "." in value or value.startswith("//"):  # no base64 text, but an address
        return None
    return _Data(value, str(holder.get("media_type") or holder.get("format") or ""), True)


class _Pdf(NamedTuple):
    """Counts of a PDF document."""

    pages: int
    text_bytes: int
    """Size of the unpacked streams that write text."""


def _pdf_in(document: _Data) -> _Pdf | None:
    """Return the counts of a PDF document; None if they cannot be determined."""
    try:
        content = base64.b64decode(document.text) if document.is_base64 else utf8(document.text)
        pages, text_bytes, unpacked = _pages_in(content), 0, 0
        for has_objects, stream in _streams_in(content):
            unpacked += len(stream)
            if unpacked > _UNPACKED_BYTES:
                return None
            if has_objects:
                pages += _pages_in(stream)
            elif _TEXT_OPERATOR.search(stream):
                text_bytes += len(stream)
    except (binascii.Error, ValueError, zlib.error):
        return None
    return _Pdf(pages, text_bytes) if pages else None


def _pages_in(content: bytes) -> int:
    starts = range(0, len(content), _WINDOW_BYTES)
    return sum(len(_PAGE.findall(content, at, at + _WINDOW_BYTES + 64)) for at in starts)


def _streams_in(content: bytes) -> Iterator[tuple[bool, bytes]]:
    """Yield the compressed streams of a PDF document except images and fonts, unpacked.

    The first value is whether a stream has objects, such as pages.

    Raises:
        ValueError: there are too many streams, or one of them is packed in another way.
        zlib.error: a stream cannot be unpacked.
    """
    end = 0
    for _ in range(_MAX_STREAMS):
        at = content.find(b"stream", end)
        end = content.find(b"endstream", at + 6)
        if at < 0 or end < 0:
            return
        about = content[max(0, at - _DICTIONARY_BYTES) : at].rpartition(b" obj")[2]
        if at > _DICTIONARY_BYTES == len(about) or b"#" in about:
            raise ValueError("a dictionary that cannot be read")
        if (b"Filter" in about or b"/ObjStm" in about) and not _NO_TEXT.search(about):
            yield b"/ObjStm" in about, _unpacked(content[at + 6 : end], about)
        end += len(b"endstream")
    raise ValueError("too many streams")


def _unpacked(packed: bytes, about: bytes) -> bytes:
    """Unpack a stream of a PDF document, whose dictionary is ``about``."""
    filters = _FILTERS.findall(about)
    packed = packed.lstrip(b"\r\n")
    if filters[:1] == [b"ASCII85Decode"] and len(packed) < _ARMORED_BYTES:
        packed = base64.a85decode(packed.rstrip().removesuffix(b"~>"))
        filters.pop(0)
    if filters not in ([b"FlateDecode"], []):
        raise ValueError("another compression")
    return zlib.decompressobj().decompress(packed, _UNPACKED_BYTES)


_FILTERS: Final = re.compile(rb"/(\w+(?:Decode|Crypt))\b|/Crypt\b")
_NO_TEXT: Final = re.compile(rb"/(Image|Length1|Type1C|CIDFontType0C|OpenType|XRef|Metadata)\b")
"""Words in the dictionaries of streams that hold images, fonts, tables or metadata."""
