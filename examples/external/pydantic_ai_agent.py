"""An agent with one tool, written with pydantic-ai."""

import asyncio

from pydantic_ai import Agent

agent = Agent("openai-chat:small")


@agent.tool_plain
def rain(city: str) -> str:
    """Return the rain of the last hour in a city."""
    print("tool: rain in", city, flush=True)
    return "12 mm"


async def main() -> None:
    """Print the answer while it arrives."""
    async with agent.run_stream("Report on the rain in Bergen.") as answer:
        async for part in answer.stream_text(delta=True):
            print(part, end="", flush=True)
    print()


asyncio.run(main())
