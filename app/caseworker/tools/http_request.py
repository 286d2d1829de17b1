"""Builds HTTP requests from the arguments of tools.

An argument fills its own place in a request. It cannot change the host, the segments of the path,
or the names in the query. Servers decode ``%2F`` before they route a request, and normalize
``%2E%2E``, so encoding alone would not protect the path. Values with slashes are therefore
rejected, and so are segments that consist of dots.

Parameters are written in the styles of OpenAPI 3.1.1 (Appendix C), which are those of RFC 6570.
The specification leaves deeper values open: lists and objects inside of a list are JSON, and
``deepObject`` nests as ``name[key][0]``.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote, quote_plus, unquote, unquote_plus, unquote_to_bytes, urlsplit

import httpx2

from caseworker.tools.media_types import charset_of, essence, in_charset, is_json_type, is_text
from caseworker.tools.ports import ToolRefusedError

ParameterLocation = Literal["path", "query", "header", "cookie", "body"]
Pairs = list[tuple[str, str]]
Content = TypeVar("Content")
Encoding = Callable[[str, str], str]
"""Encodes a text; the second argument holds the reserved characters that stay as they are."""

FORM: Final = "application/x-www-form-urlencoded"
MULTIPART: Final = "multipart/form-data"
STYLES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "path": ("simple", "label", "matrix"),
        "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
        "header": ("simple",),
        "cookie": ("form",),
    }
)
"""Styles of parameters by place; the first one is the default."""
PLACEHOLDER: Final = re.compile(r"\{([^{}/]+)\}")
_WITHOUT_BODY: Final = frozenset({"GET", "HEAD", "DELETE"})
_DELIMITERS: Final = {"spaceDelimited": " ", "pipeDelimited": "|"}
_PREFIXES: Final = {"label": ".", "matrix": ";"}
_RESERVED: Final = ":/?@!$'()*,="
"""Reserved characters that separate no names in a query."""
_DATA_URL: Final = re.compile(r"data:([^,;]*)(?:;(?!base64,)[^,;]*)*(;base64)?,", re.ASCII)
_MEDIA_TYPE: Final = re.compile("[!-~]*")
_EXACT: Final = 2.0**53
"""Whole numbers below this limit are exact as floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """How a request contains an argument, or one field of a form."""

    place: ParameterLocation
    name: str = ""
    """Name in the request; empty for the whole body."""
    style: str | None = None
    """Style of OpenAPI; None repeats the name for each item of a list, and writes objects as
    JSON."""
    explode: bool = True
    allow_reserved: bool = False
    media_type: str | None = None
    """Media type of the value, instead of a style."""
    is_file: bool = False
    """Whether a part of a multipart body has a file name."""
    may_be_file: bool = False
    """Whether a data URL is a file, in a part of a multipart body that also takes other values."""

    def pairs(self, value: Any, encoded: Encoding) -> Pairs:
        """Return encoded names and values for a query, a cookie or a form."""
        name, safe = encoded(self.name, ""), _RESERVED if self.allow_reserved else ""
        if self.style is not None:
            value = _without_null(value)
        if value is None:
            return []
        is_list, is_object = isinstance(value, list), isinstance(value, dict)
        if self.media_type is not None or not (is_list or is_object):
            return [(name, encoded(self._text(value), safe))]
        if self.style == "deepObject":
            return [(encoded(key, ""), encoded(one, safe)) for key, one in _deep(self.name, value)]
        if self.style is None or self.explode:
            if is_list:
                return [(name, encoded(_text(each), safe)) for each in value]
            if self.style is None:
                return [(name, encoded(_text(value), safe))]
            return [(encoded(key, ""), encoded(_text(each), safe)) for key, each in value.items()]
        delimiter, safe = encoded(_DELIMITERS.get(self.style, ","), ","), safe.replace(",", "")
        joined = delimiter.join(encoded(each, safe) for each in _flat(value))
        return [(name, joined)] if value else []

    def expanded(self, value: Any, encoded: Encoding) -> str:
        """Return the encoded text for a place in the path, or for a header."""
        if self.style is None:
            return encoded(self._text(value), "")
        value = _without_null(value)
        prefix = _PREFIXES.get(self.style, "")
        is_named = self.style == "matrix"
        if isinstance(value, dict) and self.explode:
            parts = [f"{encoded(key, '')}={encoded(_text(one), '')}" for key, one in value.items()]
            is_named = False
        else:
            parts = [encoded(each, "") for each in _flat(value)]
        if not self.explode and parts:
            parts = [",".join(parts)]
        if is_named:
            name = encoded(self.name, "")
            parts = [f"{name}={each}" if each else name for each in parts]
        return prefix * bool(parts) + (prefix or ",").join(parts)

    def parts(self, value: Any) -> Iterator[tuple[str, tuple[str | None, bytes, str | None]]]:
        """Yield name, file name, content and media type for each part of a multipart body."""
        if self.style is not None:
            for name, text in self.pairs(value, _plain):
                yield name, (None, text.encode(), None)
            return
        for each in value if isinstance(value, list) else [value]:
            if each is None:
                continue
            kind = self.media_type or ("application/json" if isinstance(each, dict) else None)
            is_url = isinstance(each, str) and _DATA_URL.match(each) is not None
            if not (self.is_file or (self.may_be_file and is_url)):
                yield (
                    self.name,
                    (None, _encoded(_in_media_type(each, kind or ""), kind or ""), kind),
                )
                continue
            file_type, content = _file(each)
            if kind is None or "*" in kind:
                kind = file_type
            yield self.name, (self.name, content, kind)

    def _text(self, value: Any) -> str:
        return _in_media_type(value, self.media_type or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The body of a request."""

    media_type: str
    is_required: bool = True
    """Whether a request without arguments for the body has a body."""
    fields: Mapping[str, Parameter] = field(default_factory=dict)
    """The fields of a form that are not written in the default way, by name."""
    read_only: frozenset[str] = frozenset()
    """The properties that only responses contain."""

    def content(self, value: Any) -> tuple[str, bytes]:
        """Return media type and bytes of a value.

        Raises:
            ToolRefusedError: the body is a form and ``value`` is not an object.
        """
        kind = essence(self.media_type)
        if is_json_type(kind):
            return self.media_type, _encoded(json.dumps(value), self.media_type)
        if kind in (FORM, MULTIPART):
            if not isinstance(value, dict):
                raise ToolRefusedError("The body must be an object with the fields of the form.")
            owners = dict.fromkeys(self.read_only, "")
            owners |= {name: name for name in (*self.fields, *value)}
            fields = [(self._field(name), one) for name, one in value.items()]
            if kind == FORM:
                pairs = [(each.name, each.pairs(one, quote_plus)) for each, one in fields]
                return self.media_type, _query(_joined(pairs, owners, unquote_plus)).encode()
            parts = [(each.name, each.parts(one)) for each, one in fields]
            return _multipart(_joined(parts, owners, str))
        if is_text(kind):
            content = _encoded(_text(value), self.media_type)
            is_clear = content.isascii() or charset_of(self.media_type)
            return self.media_type + ("" if is_clear else "; charset=utf-8"), content
        file_type, content = _file(value)
        return file_type if "*" in kind else self.media_type, content

    def _field(self, name: str) -> Parameter:
        return self.fields.get(name) or Parameter(place="body", name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOperation:
    """A request whose arguments a model chooses."""

    method: str
    url: str
    """Address, with placeholders such as ``{order_id}`` in the path or the query."""
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments."""
    places: Mapping[str, Parameter]
    """Place of each argument in the request; ``path`` is the whole URL."""
    body: Body | None
    description: str

    def __post_init__(self) -> None:
        """Check that the placeholders are required arguments, and not in the host.

        Raises:
            ValueError: a placeholder is in the host, or is not a required argument.
        """
        required = self.parameters.get("required", ())
        required_places = [self.places[name] for name in required if name in self.places]
        url_arguments = {each.name for each in required_places if each.place == "path"}
        if re.search("[{}]", urlsplit(self.url).netloc + PLACEHOLDER.sub("", self.url)):
            raise ValueError("url: placeholders are {name}, in the path or the query only")
        for name in PLACEHOLDER.findall(self.url):
            if name not in url_arguments:
                required_names = ", ".join(required) or "none"
                raise ValueError(
                    f"url: {{{name}}} is not a required argument; those are: {required_names}"
                )

    def request(self, args: Mapping[str, Any]) -> tuple[str, dict[str, str], bytes]:
        """Return URL, headers and body for arguments; the body is empty if there is none.

        Raises:
            ToolRefusedError: a value could change the path or the names in the query.
        """
        at: dict[ParameterLocation, list[tuple[Parameter, Any]]] = {}
        for argument, value in args.items():
            at.setdefault(self.places[argument].place, []).append((self.places[argument], value))
        texts = {each.name: each.expanded(value, quote) for each, value in at.get("path", ())}
        path, _, query = self.url.partition("?")
        segments = [self._segment(each, texts) for each in path.split("/")]
        fixed = _filled(query, texts)
        pairs = self._pairs(at.get("query", ()), "query", fixed)
        query = "&".join(filter(None, (fixed, _query(pairs))))
        headers = {
            parameter.name: parameter.expanded(value, _plain)
            for parameter, value in at.get("header", ())
            if value is not None
        }
        if cookies := self._pairs(at.get("cookie", ()), "cookie"):
            headers["cookie"] = "; ".join(f"{name}={value}" for name, value in cookies)
        content = b""
        fields = {parameter.name: value for parameter, value in at.get("body", ())}
        if self.body is not None and (fields or self.body.is_required):
            headers["content-type"], content = self.body.content(fields.get("", fields))
        return "/".join(segments) + (f"?{query}" if query else ""), headers, content

    @staticmethod
    def _segment(template: str, texts: Mapping[str, str]) -> str:
        segment = _filled(template, texts)
        plain = unquote(segment)
        if plain != template and (set(plain) <= {"."} or re.search(r"[/\\]", plain)):
            raise ToolRefusedError(
                f"{template} may not be empty or dots, or contain a slash or a backslash."
            )
        return segment

    def _pairs(
        self, arguments: Iterable[tuple[Parameter, Any]], place: ParameterLocation, fixed: str = ""
    ) -> Pairs:
        """Return encoded names and values; an object may not set the value of another name."""
        owners = {unquote_plus(pair.partition("=")[0]): "" for pair in fixed.split("&")}
        owners |= {each.name: each.name for each in self.places.values() if each.place == place}
        written = [(each.name, each.pairs(value, quote)) for each, value in arguments]
        return _joined(written, owners, unquote_plus)


def templated(
    method: str, url: str, parameters: Mapping[str, Any] | None, description: str
) -> HttpOperation:
    """Return an operation whose other arguments go to the query, or to a JSON body.

    Without ``parameters``, the placeholders are arguments of type string.
    """
    names = list(dict.fromkeys(PLACEHOLDER.findall(url)))
    texts = {name: {"type": "string"} for name in names}
    schema = parameters or {"type": "object", "properties": texts, "required": names}
    rest: ParameterLocation = "query" if method in _WITHOUT_BODY else "body"
    places = {
        name: Parameter(place="path" if name in names else rest, name=name)
        for name in schema.get("properties", {})
    }
    has_body = any(each.place == "body" for each in places.values())
    return HttpOperation(
        method=method,
        url=url,
        parameters={"type": "object", "additionalProperties": False, **schema},
        places=places,
        body=Body(media_type="application/json") if has_body else None,
        description=description,
    )


def _filled(template: str, texts: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda placeholder: texts[placeholder[1]], template)


def _query(pairs: Pairs) -> str:
    return "&".join(f"{name}={value}" for name, value in pairs)


def _joined(
    written: Iterable[tuple[str, Iterable[tuple[str, Content]]]],
    owners: Mapping[str, str],
    decoded: Callable[[str], str],
) -> list[tuple[str, Content]]:
    """Return the names and values of all arguments, in their order.

    ``written`` holds each argument's own name, and the encoded names and values of its request.
    The keys of an object become names. ``owners`` maps each decoded name that is already taken to
    its argument. Servers read ``name[key]`` as a part of ``name``, so that is taken as well.

    Raises:
        ToolRefusedError: a key of an object is the name of another argument.
    """
    owners, pairs = dict(owners), list[tuple[str, Content]]()
    for argument, argument_pairs in written:
        for encoded, value in argument_pairs:
            name = decoded(encoded)
            base = argument if name.startswith(f"{argument}[") else name.partition("[")[0]
            is_free = (
                owners.setdefault(name, argument) == argument
                and owners.get(base, argument) == argument
            )
            if name != argument and not is_free:
                raise ToolRefusedError(
                    f"{argument}: {name!r} is another argument, or fixed or read-only."
                )
            pairs.append((encoded, value))
    return pairs


def _plain(text: str, _: str) -> str:
    return text


def _text(value: Any) -> str:
    """Return a string as it is, and other values as JSON; ``2.0`` is ``2``."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        value = int(value)
    return json.dumps(value, separators=(",", ":"))


def _encoded(text: str, kind: str) -> bytes:
    try:
        return in_charset(text, kind)
    except UnicodeEncodeError as error:
        raise ToolRefusedError(
            f"The charset {charset_of(kind)} has no character U+{ord(text[error.start]):04X}:"
            " leave it out."
        ) from None


def _in_media_type(value: Any, kind: str) -> str:
    return json.dumps(value, separators=(",", ":")) if is_json_type(kind) else _text(value)


def _without_null(value: Any) -> Any:
    """Return a list or an object without null, which no style can write."""
    if isinstance(value, list):
        return [each for each in value if each is not None]
    if isinstance(value, dict):
        return {key: each for key, each in value.items() if each is not None}
    return value


def _flat(value: Any) -> list[str]:
    """Return the texts of the items of a list, or of the keys and values of an object."""
    if isinstance(value, dict):
        return [text for key, one in value.items() for text in (key, _text(one))]
    if isinstance(value, list):
        return [_text(each) for each in value]
    return [] if value is None else [_text(value)]


def _deep(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield a name such as ``filter[sizes][0]`` and its text for each value inside of a value."""
    inner = _without_null(value)
    if not isinstance(inner, list | dict):
        yield name, _text(inner)
        return
    for key, each in enumerate(inner) if isinstance(inner, list) else inner.items():
        yield from _deep(f"{name}[{key}]", each)


def _file(value: Any) -> tuple[str, bytes]:
    """Return media type and content of a file: a text, or a data URL (RFC 2397)."""
    text = _text(value)
    if (start := _DATA_URL.match(text)) is None:
        return "application/octet-stream", text.encode()
    if not _MEDIA_TYPE.fullmatch(start[1]):
        raise ToolRefusedError(
            "A data URL must have a media type of printable ASCII without spaces, or none."
        )
    content = unquote_to_bytes(text[start.end() :])
    if start[2]:
        try:
            content = base64.b64decode(content, validate=True)
        except ValueError:
            raise ToolRefusedError("A data URL must have valid Base64 after its comma.") from None
    return start[1] or "text/plain", content


def _multipart(
    parts: list[tuple[str, tuple[str | None, bytes, str | None]]],
) -> tuple[str, bytes]:
    """Return media type and bytes; equal parts have an equal boundary, also in retries."""
    boundary = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
    kind = f"{MULTIPART}; boundary={boundary}"
    if not parts:
        return kind, f"--{boundary}--\r\n".encode()
    request = httpx2.Request("POST", "http://body", files=parts, headers={"content-type": kind})
    return kind, request.read()
