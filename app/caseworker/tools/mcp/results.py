"""Converts an MCP tool's result to the JSON format of this service's tool results.

``text`` holds the readable text, ``structured`` the structured content, ``resources`` the linked
and embedded resources, and ``omitted`` a line for each part that cannot be passed on. Pictures,
sounds and binary resources are stored as artifacts of the run. Text that only repeats the
structured content is dropped, because a model would read and pay for the same data twice.
"""

import asyncio
import base64
import binascii
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from caseworker.core.trace.frozen_json import ValueTooLargeError
from caseworker.tools.arguments import fits_journal
from caseworker.tools.artifacts import BINARY, EXTENSIONS, ArtifactTooLargeError, stem_of
from caseworker.tools.ports import ToolContext, ToolResult, failure
from caseworker.tools.results import UnfitResultError
from caseworker.tools.results import tool_result_of as json_of

MAX_FILES: Final = 10
"""Maximum number of stored files per result; further ones are omitted."""
_MAX_CHARS: Final = 2000
"""Maximum length of a name, URI or description of a part."""
_SHORT_CHARS: Final = 20_000
"""Length of text that is compared with the structured content without a thread."""
_PICTURES: Final[Mapping[str, re.Pattern[bytes]]] = MappingProxyType(
    {
        "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
        "image/jpeg": re.compile(rb"\xff\xd8\xff"),
        "image/gif": re.compile(rb"GIF8[79]a"),
        "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    }
)
"""Magic bytes of the supported picture types."""
_ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "image/jpg": "image/jpeg",
        "audio/x-wav": "audio/wav",
        "audio/wave": "audio/wav",
        "audio/vnd.wave": "audio/wav",
        "audio/mp3": "audio/mpeg",
        "audio/x-flac": "audio/flac",
    }
)
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_FENCE: Final = "```"
_NO_JSON: Final = object()
_PICTURE: Final = "a picture"


async def mcp_result_of(name: str, answer: CallToolResult, context: ToolContext) -> ToolResult:
    """Convert an MCP tool's result; ``name`` is the tool's full name, with its server.

    Raises:
        ArtifactTooLargeError: a file exceeds the run's size limit for artifacts.
    """
    structured = answer.structured_content
    stored = structured
    if structured is not None and not fits_journal({"": structured}):
        stored = await asyncio.to_thread(_storable_json, structured)
        if stored is None:
            return failure("The tool's structured content cannot be stored.", "unfit_result")
    texts = [each for each in map(_text_of, answer.content) if each is not None]
    if structured is not None and not answer.is_error:
        if sum(map(len, texts)) <= _SHORT_CHARS:
            texts = _without_repetition(texts, structured)
        else:
            texts = await asyncio.to_thread(_without_repetition, texts, structured)
    parts = _Parts(name, None if answer.is_error else context, frozenset(texts))
    for part in answer.content:
        await parts.add(part)
    text = _storable("\n".join(parts.texts))
    if answer.is_error:
        return _error_result(text, stored, parts)
    result: ToolResult = {}
    if text or (structured is None and not parts.resources):
        result["text"] = text
    if structured is not None:
        result["structured"] = stored
    if parts.resources:
        result["resources"] = parts.resources
    if parts.omitted:
        result["omitted"] = parts.omitted
    return result


def _error_result(text: str, structured: Any, parts: "_Parts") -> ToolResult:
    contents = [each["text"] for each in parts.resources if "text" in each]
    if not text and structured is not None:
        contents.insert(0, json.dumps(structured, ensure_ascii=False))
    text = "\n".join(filter(None, (text, *contents, *parts.omitted)))
    return failure(_storable(text) or "The tool failed and did not say why.", "tool_error")


def _text_of(part: ContentBlock) -> str | None:
    match part:
        case TextContent(text=text) | EmbeddedResource(resource=TextResourceContents(text=text)):
            return text
        case _:
            return None


def _without_repetition(texts: Sequence[str], structured: Any) -> list[str]:
    """Return the texts that do not repeat the structured content.

    Servers send the same data as JSON in one text, or one text for each element of a list. SDKs
    wrap a value that is not an object in an object with a single member.
    """
    forms = [structured]
    if isinstance(structured, dict) and len(structured) == 1:
        forms += structured.values()
    parsed = [_parsed(text) for text in texts]
    for form in forms:
        if isinstance(form, list) and len(texts) == len(form) and form:
            pairs = zip(texts, parsed, form, strict=True)
            if all(_repeats(text, value, element) for text, value, element in pairs):
                return []
    return [
        text
        for text, value in zip(texts, parsed, strict=True)
        if not any(_repeats(text, value, form) for form in forms)
    ]


