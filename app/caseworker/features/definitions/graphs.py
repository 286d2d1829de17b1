"""Routes that register graphs, and validate them without registering."""

from http import HTTPStatus
from typing import Annotated

from fastapi import Body, Response

from caseworker.features.definitions.http import REGISTERED, definition_routes
from caseworker.features.definitions.problems import GRAPH_IN_USE, GRAPH_NOT_FOUND
from caseworker.features.definitions.views import (
    GraphDefinitionView,
    GraphList,
    RegisteredDefinition,
    Validation,
)
from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.http.openapi import EVERY_BODY, EVERY_RUN_ROUTE, answers
from caseworker.platform.http.request import ApiRequest
from caseworker.runs.definitions import Definitions
from caseworker.runs.http.definition_body import GraphToValidate, NewGraphBody
from caseworker.runs.http.openapi import GRAPHS_TO_VALIDATE, NEW_GRAPHS
from caseworker.runs.run import DefinitionRef

router = definition_routes(
    DefinitionKind.GRAPH,
    GraphDefinitionView,
    GraphList,
    not_found=GRAPH_NOT_FOUND,
    in_use=GRAPH_IN_USE,
)


@router.post("", status_code=HTTPStatus.CREATED, responses=REGISTERED)
async def register_graph(
    body: Annotated[NewGraphBody, Body(openapi_examples=NEW_GRAPHS)],
    request: ApiRequest,
    response: Response,
) -> RegisteredDefinition:
    """Register a graph as the next version of its name; versions are immutable.

    The graph must be valid, and all definitions that it refers to must be registered.
    """
    registered = await request.service(Definitions).register(
        request.caller.tenant, DefinitionRef(body.name), body.graph, body.description
    )
    return RegisteredDefinition.answer(registered, request.root, response)


@router.post("/validate", responses=answers(*EVERY_RUN_ROUTE, *EVERY_BODY))
async def validate_graph(
    body: Annotated[GraphToValidate, Body(openapi_examples=GRAPHS_TO_VALIDATE)], request: ApiRequest
) -> Validation:
    """Validate a graph and return all problems; nothing is stored."""
    problems = await request.service(Definitions).problems(request.caller.tenant, body.graph)
    return Validation.of(problems)
