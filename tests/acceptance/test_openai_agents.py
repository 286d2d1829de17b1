"""Registered agents behind OpenAI's API, with the unmodified client of OpenAI."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.support.external import start
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient
from tests.support.npm_packages import installed_packages, node
from tests.support.service import (
    SETTLED,
    ServiceProcess,
    claude_settings,
    finished,
    model_settings,
)

NPM = Path(__file__).parents[1] / "support" / "npm_openai"
AGENT: dict[str, Any] = {
    "name": "support",
    "prompt": {"system": "You are support."},
    "tools": ["calculator"],
}
CALL = {"id": "c1", "name": "calculator", "arguments": '{"expression": "6 * 7"}'}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ANSWER = "It is 42, as everybody knows."


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    """Return settings that send the requests of front ends for titles to an agent of their own."""
    return {
        **model_settings(running_provider.openai_url),
        **claude_settings(running_provider.url),
        **SETTLED,
        "FACES_TASK_MODEL": "titles",
    }


@pytest.fixture
async def support(service: ServiceProcess) -> str:
    """Register the agent and return its name with its version."""
    async with service.http() as http:
        answer = await http.post("/agents", json={"agent": AGENT})
    return f"support@{answer.raise_for_status().json()['version']}"


@pytest.fixture
async def ai(service: ServiceProcess, support: str) -> AsyncIterator[openai.AsyncOpenAI]:
    """Return OpenAI's client, with the placeholder that its users send to local services."""
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="unused") as client:
        yield client


def strict(kind: Any, value: Any) -> Any:
    """Validate a reply by its type; the client itself accepts any JSON."""
    assert isinstance(value, kind), value
    return kind.model_validate(value.model_dump(mode="json"), strict=False)


