"""Routes for artifacts: files that runs create, such as plots."""

from typing import Annotated

from fastapi import Path, Response

from caseworker.features.artifacts.keeping import ArtifactReading
from caseworker.features.artifacts.views import (
    CONTENT,
    HEADERS,
    ArtifactList,
    ArtifactName,
    ArtifactResponse,
    headers_of,
    not_modified,
)
from caseworker.platform.http.openapi import EVERY_RUN_ROUTE, Responses, answers
from caseworker.platform.http.problems import Errors, ProblemType
from caseworker.platform.http.request import ApiRequest, api_router
from caseworker.runs.errors import ArtifactNotFoundError
from caseworker.runs.http.fields import RunIdPath
from caseworker.runs.http.problems import RUN_NOT_FOUND
from caseworker.runs.run import RunKey

ARTIFACT_NOT_FOUND = ProblemType(
    slug="artifact-not-found",
    status=404,
    title="Artifact not found",
    detail=(
        "The run has no artifact with this name. GET /runs/{run_id}/artifacts lists its artifacts."
    ),
)

ERRORS: Errors = {ArtifactNotFoundError: ARTIFACT_NOT_FOUND}

router = api_router("runs", prefix="/runs")

NamePath = Annotated[ArtifactName, Path(description="Name of an artifact of the run.")]

_FILE: Responses = {
    **answers(*EVERY_RUN_ROUTE, RUN_NOT_FOUND, ARTIFACT_NOT_FOUND),
    200: {
        "description": "Content of the artifact.",
        "content": {**CONTENT},
        "headers": {**HEADERS},
    },
    304: {"description": "The artifact matches If-None-Match."},
}


@router.get("/{run_id}/artifacts", responses=answers(*EVERY_RUN_ROUTE, RUN_NOT_FOUND))
async def list_artifacts(run_id: RunIdPath, request: ApiRequest) -> ArtifactList:
    """List the files that a run has created so far, oldest first."""
    return ArtifactList.of(
        run_id,
        await request.service(ArtifactReading).find(RunKey(request.caller.tenant, run_id)),
        request.root,
    )


@router.get("/{run_id}/artifacts/{name}", response_class=Response, responses=_FILE)
@router.head(
    "/{run_id}/artifacts/{name}",
    response_class=Response,
    responses=_FILE,
    name="head_artifact",
)
async def get_artifact(run_id: RunIdPath, name: NamePath, request: ApiRequest) -> Response:
    """Return a file that a run has created.

    PNG images are displayed inline; other files are sent as downloads. Scripts in a file are not
    executed, even if a browser opens it.
    """
    key = RunKey(request.caller.tenant, run_id)
    artifact = await request.service(ArtifactReading).get(key, name)
    unchanged = not_modified(request, artifact)
    if unchanged is not None:
        return unchanged
    if request.method == "HEAD":
        return Response(headers=headers_of(artifact))
    pieces = request.service(ArtifactReading).pieces(key, artifact)
    return ArtifactResponse(artifact, await anext(pieces, b""), pieces)
