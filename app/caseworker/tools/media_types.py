"""Media types of HTTP bodies, and the text of a body in its character encoding."""

import codecs
import json
import re
from contextlib import suppress
from email.message import Message
from typing import Final

_TEXTS: Final = frozenset(
    f"application/{each}"
    for each in (
        *("xml", "yaml", "x-yaml", "vnd.yaml", "toml", "x-toml", "sql", "graphql", "rtf", "csv"),
        *(
            "javascript",
            "x-javascript",
            "ecmascript",
            "typescript",
            "x-sh",
            "x-www-form-urlencoded",
        ),
        *("x-ndjson", "ndjson", "jsonl", "x-jsonlines", "json-lines", "json-seq", "xml-dtd"),
    )
)
_BINARY: Final = frozenset(
    f"application/{each}"
    for each in (
        *("octet-stream", "pdf", "zip", "gzip", "x-gzip", "x-tar", "x-bzip2", "x-7z-compressed"),
        *("zstd", "vnd.rar", "x-rar-compressed", "java-archive", "wasm", "cbor", "msgpack"),
        *("x-msgpack", "vnd.msgpack", "protobuf", "x-protobuf", "grpc", "bson", "msword"),
        *("vnd.ms-excel", "vnd.ms-powerpoint", "x-msdownload", "vnd.sqlite3", "avro"),
        *("vnd.apache.parquet", "vnd.apache.arrow.stream", "vnd.apache.arrow.file"),
    )
)
_DECLARED: Final = re.compile(
    rb"(?:<\?xml[^>]{0,200}?\bencoding|<meta\b[^>]{0,200}?\bcharset)\s*=\s*[\"']?([\w.:-]+)", re.I
)
"""The encoding that a document of XML or HTML names itself."""
_NOT_CHARSETS: Final = frozenset(
    {"idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape", "mbcs", "oem"}
)
"""Codecs of Python other than character encodings of the web; some take quadratic time."""
_MARKS: Final = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Codecs by byte order mark. The marks of UTF-32 precede those of UTF-16, which they start with."""
_DECLARATION_BYTES: Final = 1024
_HEADER_CHARS: Final = 1000
"""Length of a header that is parsed; the parser takes quadratic time for many semicolons."""


def essence(header: str) -> str:
    """Return the media type of a ``Content-Type``, in lower case and without parameters."""
    return re.split("[;,]", header, maxsplit=1)[0].strip().lower()


def charset_of(header: str) -> str:
    """Return the character encoding that a ``Content-Type`` names, or an empty string.

    Only the first 1,000 characters are read.
    """
    message = Message()
    message["content-type"] = re.sub(r"[\r\n]", " ", header[:_HEADER_CHARS])
    return str(message.get_content_charset(""))


def is_json(kind: str) -> bool:
    """Return whether a media type holds one JSON value."""
    subtype = essence(kind).partition("/")[2]
    return subtype in ("json", "x-json") or subtype.endswith("+json")


def is_text(kind: str) -> bool:
    """Return whether a media type holds text other than JSON."""
    kind = essence(kind)
    return kind.startswith("text/") or kind in _TEXTS or kind.endswith(("+xml", "+yaml"))


def is_binary_type(kind: str) -> bool:
    """Return whether a media type is known to hold bytes that are no text."""
    kind = essence(kind)
    if is_text(kind) or is_json(kind):
        return False
    return kind.startswith(("image/", "audio/", "video/", "font/", "multipart/")) or (
        kind in _BINARY or kind.endswith(("+zip", "+gzip", "+cbor", "+protobuf"))
    )


def decoded(content: bytes | bytearray, header: str) -> str:
    """Return the text of a body; ``header`` is its ``Content-Type``.

    A byte order mark precedes the named character encoding, and that precedes the one that a
    document of XML or HTML names itself. JSON that is valid UTF-8 is UTF-8 (RFC 8259). Without a
    name, UTF-8, UTF-16 and UTF-32 are recognized, and other bytes are Windows-1252.
    """
    for mark, codec in _MARKS.items():
        if content.startswith(mark):
            return content.decode(codec, errors="replace")
    names, start = [charset_of(header)], bytes(content[:_DECLARATION_BYTES])
    if start.lstrip().startswith(b"<") and (declaration := _DECLARED.search(start)):
        names.append(declaration[1].decode(errors="replace"))
    if is_json(header) and not content.isascii():
        names.insert(0, "utf-8")
    detected = json.detect_encoding(start)
    for name in filter(None, names):
        with suppress(LookupError, UnicodeError, ValueError):
            codec = codecs.lookup(name).name.replace("-", "_")
            if codec in ("utf_16", "utf_32") and detected != "utf-8":
                codec = detected  # without a mark, the byte order follows from the zero bytes
            if codec not in _NOT_CHARSETS:
                return content.decode(codec)
    text = content.decode(detected, errors="replace")
    # A single broken byte in UTF-8 is one wrong character; in Windows-1252, all are right.
    if {each for each in text if not each.isascii()} == {"\ufffd"}:
        return content.decode("cp1252", errors="replace")
    return text