def says(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


@pytest.mark.req("cw/16.openai")
async def test_a_chat_completion_is_answered_by_a_run(
    ai: openai.AsyncOpenAI, support: str, client: JsonClient, provider: FakeProvider
) -> None:
    """The reply has the answer and the token counts of all its model calls."""
    await provider.script("(chat)", [Step(tool_calls=[CALL]), Step(text=ANSWER)])

    reply = await ai.chat.completions.create(
        model="support", messages=says("6 times 7? (chat)"), metadata={"order": "7"}
    )
    run = await client.get_run(reply.id.removeprefix("chatcmpl-"))

    whole = strict(ChatCompletion, reply)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (ANSWER, "stop")
    assert whole.model == support
    assert whole.usage.total_tokens == run["usage"]["tokens"]
    assert run["metadata"] == {"order": "7", "openai": {"api": "chat_completions"}}


@pytest.mark.req("cw/16.openai")
async def test_a_streamed_chat_completion_ends_with_its_usage(
    ai: openai.AsyncOpenAI, support: str, provider: FakeProvider
) -> None:
    """Texts of several turns are separated by a blank line."""
    steps = [Step(text="Let me see.", tool_calls=[CALL]), Step(text=ANSWER, chunk_chars=6)]
    await provider.script("(streamed)", steps)

    chunks = [
        strict(ChatCompletionChunk, each)
        async for each in await ai.chat.completions.create(
            model=support,
            messages=says("6 times 7? (streamed)"),
            stream=True,
            stream_options={"include_usage": True},
        )
    ]

    *parts, last, usage = chunks
    text = "".join(each.choices[0].delta.content or "" for each in parts)
    assert text == f"Let me see.\n\n{ANSWER}"
    assert parts[0].choices[0].delta.role == "assistant"
    assert last.choices[0].finish_reason == "stop"
    assert usage.usage is not None
    assert usage.usage.total_tokens > 0


@pytest.mark.req("cw/16.openai")
async def test_models_are_the_registered_agents(ai: openai.AsyncOpenAI, support: str) -> None:
    """An unknown name is a 404 in the shape of the API; `anthropic-version` has its own shape."""
    models = [each.id async for each in ai.models.list()]
    one = await ai.models.retrieve("support")
    with pytest.raises(openai.NotFoundError) as unknown:
        await ai.models.retrieve("nobody")
    with pytest.raises(openai.NotFoundError) as called:
        await ai.chat.completions.create(model="nobody", messages=says("Hello"))
    with pytest.raises(openai.NotFoundError) as newer:
        await ai.chat.completions.create(model="support@99", messages=says("Hello"))
    with pytest.raises(openai.NotFoundError) as conversation:
        await ai.conversations.create()
    vendor = await ai._client.get("/models/nobody", headers={"anthropic-version": "1"})
    proxied = await ai._client.get("/models/nobody", headers={"x-api-key": "of-a-proxy"})

    assert "support" in models
    assert one.id == "support"
    for error in (unknown, called, newer):
        assert (error.value.code, error.value.param) == ("model_not_found", "model")
    assert conversation.value.param == "conversation"
    assert vendor.json()["type"] == "error"
    assert proxied.json()["error"]["code"] == "model_not_found"


@pytest.mark.req("cw/16.openai")
async def test_a_response_can_be_read_followed_and_streamed(
    ai: openai.AsyncOpenAI, support: str, provider: FakeProvider
) -> None:
    """A later response continues the conversation of an earlier one."""
    await provider.script("(first)", [Step(text=ANSWER)])
    await provider.script("(second)", [Step(text="Because I said so.", chunk_chars=4)])

    first = await ai.responses.create(model="support", input="6 times 7? (first)")
    events: list[Any] = [
        event
        async for event in await ai.responses.create(
            model="support",
            input="Why? (second)",
            previous_response_id=first.id,
            instructions="Be brief. " * 2000,
            stream=True,
        )
    ]
    last = events[-1]
    assert last.type == "response.completed"
    again = [
        event
        async for event in await ai.responses.retrieve(
            last.response.id, stream=True, starting_after=events[4].sequence_number
        )
    ]
    read = await ai.responses.retrieve(last.response.id)
    [arrival] = await provider.arrivals("(second)", bodies=True)

    assert strict(Response, first).output_text == ANSWER
    for event in events:
        EVENT.validate_python(event.model_dump(mode="json"))
    assert [each.sequence_number for each in events] == list(range(len(events)))
    assert [each.model_dump() for each in again] == [each.model_dump() for each in events[5:]]
    deltas = [each.delta for each in events if each.type == "response.output_text.delta"]
    assert "".join(deltas) == read.output_text == "Because I said so."
    assert len(deltas) > 1
    assert read.model_dump() == last.response.model_dump()
    assert read.previous_response_id == first.id
    assert arrival.body is not None
    system, question, answer, follow_up = arrival.body["messages"]
    assert system["content"] == "You are support."
    assert (question["content"], answer["content"]) == ("6 times 7? (first)", ANSWER)
    assert follow_up["content"].startswith("[System message of the client]\nBe brief. ")


@pytest.mark.req("cw/16.openai")
async def test_a_background_response_outlives_its_client(
    ai: openai.AsyncOpenAI, support: str, provider: FakeProvider
) -> None:
    """Another stream resumes it while it is written."""
    step = Step(text="Written in the background.", after_events=3)
    await provider.script("(background)", [step])
    stream: Any = await ai.responses.create(
        model="support", input="Write. (background)", background=True, stream=True
    )
    seen = []
    async for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    await stream.close()

    response_id = seen[0].response.id
    resumed: Any = await ai.responses.retrieve(
        response_id, stream=True, starting_after=seen[-1].sequence_number
    )
    running = await ai.responses.retrieve(response_id)
    await provider.release()
    seen += [event async for event in resumed]

    assert (running.status, running.background) == ("in_progress", True)
    assert [each.sequence_number for each in seen] == list(range(len(seen)))
    assert seen[-1].type == "response.completed"
    assert seen[-1].response.output_text == "Written in the background."


@pytest.mark.req("cw/16.openai")
async def test_a_cancelled_response_closes_the_connection_to_the_provider(
    ai: openai.AsyncOpenAI, support: str, provider: FakeProvider
) -> None:
    """A response in the background is returned before it ends."""
    await provider.script("(cancelled)", [Step(hang=True)])
    begun = await ai.responses.create(model="support", input="Wait. (cancelled)", background=True)
    await provider.wait_for_arrivals(1, containing="(cancelled)")

    cancelled = await ai.responses.cancel(begun.id)

    [arrival] = await provider.wait_for_arrivals(1, containing="(cancelled)", ended=True)
    assert begun.status in ("queued", "in_progress")
    assert strict(Response, cancelled).status == "cancelled"
    assert arrival.outcome == "client_gone"


@pytest.mark.parametrize("streams", [False, True])
async def test_a_client_that_leaves_cancels_its_run(
    service: ServiceProcess,
    client: JsonClient,
    support: str,
    provider: FakeProvider,
    *,
    streams: bool,
) -> None:
    """The provider's connection is closed."""
    marker = f"(left {streams})"
    await provider.script(marker, [Step(hang=True)])
    body = {"model": "support", "messages": says(f"Wait. {marker}"), "stream": streams}

    async with service.http() as http:
        asking = asyncio.create_task(_read(http, body))
        await provider.wait_for_arrivals(1, containing=marker)
        asking.cancel()
        await asyncio.wait({asking})
    [arrival] = await provider.wait_for_arrivals(1, containing=marker, ended=True)
    [run] = [each for each in (await _runs(service)) if marker in json.dumps(each)]
    ended = await finished(client, run["run_id"])

    assert arrival.outcome == "client_gone"
    assert (ended["status"], ended["stop"]["reason"]) == ("cancelled", "The client disconnected.")


async def test_fields_that_cannot_be_honoured_are_refused_by_name(
    ai: openai.AsyncOpenAI, support: str, provider: FakeProvider
) -> None:
    """Values that ask for nothing, and fields without effect, are accepted."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}
    with pytest.raises(openai.BadRequestError) as refused:
        await ai.chat.completions.create(
            model="support", messages=says("Hello"), extra_body={"tools": [tool]}
        )
    assert refused.value.param == "tools[0].function.parameters"
    chat: dict[str, Any] = {"n": 2, "max_tokens": 5, "surprise": 1, "stop": "x"}
    respond: dict[str, Any] = {"tools": [tool], "conversation": "conv_1", "max_output_tokens": 5}
    for name, value in chat.items():
        with pytest.raises(openai.BadRequestError) as refused:
            await ai.chat.completions.create(
                model="support", messages=says("Hello"), extra_body={name: value}
            )
        assert refused.value.param == name
    for name, value in respond.items():
        with pytest.raises(openai.BadRequestError) as refused:
            await ai.responses.create(model="support", input="Hello", extra_body={name: value})
        assert refused.value.param == name
    image: Any = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    with pytest.raises(openai.BadRequestError) as refused:
        await ai.chat.completions.create(
            model="support", messages=[{"role": "user", "content": image}]
        )
    assert refused.value.param == "messages[0].content[0]"
    assert await provider.arrivals() == []

    await provider.script("(neutral)", [Step(text="Yes.")])
    neutral: dict[str, Any] = {
        "tools": [],
        "n": 1,
        "temperature": 0.5,
        "response_format": {"type": "text"},
        "stop": None,
        "store": False,
        "user": "u",
    }
    reply = await ai.chat.completions.create(
        model="support", messages=says("Hello (neutral)"), **neutral
    )
    assert reply.choices[0].message.content == "Yes."


async def test_a_run_that_fails_is_an_error_that_clients_do_not_repeat(
    ai: openai.AsyncOpenAI, support: str, provider: FakeProvider
) -> None:
    """A stream ends with the error; a response has the status failed."""
    await provider.script("(failing)", [Step(status=400, raw_body="{}")] * 20)

    with pytest.raises(openai.InternalServerError) as failed:
        await ai.chat.completions.create(model="support", messages=says("Now. (failing)"))
    count = len(await provider.arrivals())
    with pytest.raises(openai.APIError):
        async for _ in await ai.chat.completions.create(
            model="support", messages=says("Now. (failing)"), stream=True
        ):
            pass
    response = await ai.responses.create(model="support", input="Now. (failing)")

    assert failed.value.response.headers["x-should-retry"] == "false"
    assert count == 1
    assert strict(Response, response).status == "failed"
    assert response.error is not None


async def test_a_run_that_a_limit_halts_is_a_stop_in_each_form(
    service: ServiceProcess, ai: openai.AsyncOpenAI, provider: FakeProvider
) -> None:
    """The text that was streamed before it stays; the error names the reason and the run."""
    limited = {**AGENT, "name": "limited", "limits": {"max_turns": 1}}
    async with service.http() as http:
        (await http.post("/agents", json={"agent": limited})).raise_for_status()
    await provider.script("(limit)", [Step(text="Let me see.", tool_calls=[CALL])] * 3)
    messages, texts = says("6 times 7? (limit)"), list[str]()

    with pytest.raises(openai.BadRequestError) as halted:
        await ai.chat.completions.create(model="limited", messages=messages)
    stream = await ai.chat.completions.create(model="limited", messages=messages, stream=True)
    with pytest.raises(openai.APIError) as interrupted:
        await read_texts(stream, texts)
    response = await ai.responses.create(model="limited", input="6 times 7? (limit)")

    for error in (halted.value, interrupted.value):
        assert (error.type, error.code) == ("run_stopped", "budget")
        assert "(run " in error.message
    assert "".join(texts) == "Let me see."
    assert strict(Response, response).status == "failed"
    assert response.output_text == "Let me see."


@pytest.mark.req("cw/16.openai")
async def test_keys_of_runs_reach_models_at_the_same_base_url(
    service: ServiceProcess, http: httpx.AsyncClient, support: str, provider: FakeProvider
) -> None:
    """The key decides; paths that one of both does not offer are refused with the right ones."""
    agent = await start(http)
    await provider.script("(gateway)", [Step(text="From a model.")] * 3)
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key=agent.key) as ai:
        reply = await ai.chat.completions.create(model="small", messages=says("Hi (gateway)"))
        response = await ai.responses.create(model="small", input="Hi (gateway)")
        models = [each.id async for each in ai.models.list()]
        with pytest.raises(openai.NotFoundError) as retrieved:
            await ai.responses.retrieve("resp_1")
    async with anthropic.AsyncAnthropic(base_url=service.url, auth_token=agent.key) as vendor:
        message = await vendor.messages.create(
            model="claude", messages=says("Hi (gateway)"), max_tokens=9
        )
        listed = [each.id async for each in vendor.models.list()]
    async with anthropic.AsyncAnthropic(base_url=service.url, auth_token="unused") as vendor:
        with pytest.raises(anthropic.NotFoundError) as refused:
            await vendor.messages.create(model="support", messages=says("Hi"), max_tokens=9)
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="unused") as agents:
        with pytest.raises(openai.NotFoundError) as embedded:
            await agents.embeddings.create(model="support", input="Hello")

    assert reply.choices[0].message.content == response.output_text == "From a model."
    assert "small" in models
    assert "support" not in models
    assert "/v1/chat/completions" in str(retrieved.value)
    assert "cwa_" in str(embedded.value)
    assert getattr(message.content[0], "text", None) == "From a model."
    assert "claude" in listed
    assert refused.value.body is not None
    assert "/v1/chat/completions" in str(refused.value)


async def test_a_front_ends_request_for_a_title_goes_to_the_agent_for_it(
    service: ServiceProcess, ai: openai.AsyncOpenAI, provider: FakeProvider
) -> None:
    """The agent of the chat does not answer it."""
    await provider.script("(title)", [Step(text="A title")])
    async with service.http() as http:
        titles = {"name": "titles", "prompt": "You write titles."}
        (await http.post("/agents", json={"agent": titles})).raise_for_status()

    reply = await ai.chat.completions.create(
        model="support", messages=says("### Task:\nWrite a title of this chat. (title)")
    )

    assert reply.model == "titles@1"


async def test_texts_of_an_agent_among_the_tools_are_not_part_of_the_answer(
    service: ServiceProcess, ai: openai.AsyncOpenAI, support: str, provider: FakeProvider
) -> None:
    """Only the agent that the request names writes the answer."""
    chief = {"name": "chief", "prompt": {}, "tools": [{"agent": {"name": "support"}}]}
    async with service.http() as http:
        (await http.post("/agents", json={"agent": chief})).raise_for_status()
    call = {"id": "d1", "name": "support", "arguments": '{"input": "6 * 7? (inner)"}'}
    await provider.script("(outer)", [Step(tool_calls=[call]), Step(text="42, says support.")])
    await provider.script("(inner)", [Step(text="It is 42.")])

    chunks = [
        each.choices[0].delta.content or ""
        async for each in await ai.chat.completions.create(
            model="chief", messages=says("Well? (outer)"), stream=True
        )
    ]

    assert "".join(chunks) == "42, says support."


async def test_the_javascript_client_and_the_ai_sdk_use_an_agent(
    service: ServiceProcess, support: str, provider: FakeProvider
) -> None:
    """Each of their APIs is answered, whole, streamed, resumed and cancelled."""
    modules = await asyncio.to_thread(installed_packages, NPM)
    await provider.script("(npm)", [Step(text=ANSWER, chunk_chars=6)] * 8)
    command = node(NPM / "ask.mjs", modules, f"{service.url}/v1", "support", "6 * 7? (npm)")

    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False, timeout=120
    )

    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    client = outcome["client"]
    assert client["chat"] == client["streamed"] == client["response"] == ANSWER
    assert client["isResumed"]
    assert client["cancelled"] == "completed"
    assert client["types"][-1] == "response.completed"
    for api in ("chat", "responses"):
        assert outcome[api]["text"] == outcome[api]["parts"] == ANSWER
        assert outcome[api]["tokens"] > 0


async def read_texts(stream: Any, texts: list[str]) -> None:
    async for chunk in stream:
        texts.append(chunk.choices[0].delta.content or "")  # noqa: PERF401 - kept after an error


async def _read(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        async for _ in reply.aiter_bytes():
            pass


async def _runs(service: ServiceProcess) -> list[dict[str, Any]]:
    async with service.http() as http:
        runs = (await http.get("/runs")).json()["runs"]
        return [(await http.get(f"/runs/{each['run_id']}")).json() for each in runs]
