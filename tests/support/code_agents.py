"""Code agents and functions, as another package registers them.

The input of each is the text that its prompts contain, so that a test can script their replies.
"""

import asyncio
import os
import uuid
from pathlib import Path
from typing import Any

import openai
from opentelemetry import trace

from caseworker import CallFailedError, CodeContext, OutcomeUnknownError

NOTES = "TEST_NOTES_FILE"
"""The environment variable that names a file to which each execution adds lines."""


def note(text: str) -> None:
    """Add a line to the file."""
    with Path(os.environ[NOTES]).open("a") as notes:
        notes.write(f"{text}\n")


def fields(text: str) -> dict[str, Any]:
    """Return the fields of a model call."""
    return {"model": "small", "messages": [{"role": "user", "content": text}]}


async def model_answer(client: Any, text: str) -> str:
    """Return the answer of a model."""
    reply = await client.chat.completions.create(**fields(text))
    return str(reply.choices[0].message.content)


async def reporter(context: CodeContext) -> Any:
    """Ask a model three times.

    This paragraph is not part of the description.
    """
    client = context.models.openai()
    return [await model_answer(client, f"{context.input} {number}") for number in range(3)]


async def streaming(context: CodeContext) -> Any:
    """Read a stream of each API as it arrives."""
    chat = context.models.openai().chat.completions
    stream = await chat.create(**fields(context.input), stream=True)
    parts = [event.choices[0].delta.content or "" async for event in stream]
    claude = context.models.anthropic()
    asked = {**fields(context.input), "model": "claude", "max_tokens": 100}
    async with claude.messages.stream(**asked) as events:
        text = [part async for part in events.text_stream]
    return {"openai": parts, "anthropic": text}


async def connecting(context: CodeContext) -> Any:
    """Open a separate connection, as a framework does."""
    models = context.models
    async with openai.AsyncOpenAI(base_url=models.base_url, api_key=models.api_key) as client:
        return {"text": await model_answer(client, context.input), "key": models.api_key}


async def adding(context: CodeContext) -> Any:
    """Call tools and record results between model calls."""

    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        note(f"add {a} {b}")
        return a + b

    async def breaks(why: str) -> None:
        note(f"breaks {why}")
        raise ValueError(why)

    journaled = context.tool(add)
    first = await journaled(1, b=2)
    name = await context.step("name", lambda: asyncio.to_thread(lambda: uuid.uuid4().hex))
    answer = await model_answer(context.models.openai(), f"{context.input} {name}")
    try:
        await context.tool(breaks)("once")
    except CallFailedError as failed:
        error = [failed.error_class, str(failed)]
    await model_answer(context.models.openai(), f"{context.input} last")
    return {"sum": first, "again": await journaled(first), "answer": answer, "error": error}


async def sending(context: CodeContext) -> Any:
    """Call a tool that a crash interrupts."""
    released = Path(f"{os.environ[NOTES]}.released")

    async def send(to: str) -> str:
        note(f"send {to}")
        while not os.access(released, os.F_OK):  # noqa: ASYNC110 - another process creates it
            await asyncio.sleep(0.02)
        return f"sent to {to}"

    try:
        return await context.tool(send, idempotent=context.input == "idempotent")("x")
    except OutcomeUnknownError as unknown:
        return str(unknown)


async def detouring(context: CodeContext) -> Any:
    """Call the gateway of the process whose URL is the input."""
    key, url = context.models.api_key, f"{context.input}/gateway/openai/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
        return await model_answer(client, "DETOUR")


async def stubborn(context: CodeContext) -> Any:
    """Catch every exception, as frameworks do, and continue."""
    client, caught = context.models.openai(), 0
    for number in range(20):
        try:
            await model_answer(client, f"{context.input} {number}")
        except Exception:
            caught += 1
            note("caught")
    return f"{caught} caught"


async def very_stubborn(context: CodeContext) -> Any:
    """Catch even what no code should catch, and return a result."""
    tool = context.tool(note)
    for number in range(20):
        try:
            await tool(f"tool {number}")
        except BaseException:
            note("caught")
    return "done"


def blocking(context: CodeContext) -> Any:
    """Do everything in a thread."""
    client = context.models.openai()
    reply = client.chat.completions.create(**fields(context.input))
    stream = client.chat.completions.create(**fields(context.input), stream=True)
    with openai.OpenAI(
        base_url=context.models.base_url, api_key=context.models.api_key
    ) as connected:
        over_socket = connected.chat.completions.create(**fields(f"{context.input} socket"))
    return {
        "text": reply.choices[0].message.content,
        "stream": "".join(event.choices[0].delta.content or "" for event in stream),
        "socket": over_socket.choices[0].message.content,
        "tool": context.tool(len)("four"),
        "step": context.step("step", lambda: 7),
        "asked": context.ask("Shall it end?").approved,
    }


async def noting(context: CodeContext) -> Any:
    """Write down that it was executed, and call nothing."""
    note(f"noting {context.input}")
    return "noted"


async def asking(context: CodeContext) -> Any:
    """Ask a person between two model calls."""
    client = context.models.openai()
    before = await model_answer(client, f"{context.input} before")
    decision = await context.ask(f"{context.input}: send it?")
    if not decision.approved:
        return {"refused": decision.reason}
    return {"before": before, "after": await model_answer(client, f"{context.input} after")}


async def spanned(context: CodeContext) -> Any:
    """Return the current span."""
    span = trace.get_current_span().get_span_context()
    return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}


async def framework(context: CodeContext) -> Any:
    """Run an agent of a framework with a journaled tool."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def weather(city: str) -> str:
        """Return the weather of a city."""
        note(f"weather {city}")
        return f"rain in {city}"

    provider = OpenAIProvider(
        base_url="http://caseworker", api_key="none", http_client=context.models.http_client()
    )
    agent = Agent(OpenAIChatModel("small", provider=provider), tools=[context.tool(weather)])
    return (await agent.run(context.input)).output


async def embedding(context: CodeContext) -> Any:
    """Embed a text and arrays of tokens."""
    create = context.models.openai().embeddings.create
    replies = [
        await create(model="small", input=each, dimensions=3)
        for each in (context.input, [[1, 2], [3]])
    ]
    return [each.embedding for reply in replies for each in reply.data]


async def questioner(context: CodeContext) -> Any:
    """Only ask a person."""
    return (await context.ask(str(context.input))).approved
