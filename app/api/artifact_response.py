"""How the bytes of a file are sent, and what keeps a browser from running what is in them.

Files hold what tools have made of what strangers have said. A browser is told what a file is and
not to guess, to show pictures of pixels alone and to save everything else, and to run nothing that
is in a file should it be opened all the same: an SVG may hold scripts.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.runs.artifacts import StoredArtifact

Pieces = AsyncGenerator[bytes, None]

CONTENT_SECURITY_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'"
"""No script, no form, no origin of its own, and nothing that is loaded from elsewhere."""

UNKNOWN = "application/octet-stream"

_CONTENT_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "image/png": "image/png",
        "image/svg+xml": "image/svg+xml",
        "application/json": "application/json",
        "text/csv": "text/csv; charset=utf-8",
        "text/plain": "text/plain; charset=utf-8",
    }
)
"""What a file may call itself; whatever else it says, it is bytes."""

_SHOWN = frozenset({"image/png"})
"""What a browser shows instead of saving it."""

_BINARY = {"schema": {"type": "string", "format": "binary"}}

CONTENT: Mapping[str, Any] = MappingProxyType(
    {**dict.fromkeys((*_CONTENT_TYPES, UNKNOWN), _BINARY), "application/json": {"schema": {}}}
)
"""How the OpenAPI document describes the bytes."""

HEADERS: Mapping[str, Any] = {
    "ETag": {"description": "The file's SHA-256 digest.", "schema": {"type": "string"}},
    "Content-Disposition": {
        "description": "The file's name; PNG pictures are shown, other files are saved.",
        "schema": {"type": "string"},
    },
}
"""What an answer says beside the bytes."""


def headers_of(artifact: StoredArtifact) -> dict[str, str]:
    """Return the headers of a file's bytes."""
    disposition = "inline" if artifact.media_type in _SHOWN else "attachment"
    return {
        "Content-Type": _CONTENT_TYPES.get(artifact.media_type, UNKNOWN),
        "Content-Length": str(artifact.size_bytes),
        "Content-Disposition": f'{disposition}; filename="{artifact.name}"',
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        **_validators(artifact),
    }


def not_modified(request: Request, artifact: StoredArtifact) -> Response | None:
    """Return the answer to a caller who has these very bytes; None to one who has not."""
    known = ",".join(request.headers.getlist("if-none-match"))
    tags = {tag.strip().removeprefix("W/") for tag in known.split(",")}
    if "*" not in tags and _tag(artifact) not in tags:
        return None
    return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=_validators(artifact))


class ArtifactResponse(StreamingResponse):
    """A file, of which the first piece was read already; the others are read as they are sent."""

    def __init__(self, artifact: StoredArtifact, first: bytes, rest: Pieces) -> None:
        super().__init__(_sent(first, rest), headers=headers_of(artifact))
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, or what the caller takes of it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._rest.aclose()


async def _sent(first: bytes, rest: Pieces) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


def _validators(artifact: StoredArtifact) -> dict[str, str]:
    return {"ETag": _tag(artifact), "Cache-Control": "private, no-cache"}


def _tag(artifact: StoredArtifact) -> str:
    return f'"{artifact.sha256}"'
