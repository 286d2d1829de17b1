"""Media types of HTTP bodies, and the text of a body in its character encoding."""

import codecs
import json
import re
from collections.abc import Iterator
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
_LABELS: Final = {
    **dict.fromkeys(("x-sjis", "ms_kanji", "windows-31j", "csshiftjis"), "cp932"),
    **dict.fromkeys(("x-gbk", "gb_2312", "gb_2312-80", "csgb2312"), "gb18030"),
    **dict.fromkeys(("x-x-big5", "cn-big5"), "big5"),
    **dict.fromkeys(("windows-949", "ks_c_5601-1989", "csksc56011987", "cseuckr"), "cp949"),
    **dict.fromkeys(("windows-874", "dos-874", "tis-620", "iso885911"), "cp874"),
    **dict.fromkeys(("x-mac-cyrillic", "x-mac-ukrainian"), "mac_cyrillic"),
    **dict.fromkeys(("x-mac-roman", "csmacintosh"), "mac_roman"),
    **dict.fromkeys(("x-euc-jp", "cseucpkdfmtjapanese"), "euc_jp"),
    **dict.fromkeys(("koi", "koi8"), "koi8_r"),
    **dict.fromkeys(("iso-8859-8-i", "iso-8859-8-e", "logical", "visual"), "iso8859_8"),
    **dict.fromkeys(("iso-8859-6-i", "iso-8859-6-e"), "iso8859_6"),
    **dict.fromkeys(("unicode", "ucs-2", "iso-10646-ucs-2", "unicodefeff"), "utf_16"),
    **dict.fromkeys(("unicode-1-1-utf-8", "unicode20utf8", "x-unicode20utf8"), "utf_8"),
    **{f"x-cp{number}": f"cp{number}" for number in range(1250, 1259)},
    "koi8-ru": "koi8_u",
    "unicodefffe": "utf_16_be",
}
"""Codecs for labels of the web that Python does not have, or does not read as the standard does.

The source is the table of labels in https://encoding.spec.whatwg.org/#names-and-labels.
"""
_OF_BROWSERS: Final = {
    "ascii": ("utf-8", "cp1252"),
    "iso8859_1": ("cp1252",),
    **dict.fromkeys(("iso8859_11", "tis_620"), ("cp874",)),
    **dict.fromkeys(("gb2312", "gbk", "cp936"), ("gb18030",)),
    "iso8859_9": ("cp1254",),
    "shift_jis": ("cp932",),
    "euc_kr": ("cp949",),
    "big5": ("big5hkscs", "cp950"),
    "euc_jp": ("euc_jp", "euc_jis_2004"),
    "iso2022_jp": ("iso2022_jp", "iso2022_jp_ext", "iso2022_jp_2004"),
}
"""Codecs by the smaller one that the standard of the web replaces with them."""
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


def is_json_type(kind: str) -> bool:
    """Return whether a media type holds one JSON value."""
    subtype = essence(kind).partition("/")[2]
    return (
        subtype in ("json", "x-json") or kind.strip().lower() == "json" or subtype.endswith("+json")
    )


def is_text(kind: str) -> bool:
    """Return whether a media type holds text other than JSON."""
    kind = essence(kind)
    return kind.startswith("text/") or kind in _TEXTS or kind.endswith(("+xml", "+yaml"))


def is_binary_type(kind: str) -> bool:
    """Return whether a media type is known to hold bytes rather than text."""
    kind = essence(kind)
    if is_text(kind) or is_json_type(kind):
        return False
    return kind.startswith(("image/", "audio/", "video/", "font/", "multipart/")) or (
        kind in _BINARY or kind.endswith(("+zip", "+gzip", "+cbor", "+protobuf"))
    )


class UnknownCharsetError(ValueError):
    """A body is not UTF-8, and its character encoding is unknown."""

    def __init__(self, charset: str) -> None:
        super().__init__(f"the charset {charset!r} is unknown")
        self.charset = charset


