"""Agno's Agent, without a database or telemetry."""

import asyncio
from functools import lru_cache
from importlib import import_module
from typing import Any

from bench.answering import answer
from bench.timing import seconds_each_awaited

agents: Any = import_module("agno.agent")
models: Any = import_module("agno.models.openai")

RUNNER = asyncio.Runner()


def turn(url: str, turns: int, times: int, *, streamed: bool) -> float:
    """Return the time of one turn: a model call and the requested tool call."""
    agent = _agent(url, turns)

    async def execute() -> None:
        if streamed:
            async for _ in agent.arun("How much is it?", stream=True, stream_events=True):
                pass
        else:
            result = await agent.arun("How much is it?")
            assert len(result.tools) == turns - 1

    return seconds_each_awaited(execute, times, RUNNER) / turns


def calculator(expression: str) -> str:
    """Compute a sum."""
    first, second = expression.split(" + ")
    return str(int(first) + int(second))


@lru_cache
def _agent(url: str, turns: int) -> Any:
    return agents.Agent(
        model=models.OpenAIChat(id=f"turns-{turns}", base_url=url, api_key="none"),
        instructions="Compute with the tool.",
        tools=[calculator],
        telemetry=False,
    )


if __name__ == "__main__":
    answer({"turn": turn})
