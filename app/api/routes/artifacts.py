"""The files that runs make, such as pictures: list them, get one."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from app.api import problem_types as types
from app.api.artifact_response import (
    CONTENT,
    HEADERS,
    ArtifactResponse,
    headers_of,
    not_modified,
)
from app.api.artifact_views import ArtifactList, ArtifactName
from app.api.call import Call, GuardedRoute
from app.api.documentation import EVERY_RUN_ROUTE, Responses, answers, operation_id
from app.api.parameters import RunIdPath

router = APIRouter(
    prefix="/runs",
    tags=["runs"],
    route_class=GuardedRoute,
    generate_unique_id_function=operation_id,
)

NamePath = Annotated[ArtifactName, Path(description="The name of a file of the run.")]

_FILE: Responses = {
    **answers(*EVERY_RUN_ROUTE, types.RUN_NOT_FOUND, types.ARTIFACT_NOT_FOUND),
    200: {"description": "The bytes of the file.", "content": {**CONTENT}, "headers": {**HEADERS}},
    304: {"description": "They are those that If-None-Match names."},
}


@router.get("/{run_id}/artifacts", responses=answers(*EVERY_RUN_ROUTE, types.RUN_NOT_FOUND))
async def list_artifacts(run_id: RunIdPath, call: Call) -> ArtifactList:
    """List the files that a run has made so far, oldest first."""
    return ArtifactList.of(run_id, await call.artifacts.find(call.key(run_id)), call.root)


@router.get("/{run_id}/artifacts/{name}", response_class=Response, responses=_FILE)
@router.head(
    "/{run_id}/artifacts/{name}",
    response_class=Response,
    responses=_FILE,
    name="head_artifact",
)
async def get_artifact(run_id: RunIdPath, name: NamePath, call: Call) -> Response:
    """Return a file that a run has made.

    Files other than PNG pictures are sent to be saved. Nothing that is in a file is run, should a
    browser open it all the same.
    """
    key = call.key(run_id)
    artifact = await call.artifacts.get(key, name)
    unchanged = not_modified(call, artifact)
    if unchanged is not None:
        return unchanged
    if call.method == "HEAD":
        return Response(headers=headers_of(artifact))
    pieces = call.artifacts.pieces(key, artifact)
    return ArtifactResponse(artifact, await anext(pieces, b""), pieces)
