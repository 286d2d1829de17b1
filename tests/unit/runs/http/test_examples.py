"""The examples in the OpenAPI document are valid."""

import asyncio
from typing import Any

import pytest

from caseworker.features.definitions.agent_kind import AgentRunBody
from caseworker.features.definitions.fields import DefinitionByName
from caseworker.features.definitions.graph_kind import GraphRunBody
from caseworker.features.definitions.http import (
    GRAPHS_TO_VALIDATE,
    NEW_AGENTS,
    NEW_GRAPHS,
    GraphToValidate,
    NewAgentBody,
    NewGraphBody,
)
from caseworker.main.agents import build_catalog, build_models, build_tools
from caseworker.main.plugins import Toolbox
from caseworker.nodes.catalog import NodeCatalog
from caseworker.nodes.nesting import DefinitionKind, is_reference
from caseworker.runs.http.body import GoingOnBody
from caseworker.runs.http.kinds import EXAMPLES
from caseworker.runs.kinds import KINDS
from caseworker.settings.schema import Settings
from caseworker_cases.api import CaseAdmission
from caseworker_cases.schemas import CaseBody
from tests.support.limits import api_limits


@pytest.fixture(scope="module")
def catalog() -> NodeCatalog:
    """Return the catalog that the service builds from default settings."""
    settings = Settings()
    toolbox = Toolbox(settings.tools)
    tools = build_tools(settings, toolbox.tools)
    return build_catalog(settings, build_models(settings), tools, toolbox)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_run_that_is_shown_would_be_accepted(name: str, catalog: NodeCatalog) -> None:
    """Each example run is accepted without errors or warnings."""
    value: Any = EXAMPLES[name]["value"]
    if "from" in value:
        assert GoingOnBody.model_validate(value).from_.run_id in str(EXAMPLES)
        return
    if value.get("kind") == "agent":
        agent = AgentRunBody.model_validate(value).agent
        if is_reference(agent):
            DefinitionByName.model_validate(agent)
        else:
            assert catalog.examine(KINDS[DefinitionKind.AGENT].graph_of(agent))[1] == ()
        return
    if value.get("kind") != "graph":
        tools = build_tools(Settings(), Toolbox(Settings().tools).tools)
        models = build_models(Settings()).table
        usual = Settings()
        admission = CaseAdmission(
            api_limits(), tools, models, budget=usual.budget.limits, mode=usual.flags.mode
        )
        asyncio.run(admission.new_run(CaseBody.model_validate(value), "t", ""))
        return
    graph = GraphRunBody.model_validate(value).graph
    if is_reference(graph):
        DefinitionByName.model_validate(graph)
    else:
        assert catalog.examine(graph)[1] == ()


def test_every_graph_that_is_shown_is_valid(catalog: NodeCatalog) -> None:
    """Each example graph is valid, for registration and for validation."""
    for example in NEW_GRAPHS.values():
        assert catalog.examine(NewGraphBody.model_validate(example["value"]).graph)[1] == ()
    for example in GRAPHS_TO_VALIDATE.values():
        assert catalog.examine(GraphToValidate.model_validate(example["value"]).graph)[1] == ()


def test_every_agent_that_is_shown_is_valid(catalog: NodeCatalog) -> None:
    """Each example agent is valid; definitions it refers to are not looked up."""
    for example in NEW_AGENTS.values():
        agent = NewAgentBody.model_validate(example["value"]).agent
        assert catalog.examine(KINDS[DefinitionKind.AGENT].graph_of(agent))[1] == ()
