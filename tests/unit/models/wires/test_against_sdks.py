"""Published replies as the vendors' SDKs and pydantic-ai read them, compared with our reading."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx2
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import ModelRequest, TextPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.unit.models.wires.captured import Capture, captures, read

Reading = tuple[str, list[tuple[str, Any]], tuple[int, int] | None]
"""Text, calls with their arguments, and input and output tokens (None without counts)."""

ANSWERS = [each for each in captures() if each.status == 200 and "error" not in each.expected]


def _http(capture: Capture) -> httpx2.AsyncClient:
    async def answer(_request: httpx2.Request) -> httpx2.Response:
        kind = "text/event-stream" if capture.streamed else "application/json"
        return httpx2.Response(200, content=capture.body, headers={"content-type": kind})

    return httpx2.AsyncClient(transport=httpx2.MockTransport(answer))


def _openai(capture: Capture) -> AsyncOpenAI:
    return AsyncOpenAI(base_url="http://m.test", api_key="k", http_client=_http(capture))


def _anthropic(capture: Capture) -> AsyncAnthropic:
    return AsyncAnthropic(base_url="http://m.test", api_key="k", http_client=_http(capture))


async def _by_sdk(capture: Capture) -> Reading:
    messages: Any = [{"role": "user", "content": "?"}]
    if capture.dialect == "anthropic":
        options: Any = {"model": "m", "messages": messages, "max_tokens": 9}
        client = _anthropic(capture)
        if capture.streamed:
            async with client.messages.stream(**options) as stream:
                message = await stream.get_final_message()
        else:
            message = await client.messages.create(**options)
        text = "".join(each.text for each in message.content if each.type == "text")
        calls = [(each.name, each.input) for each in message.content if each.type == "tool_use"]
        used = message.usage
        cached = (used.cache_read_input_tokens or 0) + (used.cache_creation_input_tokens or 0)
        return text, calls, (used.input_tokens + cached, used.output_tokens)
    create: Any = _openai(capture).chat.completions.create
    completion = await create(model="m", messages=messages, stream=capture.streamed)
    if capture.streamed:
        state = ChatCompletionStreamState()
        async for chunk in completion:
            state.handle_chunk(chunk)
        completion = state.get_final_completion()
    message = completion.choices[0].message
    counts = completion.usage
    return (
        message.content or "",
        [
            (call.function.name, json.loads(call.function.arguments))
            for call in message.tool_calls or ()
        ],
        None if counts is None else (counts.prompt_tokens, counts.completion_tokens),
    )


async def _by_pydantic_ai(capture: Capture) -> Reading:
    model: Model[Any]
    if capture.dialect == "openai":
        model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=_openai(capture)))
    else:
        anthropic = AnthropicProvider(anthropic_client=_anthropic(capture))
        model = AnthropicModel("m", provider=anthropic)
    asked = [ModelRequest.user_text_prompt("?")]
    if capture.streamed:
        async with model_request_stream(model, asked) as stream:
            async for _ in stream:
                pass
            response = stream.get()
    else:
        response = await model_request(model, asked)
    called = [part for part in response.parts if isinstance(part, ToolCallPart)]
    return (
        "".join(part.content for part in response.parts if isinstance(part, TextPart)),
        [(part.tool_name, part.args_as_dict()) for part in called],
        (response.usage.input_tokens, response.usage.output_tokens),
    )


JUDGES: Mapping[str, Callable[[Capture], Awaitable[Reading]]] = {
    "sdk": _by_sdk,
    "pydantic-ai": _by_pydantic_ai,
}
_CUT = "Arguments that the output limit has cut off are not made whole."
_PAID = "Reasoning that only the total counts is paid for like output."
_TAGS = "Thoughts in tags, and the blanks behind them, are no part of the answer."
_LAST = "Counts in every chunk are those so far, not to be added up."
_PARTS = "The text is that of the parts."
_NAMES = "A name in every chunk is one name."
DIFFERENCES: Mapping[str, str] = {
    **{
        f"{judge}: {capture}": reason
        for judge in ("sdk", "pydantic-ai")
        for capture, reason in {
            "anthropic-cut-within-call-arguments": _CUT,
            "gemini-thinking-only-in-total": _PAID,
            "together-think-tags-stream": _TAGS,
            "vllm-empty-think-tags": _TAGS,
            "vllm-think-tags-and-call": _TAGS,
            "xai-call-reasoning-beside-output": _PAID,
            "xai-reasoning-stream": _PAID,
            "xai-stream-without-finish-key": _PAID,
            "xai-text-reasoning-beside-output": _PAID,
        }.items()
    },
    "sdk: gemini-image-without-text": _PAID,
    "sdk: mistral-content-parts-whole": _PARTS,
    "pydantic-ai: gemini-name-in-every-chunk-indexes-change": _NAMES,
    "pydantic-ai: perplexity-crlf-stream": _LAST,
    "pydantic-ai: vllm-usage-in-every-chunk": _LAST,
}
"""Captures that an SDK reads differently from us without an error, and why."""


async def _ours(capture: Capture) -> Reading:
    reply = await read(capture)
    complete = reply.incomplete is None
    calls = [
        (call.name, json.loads(call.arguments) if complete else call.arguments)
        for call in reply.tool_calls
    ]
    usage = reply.usage
    return reply.text, calls, None if usage is None else (usage.tokens_in, usage.tokens_out)


@pytest.mark.parametrize(("judge", "least"), [("sdk", 60), ("pydantic-ai", 60)])
async def test_a_judge_reads_answers_as_we_do(judge: str, least: int) -> None:
    """Text, calls and counts are equal, except for differences listed with a reason."""
    different, judged = {}, 0
    for capture in ANSWERS:
        try:
            text, calls, usage = await JUDGES[judge](capture)
        except Exception:  # noqa: S112
            continue
        judged += 1
        theirs = text, calls, usage if usage != (0, 0) else None
        ours = await _ours(capture)
        if theirs != ours:
            different[f"{judge}: {capture.id}"] = (theirs, ours)

    assert judged >= least
    listed = {key for key in DIFFERENCES if key.startswith(f"{judge}: ")}
    assert different.keys() == listed, {
        key: different.get(key) for key in different.keys() ^ listed
    }
