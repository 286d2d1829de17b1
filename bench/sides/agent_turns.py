"""This project's agent in Python: loop, limits, budget, trace and events, without a database."""

import asyncio
import os
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from bench.answering import answer
from bench.servers import asking
from bench.timing import seconds_each_awaited
from caseworker import (
    BoundNode,
    Budget,
    CancellationToken,
    ExecutionContext,
    Graph,
    GraphRun,
)
from caseworker.engine.context import ExecutionResult, FlowContext
from caseworker.main.agents import build_models, build_tools
from caseworker.main.plugins import Toolbox
from caseworker.models.gateway import ModelGateway
from caseworker.nodes.agent.execution import Agents
from caseworker.nodes.agent.node import AgentData, AgentNode
from caseworker.nodes.node_type import RunFacts
from caseworker.platform.logs.logs import configure_logging
from caseworker.settings.loader import load_settings
from caseworker.settings.schema import Settings

AMPLE = Budget(max_tokens=10**9, max_steps=10**9, max_tool_calls=10**9, max_turns=10**9)
RUNNER = asyncio.Runner()


def turn(url: str, turns: int, times: int, *, streamed: bool) -> float:
    """Return the time of one turn: a model call and the requested tool call."""
    graph = _agent(url, turns, streamed)

    async def execute() -> None:
        ended: Any = None
        context = ExecutionContext(budget=AMPLE, cancellation=CancellationToken())
        async for event in graph.stream(context):
            ended = event
        assert isinstance(ended, GraphRun)
        assert ended.results["agent"]["result"]["turn_count"] == turns, ended

    return seconds_each_awaited(execute, times, RUNNER) / turns


class _InProcess:
    """The node of agents, with the models that a run of the service would bring."""

    def __init__(self, settings: Settings) -> None:
        tools = build_tools(settings, Toolbox(settings.tools).tools)
        agents = Agents(tools, timezone="UTC", wrap_up_reserve=1)
        self._node = AgentNode(agents)
        self._models = build_models(settings)

    async def execute(self, data: Any, inputs: Any, context: FlowContext) -> ExecutionResult:
        facts = RunFacts(now=datetime.now(UTC))
        services = {**context.run.services, ModelGateway: self._models, RunFacts: facts}
        run = replace(context.run, services=services)
        return await self._node.execute(data, inputs, replace(context, run=run))


@lru_cache
def _agent(url: str, turns: int, streamed: bool) -> Graph:
    settings = load_settings({**os.environ, **asking(url)}, Path.cwd()).settings
    data = AgentData.model_validate(
        {
            "agent": {
                "name": "helper",
                "prompt": {"system": "Compute with the tool."},
                "tools": ["calculator"],
                "model": {"name": f"turns-{turns}", "stream": streamed},
                "limits": {"max_turns": None},
            },
            "input": "How much is it?",
        }
    )
    graph = Graph("agent")
    graph.add_step(BoundNode(_InProcess(settings), data), "agent")
    return graph


if __name__ == "__main__":
    configure_logging(level="warning")
    answer({"turn": turn})
