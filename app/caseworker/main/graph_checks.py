"""Validate graphs offline against the node catalog, without a service or database."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from caseworker.core.graph.problems import Problem
from caseworker.features.definitions.definitions import problems_alone
from caseworker.main.agents import build_catalog, build_models, build_tools
from caseworker.main.limits import api_limits
from caseworker.main.plugins import Toolbox, installed_agents, installed_functions
from caseworker.settings.schema import Settings


def graph_problems(
    settings: Settings, graphs: Sequence[Mapping[str, Any]]
) -> Sequence[Sequence[Problem]]:
    """Return all problems of each graph, checked with the tools and functions of this machine.

    Calls no model and starts no tool server. Registered graphs and agents are not looked up.

    Raises:
        StartupError: a configured provider, tool or function cannot be created.
    """

    async def examined() -> Sequence[Sequence[Problem]]:
        toolbox = Toolbox(settings.tools)
        tools = build_tools(settings, toolbox.tools, toolbox.servers)
        models = build_models(settings)
        try:
            functions, code = installed_functions(), installed_agents(settings.agents.plugins)
            catalog = build_catalog(settings, models, tools, toolbox, functions, code)
            limits = api_limits(settings).of_graphs
            return [problems_alone(catalog, limits, graph) for graph in graphs]
        finally:
            await models.aclose()
            await toolbox.aclose()

    return asyncio.run(examined())
