"""pydantic-ai behind FastAPI, without durability, budgets or traces."""

import json
import os
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import Any

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from bench.serving import serve

pydantic_ai: Any = import_module("pydantic_ai")
models: Any = import_module("pydantic_ai.models.openai")
providers: Any = import_module("pydantic_ai.providers.openai")


class Question(BaseModel):
    """The body of a request."""

    input: str


async def calculator(expression: str) -> str:
    """Compute a sum."""
    first, second = expression.split(" + ")
    return str(int(first) + int(second))


def build_agents(
    tool: Callable[..., Any], capabilities: Callable[[], list[Any]] = list
) -> dict[str, Any]:
    """Return an agent for each model, by the model's name."""
    provider = providers.OpenAIProvider(base_url=os.environ["MODELS_URL"], api_key="none")
    return {
        name: pydantic_ai.Agent(
            models.OpenAIChatModel(name, provider=provider),
            name=name,
            instructions="Compute with the tool.",
            tools=[tool],
            capabilities=capabilities(),
        )
        for name in ("turns-1", "turns-3")
    }


if __name__ == "__main__":
    app, agents = FastAPI(), build_agents(calculator)

    @app.post("/agents/{name}/runs")
    async def run(name: str, question: Question) -> dict[str, str]:
        """Run an agent and return its answer."""
        result = await agents[name].run(question.input)
        return {"output": result.output}

    @app.post("/agents/{name}/stream")
    async def stream(name: str, question: Question) -> StreamingResponse:
        """Run an agent and stream its answer, merged as in pydantic-ai's example with FastAPI."""

        async def events() -> AsyncIterator[str]:
            async with agents[name].run_stream(question.input) as result:
                async for text in result.stream_text(delta=True, debounce_by=0.01):
                    yield f"data: {json.dumps({'text': text})}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    serve(app)
