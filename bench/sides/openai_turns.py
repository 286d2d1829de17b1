"""The client library of the provider alone, which all agents use: the floor for all sides."""

import asyncio
import json
from functools import lru_cache
from time import perf_counter, process_time
from typing import Any

from openai import AsyncOpenAI

from bench.answering import answer
from bench.timing import seconds_each_awaited

RUNNER = asyncio.Runner()
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Compute a sum.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}


def turn(url: str, turns: int, times: int, *, streamed: bool, wall: bool = False) -> float:
    """Return the time of one turn: a model call, and the requested sum.

    ``wall`` includes the time spent waiting for the provider.
    """
    client = _client(url)

    async def execute() -> None:
        messages: list[Any] = [
            {"role": "system", "content": "Compute with the tool."},
            {"role": "user", "content": "How much is it?"},
        ]
        for _ in range(turns):
            asked = {"model": f"turns-{turns}", "messages": messages, "tools": [TOOL]}
            messages += await (_streamed(client, asked) if streamed else _whole(client, asked))
        assert messages[-1]["content"], messages[-1]

    clock = perf_counter if wall else process_time
    return seconds_each_awaited(execute, times, RUNNER, clock) / turns


async def _whole(client: AsyncOpenAI, asked: Any) -> list[Any]:
    reply = await client.chat.completions.create(**asked)
    message = reply.choices[0].message
    calls = [(call.id, call.function.arguments) for call in message.tool_calls or ()]
    return _said(message.content, calls)


async def _streamed(client: AsyncOpenAI, asked: Any) -> list[Any]:
    content, call_id, arguments = "", "", ""
    stream = await client.chat.completions.create(**asked, stream=True)
    async for chunk in stream:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                call_id = call.id or call_id
                arguments += call.function.arguments or ""
    return _said(content or None, [(call_id, arguments)] if call_id else [])


def _said(content: str | None, calls: list[tuple[str, str]]) -> list[Any]:
    if not calls:
        return [{"role": "assistant", "content": content}]
    ((call_id, arguments),) = calls
    first, second = json.loads(arguments)["expression"].split(" + ")
    function = {"name": "calculator", "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": str(int(first) + int(second))},
    ]


@lru_cache
def _client(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=url, api_key="none")


if __name__ == "__main__":
    answer({"turn": turn})
