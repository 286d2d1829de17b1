"""What a caller may send about graphs and agents."""

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from caseworker.api.field_types import STORABLE, Body, DocumentedAs, named_like
from caseworker.nodes.agent.definition import AgentDefinition
from caseworker.nodes.graph_spec import GraphSpec

MAX_DESCRIPTION_CHARS = 1000
MAX_VERSION = 2**31 - 1

_NAME = r"^(?:[.]{0,2}[A-Za-z0-9_-]|[.]{3})[A-Za-z0-9._-]*$"
"""Any of these characters, but not a lone ``.`` or ``..``, which no URL can name."""


DefinitionName = Annotated[
    str,
    named_like(_NAME, 64, "A definition name has 1 to 64 of the characters A-Z a-z 0-9 . _ -"),
    Field(
        json_schema_extra={"pattern": _NAME, "minLength": 1, "maxLength": 64},
        examples=["invoice-check"],
    ),
]
"""Chosen by a caller; part of a path."""

Version = Annotated[int, Field(ge=1, le=MAX_VERSION)]


class DefinitionByName(Body):
    """The name of a registered graph or agent."""

    name: DefinitionName
    version: Version | None = None
    """Left out, the newest version there is."""


Description = Annotated[str, StringConstraints(max_length=MAX_DESCRIPTION_CHARS), STORABLE]


InlineGraph = Annotated[dict[str, Any], DocumentedAs(GraphSpec)]
"""A graph itself."""

GraphOrName = Annotated[dict[str, Any], DocumentedAs(GraphSpec, DefinitionByName)]
"""A graph itself, or the name of a registered one."""


InlineAgent = Annotated[dict[str, Any], DocumentedAs(AgentDefinition)]
"""An agent itself."""

AgentOrName = Annotated[dict[str, Any], DocumentedAs(AgentDefinition, DefinitionByName)]
"""An agent itself, or the name of a registered one."""


class NewAgentBody(Body):
    """An agent to register, under the name that it has."""

    agent: InlineAgent
    """The agent itself; among its tools it may name other registered agents."""


class NewGraphBody(Body):
    """A graph to register."""

    name: DefinitionName
    """What it is called; the first graph of a name is version 1, every change the next version."""
    graph: InlineGraph
    """The graph itself; in the data of its steps it may name other registered graphs."""
    description: Description | None = None
    """What the graph is for."""


class GraphToValidate(Body):
    """A graph to look at."""

    graph: InlineGraph
    """The graph itself; in the data of its steps it may name registered graphs."""
