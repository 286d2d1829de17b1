"""The files of runs: how callers name them, how they are listed and how their bytes are sent.

Files contain what tools have made of untrusted input. A browser is told the type of a file and not
to guess it, to show pictures of pixels alone and to save everything else, and to run nothing in a
file that is opened all the same: an SVG may hold scripts.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from types import MappingProxyType
from typing import Annotated, Any, Self

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field
from starlette.types import Receive, Scope, Send

from caseworker.api.field_types import View, named_like
from caseworker.runs.artifacts import StoredArtifact
from caseworker.tools.artifacts import artifact_uri

_NAME = r"^[a-z0-9][a-z0-9._-]*$"
_MAX_NAME = 100


ArtifactName = Annotated[
    str,
    named_like(_NAME, _MAX_NAME, "An artifact name has 1 to 100 of the characters a-z 0-9 . _ -"),
    Field(
        json_schema_extra={"pattern": _NAME, "minLength": 1, "maxLength": _MAX_NAME},
        examples=["plot-aapl-line-3f9a2c71-1.png"],
    ),
]
"""Made by the service; part of a path."""


class ArtifactView(View):
    """A file that a run has made."""

    name: str
    media_type: str
    size_bytes: int
    sha256: str
    """Of its bytes, in hexadecimal digits; also its entity tag."""
    created_at: datetime
    url: str
    """Where its bytes are."""

    @classmethod
    def of(cls, run_id: str, artifact: StoredArtifact, root: str) -> Self:
        """Return the view of a file, with its URL below the path the service is served under."""
        return cls(
            name=artifact.name,
            media_type=artifact.media_type,
            size_bytes=artifact.size_bytes,
            sha256=artifact.sha256,
            created_at=artifact.created_at,
            url=f"{root}{artifact_uri(run_id, artifact.name)}",
        )


class ArtifactList(View):
    """All files that a run has made so far, oldest first."""

    run_id: str
    artifacts: list[ArtifactView]

    @classmethod
    def of(cls, run_id: str, found: Sequence[StoredArtifact], root: str) -> Self:
        """Return the view of the files of a run."""
        return cls(run_id=run_id, artifacts=[ArtifactView.of(run_id, each, root) for each in found])


Pieces = AsyncGenerator[bytes, None]

CONTENT_SECURITY_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'"
"""No script, no form, no origin of its own, and nothing that is loaded from elsewhere."""

UNKNOWN = "application/octet-stream"

_CONTENT_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "image/png": "image/png",
        "image/svg+xml": "image/svg+xml",
        "image/jpeg": "image/jpeg",
        "image/gif": "image/gif",
        "image/webp": "image/webp",
        "application/json": "application/json",
        "text/csv": "text/csv; charset=utf-8",
        "text/plain": "text/plain; charset=utf-8",
    }
)
"""The media types that are sent; all others are sent as bytes of an unknown type."""

_SHOWN = frozenset({"image/png"})
"""What a browser shows instead of saving it."""

_BINARY = {"schema": {"type": "string", "format": "binary"}}

CONTENT: Mapping[str, Any] = MappingProxyType(
    {
        **dict.fromkeys((UNKNOWN, *_CONTENT_TYPES), _BINARY),
        "application/json": {"schema": {"description": "The JSON content of the artifact."}},
    }
)
"""How the OpenAPI document describes the bytes; generated clients read them as the first type."""

HEADERS: Mapping[str, Any] = {
    "ETag": {"description": "SHA-256 digest of the artifact.", "schema": {"type": "string"}},
    "Content-Disposition": {
        "description": "The file name. PNG images are shown inline, other files are downloaded.",
        "schema": {"type": "string"},
    },
}
"""The headers of an answer with the bytes of a file."""


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
    """Return the answer to a caller whose copy is up to date; None to others."""
    known = ",".join(request.headers.getlist("if-none-match"))
    tags = {tag.strip().removeprefix("W/") for tag in known.split(",")}
    if "*" not in tags and _tag(artifact) not in tags:
        return None
    return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=_validators(artifact))


class ArtifactResponse(StreamingResponse):
    """A file whose first piece was read already; the others are read as they are sent."""

    def __init__(self, artifact: StoredArtifact, first: bytes, rest: Pieces) -> None:
        super().__init__(_sent(first, rest), headers=headers_of(artifact))
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, or as much as the caller reads."""
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
