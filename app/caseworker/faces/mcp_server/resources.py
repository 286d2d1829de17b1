"""Resources that the service offers to MCP clients: traces and artifacts of runs.

A tenant may have any number of runs, so templates describe the resources. The list has only the
traces of the newest runs, and the result of a tool call links to the resources of its run.
"""

import asyncio
import base64
import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

from mcp.types import (
    BlobResourceContents,
    Resource,
    ResourceLink,
    ResourceTemplate,
    TextResourceContents,
)

from caseworker.features.artifacts.http import media_type_of
from caseworker.features.artifacts.postgres import PostgresArtifacts
from caseworker.features.artifacts.storage import StoredArtifact
from caseworker.features.traces.http import explanation
from caseworker.platform.http.problems import ProblemError, invalid
from caseworker.platform.http.request import ApiRequest
from caseworker.runs.ports import RunFilter
from caseworker.runs.run import Run, RunKey
from caseworker.runs.service import RunService
from caseworker.tools.artifacts import artifact_uri

MAX_LISTED: Final = 50
"""Maximum number of runs whose traces are listed."""
MAX_ARTIFACT_BYTES: Final = 1024 * 1024
"""Maximum size of an artifact in a message, in bytes. The SDK builds the message on the event loop,
which takes about 20 milliseconds for this size."""
COPIES: Final = 5
"""Number of copies of an artifact in memory until it is sent: the bytes, Base64 and JSON."""

_TRACE: Final = "caseworker://runs/{run_id}/trace"
_ARTIFACT: Final = "caseworker://runs/{run_id}/artifacts/{name}"
_URI: Final = re.compile(
    r"caseworker://runs/(?P<run_id>[A-Za-z0-9._:-]{1,64})"
    r"/(?:trace|artifacts/(?P<name>[a-z0-9][a-z0-9._-]{0,99}))",
    re.ASCII,
)
_TEXT: Final = "text/plain"
_TEXT_TYPES: Final = frozenset({_TEXT, "text/csv", "application/json", "image/svg+xml"})
"""Media types whose content is returned as text if it is valid UTF-8."""

TEMPLATES: Final = (
    ResourceTemplate(
        name="trace",
        title="Trace of a run",
        uri_template=_TRACE,
        description="A text that explains the run so far: its calls, their results, its usage.",
        mime_type=_TEXT,
    ),
    ResourceTemplate(
        name="artifact",
        title="File of a run",
        uri_template=_ARTIFACT,
        description="A file that the run has created. The result of a tool call links to the files"
        " of its run.",
    ),
)

Contents = TextResourceContents | BlobResourceContents


async def newest_traces(request: ApiRequest) -> list[Resource]:
    """Return the traces of the newest runs of the caller's tenant."""
    run_filter = RunFilter(limit=MAX_LISTED)
    page = await request.service(RunService).store.find(request.caller.tenant, run_filter)
    return [
        Resource(**_trace_of(run), description=f"A run of the kind {run.kind}: {run.status}.")
        for run in page.items
    ]


async def links_of(run: Run, request: ApiRequest) -> Sequence[ResourceLink]:
    """Return links to the trace of a run and to the files that it has created so far."""
    key = run.key
    artifacts = await request.service(PostgresArtifacts).find(key)
    return [ResourceLink(**_trace_of(run)), *(_link_of(key, each) for each in artifacts)]


async def contents_of(uri: str, request: ApiRequest) -> Contents:
    """Return the content of the resource with this URI.

    Raises:
        RunNotFoundError: the tenant of the caller has no such run.
        ArtifactNotFoundError: the run has no such file.
        ProblemError: the URI matches no template, or the file is too large for a message.
    """
    if (match := _URI.fullmatch(unquote(uri))) is None:
        raise invalid("uri", f"The resource does not exist. URIs are {_TRACE} and {_ARTIFACT}.")
    key = RunKey(request.caller.tenant, match["run_id"])
    if (name := match["name"]) is not None:
        return await _artifact(uri, key, name, request)
    trace = await request.service(RunService).trace(key)
    text = await explanation(trace, request)
    return TextResourceContents(uri=uri, mime_type=_TEXT, text=text)


async def _artifact(uri: str, key: RunKey, name: str, request: ApiRequest) -> Contents:
    artifacts = request.service(PostgresArtifacts)
    artifact = await artifacts.get(key, name)
    if artifact.size_bytes > MAX_ARTIFACT_BYTES:
        raise _too_large(key, artifact, request)
    request.hold(COPIES * artifact.size_bytes)
    data = b"".join([piece async for piece in artifacts.pieces(key, artifact)])
    return await asyncio.to_thread(_contents, uri, artifact, data)


def _contents(uri: str, artifact: StoredArtifact, data: bytes) -> Contents:
    media_type = media_type_of(artifact)
    if media_type in _TEXT_TYPES:
        try:
            return TextResourceContents(uri=uri, mime_type=media_type, text=data.decode())
        except UnicodeDecodeError:
            pass
    blob = base64.b64encode(data).decode("ascii")
    return BlobResourceContents(uri=uri, mime_type=media_type, blob=blob)


def _too_large(key: RunKey, artifact: StoredArtifact, request: ApiRequest) -> ProblemError:
    url = f"{request.root}{artifact_uri(key.run_id, artifact.name)}"
    return invalid(
        "uri",
        f"The file has {artifact.size_bytes} bytes, and a message holds at most"
        f" {MAX_ARTIFACT_BYTES}. Download it: GET {url}",
    )


def _trace_of(run: Run) -> dict[str, Any]:
    run_id = run.key.run_id
    uri = _TRACE.format(run_id=run_id)
    return {"name": f"trace of {run_id}", "uri": uri, "mime_type": _TEXT}


def _link_of(key: RunKey, artifact: StoredArtifact) -> ResourceLink:
    return ResourceLink(
        name=artifact.name,
        uri=_ARTIFACT.format(run_id=key.run_id, name=artifact.name),
        mime_type=media_type_of(artifact),
        size=artifact.size_bytes,
    )
