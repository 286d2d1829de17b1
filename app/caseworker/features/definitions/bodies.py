"""Request bodies that register or validate graphs and agents."""

from typing import Annotated

from pydantic import StringConstraints

from caseworker.platform.http.bodies import STORABLE, BodyModel
from caseworker.runs.http.definition_body import DefinitionName, InlineAgent, InlineGraph

MAX_DESCRIPTION_CHARS = 1000

Description = Annotated[str, StringConstraints(max_length=MAX_DESCRIPTION_CHARS), STORABLE]


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