def _repeats(text: str, parsed: Any, value: Any) -> bool:
    """Return whether a text is a string, or the JSON of any other value."""
    try:
        return text == value or _same(parsed, value)
    except RecursionError:
        return False


def _parsed(text: str) -> Any:
    """Return the JSON value of a text, or ``_NO_JSON``, which equals no JSON value."""
    try:
        return json.loads(_unfenced(text))
    except (ValueError, RecursionError):
        return _NO_JSON


def _unfenced(text: str) -> str:
    """Return the content of a Markdown code block of JSON, and any other text as it is."""
    start, _, rest = text.strip().partition("\n")
    is_fenced = start.rstrip().lower() in (_FENCE, f"{_FENCE}json") and rest.endswith(_FENCE)
    return rest.removesuffix(_FENCE) if is_fenced else text


def _same(a: Any, b: Any) -> bool:
    """Return whether two JSON values are equal; unlike in Python, true is not 1."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


@dataclass(slots=True)
class _Parts:
    """The parts of a result, by kind."""

    name: str
    """Full name of the tool, for the names of files."""
    context: ToolContext | None
    """Context of the call; None stores no files."""
    texts_to_pass: frozenset[str]
    """The texts that do not repeat the structured content."""
    texts: list[str] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    omitted: list[str] = field(default_factory=list)
    _files: int = 0

    async def add(self, part: ContentBlock) -> None:
        """Add a part of the result.

        Raises:
            ArtifactTooLargeError: its file exceeds the size limit.
        """
        match part:
            case TextContent():
                self.texts += [part.text] if part.text in self.texts_to_pass else []
            case ImageContent():
                await self._keep(_PICTURE, part.mime_type, part.data)
            case AudioContent():
                await self._keep("a sound", part.mime_type, part.data)
            case ResourceLink():
                self.resources.append(_described(part))
            case EmbeddedResource(resource=TextResourceContents() as resource):
                text = (
                    {"text": _storable(resource.text)}
                    if resource.text in self.texts_to_pass
                    else {}
                )
                self.resources.append(_described(resource) | text)
            case EmbeddedResource(resource=BlobResourceContents() as resource):
                what = f"the resource {_short(resource.uri)}"
                artifact = await self._keep(what, resource.mime_type or BINARY, resource.blob)
                self.resources.append(
                    _described(resource) | ({"artifact": artifact} if artifact else {})
                )

    async def _keep(self, what: str, media_type: str, text: str) -> str | None:
        """Store a part's data and return the name of its file, or add a line to ``omitted``."""
        essence = media_type.partition(";")[0].strip().lower()
        kind = _ALIASES.get(essence, essence)
        what = f"{what} ({_short(media_type, 100)}"
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            self.omitted.append(f"{what}): its data is not valid Base64")
            return None
        what = f"{what}, {len(data):,} bytes)"
        if kind.startswith("image/") or what.startswith(_PICTURE):
            beginning = _PICTURES.get(kind)
            if beginning is None or not beginning.match(data):
                self.omitted.append(f"{what}: it is not a PNG, JPEG, GIF or WebP")
                return None
        if self.context is None or self.context.artifacts is None:
            self.omitted.append(f"{what}: this run keeps no files")
            return None
        if self._files == MAX_FILES:
            self.omitted.append(f"{what}: a result may have at most {MAX_FILES} files")
            return None
        if len(data) > self.context.artifacts.max_bytes:
            raise ArtifactTooLargeError(self.context.artifacts.max_bytes)
        self._files += 1
        stored = kind if kind in EXTENSIONS else BINARY
        return (await self.context.artifacts.save(stem_of(self.name), stored, data)).name


def _described(
    resource: ResourceLink | TextResourceContents | BlobResourceContents,
) -> dict[str, Any]:
    """Return the fields of a resource that the server sent."""
    fields = {each: each for each in ("uri", "name", "title", "description")}
    described: dict[str, Any] = {
        name: _short(value)
        for name, attribute in {**fields, "media_type": "mime_type"}.items()
        if (value := getattr(resource, attribute, None))
    }
    size = getattr(resource, "size", None)
    return described if size is None else {**described, "size_bytes": size}


def _short(value: object, chars: int = _MAX_CHARS) -> str:
    return _storable(str(value))[:chars]


def _storable_json(value: Any) -> Any:
    """Convert a JSON value as the results of other tools are; return None if it is not storable."""
    try:
        stored = json_of({"": value}, max_bytes=sys.maxsize)
    except (UnfitResultError, ValueTooLargeError, RecursionError):
        return None
    return stored[""] if fits_journal(stored) else None


def _storable(text: str) -> str:
    """Replace the characters that a journal cannot store."""
    return _UNSTORABLE.sub("\ufffd", text)
