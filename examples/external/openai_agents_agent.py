"""An agent with one tool, written with the OpenAI Agents SDK."""

import asyncio

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

set_default_openai_api("chat_completions")
set_tracing_disabled(True)


@function_tool
def rain(city: str) -> str:
    """Return the rain of the last hour in a city."""
    print("tool: rain in", city, flush=True)
    return "12 mm"


async def main() -> None:
    """Print the answer while it arrives."""
    agent = Agent(name="reporter", model="small", tools=[rain])
    answer = Runner.run_streamed(agent, "Report on the rain in Bergen.")
    async for event in answer.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            print(event.data.delta, end="", flush=True)
    print()


asyncio.run(main())
