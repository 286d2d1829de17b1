"""Says what is wrong with a graph where no service runs: by its catalog, without a database."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from caseworker.bootstrap.agents import build_catalog, build_models, build_tools
from caseworker.bootstrap.plugins import Toolbox, installed_functions
from caseworker.bootstrap.server import api_limits
from caseworker.kernel.problems import Problem
from caseworker.runs.definitions import problems_alone
from caseworker.settings.schema import Settings


def graph_problems(settings: Settings, graph: Mapping[str, Any]) -> Sequence[Problem]:
    """Return everything that is wrong with a graph, with the tools and functions of this machine.

    No model is asked, no tool server is started, and nothing that is registered is known.

    Raises:
        StartupError: a provider, tool or function cannot be made as it is configured.
    """

    async def examined() -> Sequence[Problem]:
        toolbox = Toolbox(settings.tools)
        tools = build_tools(settings, toolbox.tools, toolbox.servers)
        models = build_models(settings)
        try:
            catalog = build_catalog(settings, models, tools, toolbox, installed_functions())
            return problems_alone(catalog, api_limits(settings).of_graphs, graph)
        finally:
            await models.aclose()
            await toolbox.aclose()

    return asyncio.run(examined())
