"""Registered graphs: register, look at, list, delete; and validate without registering."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Response

from app.api import problem_types as types
from app.api.api_request import ApiRequest, ApiRoute
from app.api.documentation import (
    EVERY_BODY,
    EVERY_RUN_ROUTE,
    GRAPH_HEADERS,
    GRAPHS_TO_VALIDATE,
    NEW_GRAPHS,
    Responses,
    answers,
    operation_id,
)
from app.api.graph_body import (
    MAX_VERSION,
    GraphName,
    GraphQuery,
    GraphToValidate,
    NewGraphBody,
)
from app.api.graph_views import GraphDefinitionView, GraphList, RegisteredGraph, Validation
from app.runs.run import GraphRef

router = APIRouter(
    prefix="/graphs",
    tags=["graphs"],
    route_class=ApiRoute,
    generate_unique_id_function=operation_id,
)

NamePath = Annotated[GraphName, Path(description="The name of a graph.")]
VersionPath = Annotated[int, Path(description="One of its versions.", ge=1, le=MAX_VERSION)]

_FOUND = answers(*EVERY_RUN_ROUTE, types.GRAPH_NOT_FOUND)
_DELETED: Responses = {
    **answers(*EVERY_RUN_ROUTE, types.GRAPH_NOT_FOUND, types.GRAPH_IN_USE),
    204: {"description": "It is gone. Runs that were accepted with it are not touched."},
}


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    responses={
        **answers(*EVERY_RUN_ROUTE, *EVERY_BODY),
        200: {
            "description": "The newest version is the same already; nothing was stored.",
            "model": RegisteredGraph,
            "headers": GRAPH_HEADERS,
        },
        201: {"description": "A new version is stored.", "headers": GRAPH_HEADERS},
    },
)
async def register_graph(
    body: Annotated[NewGraphBody, Body(openapi_examples=NEW_GRAPHS)],
    request: ApiRequest,
    response: Response,
) -> RegisteredGraph:
    """Register a graph as the next version of its name; versions never change.

    It must be valid, and every graph that it names must be registered.
    """
    tenant = request.caller.tenant
    registered = await request.api.graphs.register(tenant, body.name, body.graph, body.description)
    if not registered.created:
        response.status_code = HTTPStatus.OK
    view = RegisteredGraph.of_registered(registered, request.root)
    response.headers["Location"] = view.links.self
    return view


@router.post("/validate", responses=answers(*EVERY_RUN_ROUTE, *EVERY_BODY))
async def validate_graph(
    body: Annotated[GraphToValidate, Body(openapi_examples=GRAPHS_TO_VALIDATE)], request: ApiRequest
) -> Validation:
    """Tell everything that is wrong with a graph; nothing is stored."""
    return Validation.of(await request.api.graphs.problems(request.caller.tenant, body.graph))


@router.get("", responses=answers(*EVERY_RUN_ROUTE))
async def list_graphs(query: Annotated[GraphQuery, Query()], request: ApiRequest) -> GraphList:
    """List the newest version of each registered graph, by name."""
    found = await request.api.graphs.find(
        request.caller.tenant, limit=query.limit, cursor=query.cursor
    )
    return GraphList.of(found, request.root)


@router.get("/{name}", responses=_FOUND)
async def get_graph(name: NamePath, request: ApiRequest) -> GraphDefinitionView:
    """Return the newest version of a graph."""
    found = await request.api.graphs.get(request.caller.tenant, GraphRef(name))
    return GraphDefinitionView.of_definition(found, request.root)


@router.get("/{name}/versions", responses=_FOUND)
async def list_graph_versions(
    name: NamePath, query: Annotated[GraphQuery, Query()], request: ApiRequest
) -> GraphList:
    """List the versions of a graph, newest first."""
    page = await request.api.graphs.versions(
        request.caller.tenant, name, limit=query.limit, cursor=query.cursor
    )
    return GraphList.of(page, request.root)


@router.get("/{name}/versions/{version}", responses=_FOUND)
async def get_graph_version(
    name: NamePath, version: VersionPath, request: ApiRequest
) -> GraphDefinitionView:
    """Return one version of a graph."""
    found = await request.api.graphs.get(request.caller.tenant, GraphRef(name, version))
    return GraphDefinitionView.of_definition(found, request.root)


@router.delete("/{name}", status_code=HTTPStatus.NO_CONTENT, responses=_DELETED)
async def delete_graph(name: NamePath, request: ApiRequest) -> None:
    """Delete all versions of a graph; their numbers are not used again."""
    await request.api.graphs.delete(request.caller.tenant, GraphRef(name))


@router.delete("/{name}/versions/{version}", status_code=HTTPStatus.NO_CONTENT, responses=_DELETED)
async def delete_graph_version(name: NamePath, version: VersionPath, request: ApiRequest) -> None:
    """Delete one version of a graph; its number is not used again."""
    await request.api.graphs.delete(request.caller.tenant, GraphRef(name, version))
