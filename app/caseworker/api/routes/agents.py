"""Routes for registering agents."""

from http import HTTPStatus
from typing import Annotated

from fastapi import Body, Response

from caseworker.api.api_request import ApiRequest
from caseworker.api.definition_body import NewAgentBody
from caseworker.api.definition_views import AgentDefinitionView, AgentList, RegisteredDefinition
from caseworker.api.documentation import NEW_AGENTS
from caseworker.api.routes.definitions import REGISTERED, definition_routes
from caseworker.nodes.nesting import DefinitionKind

router = definition_routes(DefinitionKind.AGENT, AgentDefinitionView, AgentList)


@router.post("", status_code=HTTPStatus.CREATED, responses=REGISTERED)
async def register_agent(
    body: Annotated[NewAgentBody, Body(openapi_examples=NEW_AGENTS)],
    request: ApiRequest,
    response: Response,
) -> RegisteredDefinition:
    """Register an agent as the next version of its name; versions are immutable.

    The agent must be valid, and every agent that it refers to must be registered.
    """
    registered = await request.api.definitions.register_agent(request.caller.tenant, body.agent)
    return RegisteredDefinition.answer(registered, request.root, response)
