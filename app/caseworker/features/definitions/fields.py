"""Field types for names, versions, graphs and agents in requests."""

from typing import Annotated, Any

from pydantic import Field

from caseworker.nodes.agent.definition import AgentDefinition
from caseworker.nodes.graph_spec import GraphSpec
from caseworker.platform.http.bodies import BodyModel, DocumentedAs, named_like

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


InlineGraph = Annotated[dict[str, Any], DocumentedAs(GraphSpec)]
"""A graph included in the request."""

GraphOrName = Annotated[dict[str, Any], DocumentedAs(GraphSpec, DefinitionByName)]
"""A graph included in the request, or a reference to a registered one."""


InlineAgent = Annotated[dict[str, Any], DocumentedAs(AgentDefinition)]
"""An agent included in the request."""

AgentOrName = Annotated[dict[str, Any], DocumentedAs(AgentDefinition, DefinitionByName)]
"""An agent included in the request, or a reference to a registered one."""
