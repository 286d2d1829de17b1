"""Routes for registering agents."""

from http import HTTPStatus
from typing import Annotated

from fastapi import Body, Response

from caseworker.features.definitions.http import REGISTERED, definition_routes
from caseworker.features.definitions.problems import AGENT_IN_USE, AGENT_NOT_FOUND
from caseworker.features.definitions.views import (
    AgentDefinitionView,
    AgentList,
    RegisteredDefinition,
)
from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.http.request import ApiRequest
from caseworker.runs.definitions import Definitions
from caseworker.runs.http.definition_body import NewAgentBody
from caseworker.runs.http.openapi import NEW_AGENTS

router = definition_routes(
    DefinitionKind.AGENT,
    AgentDefinitionView,
    AgentList,
    not_found=AGENT_NOT_FOUND,
    in_use=AGENT_IN_USE,
)


@router.post("", status_code=HTTPStatus.CREATED, responses=REGISTERED)
async def register_agent(
    body: Annotated[NewAgentBody, Body(openapi_examples=NEW_AGENTS)],
    request: ApiRequest,
    response: Response,
) -> RegisteredDefinition:
    """Register an agent as the next version of its name; versions are immutable.

    The agent must be valid, and every agent that it refers to must be registered.
    """
    registered = await request.service(Definitions).register_agent(
        request.caller.tenant, body.agent
    )
    return RegisteredDefinition.answer(registered, request.root, response)
