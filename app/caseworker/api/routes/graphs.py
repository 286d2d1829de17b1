"""Routes that register graphs, and validate them without registering."""

from http import HTTPStatus
from typing import Annotated

from fastapi import Body, Response

from caseworker.api.api_request import ApiRequest
from caseworker.api.definition_body import GraphToValidate, NewGraphBody
from caseworker.api.definition_views import (
    GraphDefinitionView,
    GraphList,
    RegisteredDefinition,
    Validation,
)
from caseworker.api.documentation import (
    EVERY_BODY,
    EVERY_RUN_ROUTE,
    GRAPHS_TO_VALIDATE,
    NEW_GRAPHS,
    answers,
)
from caseworker.api.routes.definitions import REGISTERED, definition_routes
from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.run import DefinitionRef

router = definition_routes(DefinitionKind.GRAPH, GraphDefinitionView, GraphList)


@router.post("", status_code=HTTPStatus.CREATED, responses=REGISTERED)
async def register_graph(
    body: Annotated[NewGraphBody, Body(openapi_examples=NEW_GRAPHS)],
    request: ApiRequest,
    response: Response,
) -> RegisteredDefinition:
    """Register a graph as the next version of its name; versions are immutable.

    The graph must be valid, and all definitions that it refers to must be registered.
    """
    registered = await request.api.definitions.register(
        request.caller.tenant, DefinitionRef(body.name), body.graph, body.description
    )
    return RegisteredDefinition.answer(registered, request.root, response)


@router.post("/validate", responses=answers(*EVERY_RUN_ROUTE, *EVERY_BODY))
async def validate_graph(
    body: Annotated[GraphToValidate, Body(openapi_examples=GRAPHS_TO_VALIDATE)], request: ApiRequest
) -> Validation:
    """Validate a graph and return all problems; nothing is stored."""
    kind = DefinitionKind.GRAPH
    problems = await request.api.definitions.problems(request.caller.tenant, body.graph, kind)
    return Validation.of(problems)
