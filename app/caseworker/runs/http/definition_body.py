"""Request schemas for registering graphs and agents and for referring to them."""

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from caseworker.nodes.agent.definition import AgentDefinition
from caseworker.nodes.graph_spec import GraphSpec
from caseworker.platform.http.bodies import STORABLE, BodyModel, DocumentedAs, named_like

MAX_DESCRIPTION_CHARS = 1000
MAX_VERSION = 2**31 - 1

_NAME = r"^(?:[.]{0,2}[A-Za-z0-9_-]|[.]{3})[A-Za-z0-9._-]*$"
"""Any of these characters, except ``.`` and ``..`` alone, which cannot be URL path segments."""


DefinitionName = Annotated[
    str,
    named_like(_NAME, 64, "A definition name has 1 to 64 of the characters A-Z a-z 0-9 . _ -"),
    Field(
        json_schema_extra={"pattern": _NAME, "minLength": 1, "maxLength": 64},
        examples=["invoice-check"],
    ),
]
"""Name of a registered graph or agent, chosen by the caller. It is part of a URL path."""

Version = Annotated[int, Field(ge=1, le=MAX_VERSION)]


class DefinitionByName(BodyModel):
    """A reference to a registered graph or agent."""

    name: DefinitionName
    version: Version | None = None
    """Version to use; defaults to the newest."""


Description = Annotated[str, StringConstraints(max_length=MAX_DESCRIPTION_CHARS), STORABLE]


InlineGraph = Annotated[dict[str, Any], DocumentedAs(GraphSpec)]
"""A graph included in the request."""

GraphOrName = Annotated[dict[str, Any], DocumentedAs(GraphSpec, DefinitionByName)]
"""A graph included in the request, or a reference to a registered one."""


InlineAgent = Annotated[dict[str, Any], DocumentedAs(AgentDefinition)]
"""An agent included in the request."""

AgentOrName = Annotated[dict[str, Any], DocumentedAs(AgentDefinition, DefinitionByName)]
"""An agent included in the request, or a reference to a registered one."""


class NewAgentBody(BodyModel):
    """An agent to register under the name in its definition."""

    agent: InlineAgent
    """The agent definition. Its tools may include registered agents, by name."""


class NewGraphBody(BodyModel):
    """A graph to register."""

    name: DefinitionName
    """Name of the graph. The first registration creates version 1, every change the next
    version."""
    graph: InlineGraph
    """The graph. Its steps may refer to registered graphs by name."""
    description: Description | None = None
    """Purpose of the graph, as text."""


class GraphToValidate(BodyModel):
    """A graph to validate."""

    graph: InlineGraph
    """The graph. Its steps may refer to registered graphs by name."""
