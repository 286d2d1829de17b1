"""pydantic-ai's Agent alone."""

import asyncio
from collections.abc import AsyncIterable
from functools import lru_cache
from importlib import import_module
from typing import Any

from bench.answering import answer
from bench.timing import seconds_each_awaited

pydantic_ai: Any = import_module("pydantic_ai")
models: Any = import_module("pydantic_ai.models.openai")
providers: Any = import_module("pydantic_ai.providers.openai")

RUNNER = asyncio.Runner()


def turn(url: str, turns: int, times: int, *, streamed: bool) -> float:
    """Return the time of one turn: a model call and the requested tool call."""
    agent = _agent(url, turns)

    async def execute() -> None:
        handler = {"event_stream_handler": _read} if streamed else {}
        result = await agent.run("How much is it?", **handler)
        assert result.usage.requests == turns

    return seconds_each_awaited(execute, times, RUNNER) / turns


async def _read(_: Any, events: AsyncIterable[Any]) -> None:
    async for _event in events:
        pass


def calculator(expression: str) -> str:
    """Compute a sum."""
    first, second = expression.split(" + ")
    return str(int(first) + int(second))


@lru_cache
def _agent(url: str, turns: int) -> Any:
    provider = providers.OpenAIProvider(base_url=url, api_key="none")
    return pydantic_ai.Agent(
        models.OpenAIChatModel(f"turns-{turns}", provider=provider),
        instructions="Compute with the tool.",
        tools=[calculator],
    )


if __name__ == "__main__":
    answer({"turn": turn})
