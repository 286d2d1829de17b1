"""Converts an MCP tool's result to the JSON format of this service's tool results.

``text`` holds the readable text, ``structured`` the structured content, and ``omitted`` a list of
the parts that cannot be passed on. Pictures are stored as artifacts of the run.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from mcp.types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from caseworker.tools.arguments import is_storable
from caseworker.tools.artifacts import ArtifactTooLargeError, stem_of
from caseworker.tools.ports import ToolContext, ToolResult, failure

MAX_PICTURES: Final = 10
"""Maximum number of pictures per result; further pictures are omitted."""
_MAX_LINK_CHARS: Final = 2000
_PICTURES: Final[Mapping[str, re.Pattern[bytes]]] = MappingProxyType(
    {
        "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
        "image/jpeg": re.compile(rb"\xff\xd8\xff"),
        "image/gif": re.compile(rb"GIF8[79]a"),
        "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    }
)
"""Magic bytes of the supported picture types."""
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")


async def result_of(name: str, answer: CallToolResult, context: ToolContext) -> ToolResult:
    """Convert an MCP tool's result; ``name`` is the tool's full name, with its server.

    Raises:
        ArtifactTooLargeError: a picture exceeds the run's size limit for artifacts.
    """
    texts: list[str] = []
    omitted: list[str] = []
    pictures = 0
    for part in answer.content:
        if isinstance(part, ImageContent) and not answer.is_error and pictures < MAX_PICTURES:
            pictures += 1
            omitted += await _kept(name, part, context)
        else:
            _read(part, texts, omitted)
    text = _UNSTORABLE.sub("\ufffd", "\n".join(texts))
    if answer.is_error:
        return failure(text or "The tool failed and did not say why.", "tool_error")
    result: ToolResult = {"text": text} if text or answer.structured_content is None else {}
    if answer.structured_content is not None:
        if not is_storable({"": answer.structured_content}):
            return failure("The tool's structured content cannot be stored.", "unfit_result")
        result["structured"] = answer.structured_content
    return {**result, "omitted": omitted} if omitted else result


def _read(part: Any, texts: list[str], omitted: list[str]) -> None:
    match part:
        case TextContent():
            texts.append(part.text)
        case EmbeddedResource(resource=TextResourceContents() as resource):
            texts.append(resource.text)
        case EmbeddedResource():
            omitted.append("a resource that is no text")
        case ResourceLink():
            texts.append(f"{part.name}: {part.uri}"[:_MAX_LINK_CHARS])
        case ImageContent():
            omitted.append("a picture")
        case AudioContent():
            omitted.append("a sound")


async def _kept(name: str, part: ImageContent, context: ToolContext) -> list[str]:
    """Store a picture as an artifact; return a line for ``omitted`` if that is impossible."""
    try:
        data = base64.b64decode(part.data, validate=True)
    except (binascii.Error, ValueError):
        return ["a picture that cannot be decoded"]
    beginning = _PICTURES.get(part.mime_type)
    if beginning is None or not beginning.match(data):
        return ["a picture that is no PNG, JPEG, GIF or WebP"]
    if context.artifacts is None:
        return ["a picture, since this run keeps no files"]
    if len(data) > context.artifacts.max_bytes:
        raise ArtifactTooLargeError(context.artifacts.max_bytes)
    await context.artifacts.save(stem_of(name), part.mime_type, data)
    return []