def in_charset(text: str, header: str) -> bytes:
    """Return a text in the charset of a ``Content-Type``, by default UTF-8.

    Raises:
        UnknownCharsetError: there is no such charset.
        UnicodeEncodeError: the charset does not have a character of the text.
    """
    name = charset_of(header) or "utf-8"
    try:
        return text.encode(_codec(_LABELS.get(name, name)))
    except LookupError:
        raise UnknownCharsetError(name) from None


def decoded(content: bytes | bytearray, header: str) -> str:
    """Return the text of a body; ``header`` is its ``Content-Type``.

    A byte order mark precedes the named character encoding, and that precedes the one that a
    document of XML or HTML names itself. JSON that is valid UTF-8 is UTF-8 (RFC 8259). Names mean
    what browsers make of them: ``iso-8859-1`` is Windows-1252. Without a name, UTF-8, UTF-16 and
    UTF-32 are recognized, and other bytes are Windows-1252.

    Raises:
        UnknownCharsetError: the name is unknown, and the body is not UTF-8.
    """
    for mark, codec in _MARKS.items():
        if content.startswith(mark):
            return content.decode(codec, errors="replace")
    start = bytes(content[:_DECLARATION_BYTES])
    codecs_of_names, unknown = list[str](), ""
    for name in _charsets(content, start, header):
        try:
            codecs_of_names += _codecs(name, content)
        except LookupError:
            unknown = unknown or name
    for codec in codecs_of_names:
        with suppress(UnicodeError, LookupError):
            return content.decode(codec)
    declared = next((each for each in codecs_of_names if each != "utf-8"), None)
    detected = json.detect_encoding(start)
    with suppress(UnicodeError):
        return content.decode(detected)
    if declared is not None:
        return content.decode(declared, errors="replace")
    if unknown:
        raise UnknownCharsetError(unknown)
    text = content.decode(detected, errors="replace")
    # A single broken byte in UTF-8 is one wrong character; in Windows-1252, all are right.
    if {each for each in text if not each.isascii()} == {"\ufffd"}:
        return content.decode("cp1252", errors="replace")
    return text


def _charsets(content: bytes | bytearray, start: bytes, header: str) -> Iterator[str]:
    """Yield the names of charsets of a body, in the order in which they count."""
    if is_json_type(header) and not content.isascii() and 0 not in content:
        yield "utf-8"
    if name := charset_of(header):
        yield name
    if start.lstrip().startswith(b"<") and (declaration := _DECLARED.search(start)):
        yield declaration[1].decode(errors="replace")


def _codec(name: str) -> str:
    """Return the name of a codec in Python; raises LookupError for a codec of bytes."""
    codec = codecs.lookup(name).name.replace("-", "_")
    "".encode(codec)  # raises for a codec of bytes, such as hex
    if codec in _NOT_CHARSETS:
        raise LookupError(name)
    return codec


def _codecs(name: str, content: bytes | bytearray) -> tuple[str, ...]:
    """Return the codecs for a charset in the order to try; raises LookupError if it is unknown."""
    label = name.strip().lower()
    codec = _codec(_LABELS.get(label, label))
    if codec.startswith("utf_16"):
        return _codecs_of_utf_16(codec, content)
    if codec.startswith("utf_32"):
        return ("utf-32-be", "utf-32-le", "utf-8")  # at most one of them fits
    return _OF_BROWSERS.get(codec, ("utf-8" if codec == "utf_8" else codec,))


def _codecs_of_utf_16(codec: str, content: bytes | bytearray) -> tuple[str, ...]:
    """Return the codecs for bytes without a mark; the zero bytes of Latin letters show the order.

    Text without them that is valid UTF-8 has the wrong name.
    """
    is_big = codec == "utf_16_be"
    high, low = content[::2].count(0), content[1::2].count(0)
    if high != low:
        is_big = high > low
    orders = ("utf-16-be", "utf-16-le") if is_big else ("utf-16-le", "utf-16-be")
    return (*orders, "utf-8") if high or low else ("utf-8", *orders)
