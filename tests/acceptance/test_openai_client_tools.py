"""Tools that clients of OpenAI's API execute, with the unmodified clients."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import psycopg
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient
from tests.support.npm_packages import installed_packages, node
from tests.support.service import ServiceProcess, finished

NPM = Path(__file__).parents[1] / "support" / "npm_openai"
LOOK_UP: Any = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up an order.",
        "parameters": {"type": "object", "properties": {"order": {"type": "integer"}}},
    },
}
ANSWER = "It was sent yesterday."
EXPIRES = """
WITH late AS (UPDATE approvals SET expires_at = now() WHERE decision IS NULL AND run_id = %s)
UPDATE runs SET queued_at = now() WHERE run_id = %s
"""


def call(number: int, name: str = "look_up", **arguments: Any) -> dict[str, str]:
    text = json.dumps(arguments or {"order": number})
    return {"id": f"p{number}", "name": name, "arguments": text}


def says(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def result(call_id: str, content: str) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def run_of(reply: ChatCompletion) -> str:
    return reply.id.removeprefix("chatcmpl-")


@pytest.fixture
async def ai(service: ServiceProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    """Register an agent with a tool, and return the unmodified client."""
    agent = {"name": "shop", "prompt": {"system": "You are a shop."}, "tools": ["calculator"]}
    async with service.http() as http:
        (await http.post("/agents", json={"agent": agent})).raise_for_status()
    async with openai.AsyncOpenAI(
        base_url=f"{service.url}/v1", api_key="unused", max_retries=0
    ) as client:
        yield client


async def ask(ai: openai.AsyncOpenAI, messages: list[Any], **more: Any) -> ChatCompletion:
    """Ask the agent with the client's tool; validate the reply by its type."""
    reply = await ai.chat.completions.create(
        model="shop", messages=messages, tools=[LOOK_UP], **more
    )
    assert isinstance(reply, ChatCompletion)
    return ChatCompletion.model_validate(reply.model_dump(mode="json"), strict=False)


def with_message(messages: list[Any], reply: ChatCompletion) -> list[Any]:
    """Return a conversation with the reply, as clients send it back."""
    return [*messages, reply.choices[0].message.model_dump(exclude_none=True)]


@pytest.mark.req("cw/16.tools")
async def test_results_continue_the_run_that_called(
    ai: openai.AsyncOpenAI, provider: FakeProvider, client: JsonClient
) -> None:
    """Tools of the agent run in the service; the client sees and answers only its own."""
    steps = [
        Step(
            text="I look.", tool_calls=[call(1), call(2), call(3, "calculator", expression="1+1")]
        ),
        Step(tool_calls=[call(4)]),
        Step(text=ANSWER),
    ]
    await provider.script("(tools)", steps)

    messages = says("Where are they? (tools)")
    first = await ask(ai, messages)
    calls = first.choices[0].message.tool_calls or []
    messages = with_message(messages, first)
    messages += [result(each.id, f"sent {number}") for number, each in enumerate(calls)]
    second = await ask(ai, messages)
    again = second.choices[0].message.tool_calls or []
    messages = [*with_message(messages, second), result(again[0].id, "sent 4")]
    third = await ask(ai, messages)
    repeated = await ask(ai, messages)
    run = await client.get_run(run_of(third))

    assert (first.choices[0].finish_reason, first.choices[0].message.content) == (
        "tool_calls",
        "I look.",
    )
    named = [json.loads(each.function.arguments) for each in calls if each.type == "function"]
    assert named == [{"order": 1}, {"order": 2}]
    assert all(run_of(first) in each.id for each in calls)
    assert run_of(first) == run_of(second) == run_of(third) == run_of(repeated)
    assert (third.choices[0].finish_reason, third.choices[0].message.content) == ("stop", ANSWER)
    assert repeated.choices[0].message.content == ANSWER
    assert (run["status"], run["usage"]["tool_calls"], run["usage"]["llm_calls"]) == (
        "completed",
        4,
        3,
    )


@pytest.mark.req("cw/16.tools")
async def test_a_stream_ends_with_the_calls_and_a_stream_continues(
    ai: openai.AsyncOpenAI, provider: FakeProvider
) -> None:
    """The second stream has only the new text."""
    steps = [Step(text="Let me look.", tool_calls=[call(1)]), Step(text=ANSWER, chunk_chars=5)]
    await provider.script("(stream)", steps)
    messages = says("Where? (stream)")

    async def streamed() -> tuple[list[ChatCompletionChunk], str]:
        chunks = [
            ChatCompletionChunk.model_validate(each.model_dump(mode="json"), strict=False)
            async for each in await ai.chat.completions.create(
                model="shop", messages=messages, tools=[LOOK_UP], stream=True
            )
        ]
        return chunks, "".join(each.choices[0].delta.content or "" for each in chunks)

    first, text = await streamed()
    parts = [each for chunk in first for each in chunk.choices[0].delta.tool_calls or ()]
    function = parts[0].function
    assert function is not None
    called = {
        "id": parts[0].id,
        "type": "function",
        "function": {"name": function.name, "arguments": function.arguments},
    }
    messages.append({"role": "assistant", "content": text, "tool_calls": [called]})
    messages.append(result(str(parts[0].id), "sent"))
    second, rest = await streamed()

    assert (text, first[-1].choices[0].finish_reason) == ("Let me look.", "tool_calls")
    assert len(parts) == 1
    assert (rest, second[-1].choices[0].finish_reason) == (ANSWER, "stop")
    assert {each.id for each in (*first, *second)} == {first[0].id}


EDITS: dict[str, Any] = {
    "question": lambda messages: messages[0].update(content="Where is it? (edits)"),
    "arguments": lambda messages: messages[1]["tool_calls"][0]["function"].update(
        arguments='{"order": 9}'
    ),
    "text": lambda messages: messages[1].update(content="I do not look."),
    "one more message": lambda messages: messages.append({"role": "user", "content": "Hurry!"}),
    "a message between": lambda messages: messages.insert(1, {"role": "user", "content": "Hm."}),
    "one result": lambda messages: messages.pop(),
    "no result": lambda messages: messages.__setitem__(slice(2, None), says("Never mind.")),
}


@pytest.mark.req("cw/16.tools")
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
async def test_another_history_starts_a_new_run(
    ai: openai.AsyncOpenAI, provider: FakeProvider, client: JsonClient, edit: Any
) -> None:
    """The old run completes with the reason; the new one has the messages as they were sent."""
    steps = [Step(text="I look.", tool_calls=[call(1), call(2)]), Step(text=ANSWER)]
    await provider.script("(edits)", steps)
    messages = says("Where? (edits)")
    first = await ask(ai, messages)
    messages = with_message(messages, first)
    messages += [result(each.id, "sent") for each in first.choices[0].message.tool_calls or ()]
    edit(messages)

    second = await ask(ai, messages)
    old = await finished(client, run_of(first))

    assert run_of(second) != run_of(first)
    assert second.choices[0].message.content == ANSWER
    assert (old["status"], old["finish_reason"]) == ("completed", "requires_action")
    assert old["result"]["terminate_reason"] == "requires_action"
    prompt = str((await provider.arrivals("(edits)", bodies=True))[-1].body)
    assert "I call look_up with" in prompt


@pytest.mark.req("cw/16.tools")
async def test_results_that_come_too_late_start_a_new_run(
    ai: openai.AsyncOpenAI,
    provider: FakeProvider,
    client: JsonClient,
    module_database_url: str,
) -> None:
    """The run that waited completes when the time is over."""
    await provider.script("(late)", [Step(tool_calls=[call(1)]), Step(text=ANSWER)])
    messages = says("Where? (late)")
    first = await ask(ai, messages)
    run_id = run_of(first)
    async with await psycopg.AsyncConnection.connect(module_database_url) as connection:
        await connection.execute(EXPIRES, (run_id, run_id))
    old = await finished(client, run_id)
    calls = first.choices[0].message.tool_calls or []
    second = await ask(ai, [*with_message(messages, first), result(calls[0].id, "sent")])

    assert (old["status"], old["finish_reason"]) == ("completed", "requires_action")
    assert (run_of(second) != run_id, second.choices[0].message.content) == (True, ANSWER)


@pytest.mark.req("cw/16.tools")
async def test_a_cancel_ends_a_run_that_waits_for_its_client(
    ai: openai.AsyncOpenAI, provider: FakeProvider, client: JsonClient
) -> None:
    """Its results start a new run; the cancelled one stays as it is."""
    await provider.script("(stopped)", [Step(tool_calls=[call(1)]), Step(text=ANSWER)])
    messages = says("Where? (stopped)")
    first = await ask(ai, messages)
    await client.cancel_run(run_of(first))
    calls = first.choices[0].message.tool_calls or []
    second = await ask(ai, [*with_message(messages, first), result(calls[0].id, "sent")])
    old = await client.get_run(run_of(first))

    assert old["status"] == "cancelled"
    assert run_of(second) != run_of(first)


@pytest.mark.req("cw/16.tools")
async def test_two_equal_requests_at_once_continue_one_run(
    ai: openai.AsyncOpenAI, provider: FakeProvider
) -> None:
    """A client that repeats its request after a lost connection gets the same answer."""
    await provider.script("(twice)", [Step(tool_calls=[call(1)]), Step(text=ANSWER)])
    messages = says("Where? (twice)")
    first = await ask(ai, messages)
    calls = first.choices[0].message.tool_calls or []
    messages = [*with_message(messages, first), result(calls[0].id, "sent")]
    async with asyncio.TaskGroup() as group:
        both = [group.create_task(ask(ai, messages)) for _ in range(2)]
    one, two = (each.result() for each in both)

    assert run_of(one) == run_of(two) == run_of(first)
    assert one.choices[0].message.content == two.choices[0].message.content == ANSWER
    assert await provider.count("(twice)") == 2


async def test_the_waiting_runs_of_a_key_have_a_quota(
    database_url: str, service_settings: dict[str, str], provider: FakeProvider
) -> None:
    """Beyond it a request with tools is refused; results lift it."""
    await provider.script("(quota)", [Step(tool_calls=[call(1)])], repeat_last=True)
    settings = service_settings | {"FACES_MAX_WAITING_RUNS": "2"}
    async with ServiceProcess(database_url, settings=settings) as service:
        agent = {"name": "shop", "prompt": {"system": "You are a shop."}}
        async with service.http() as http:
            (await http.post("/agents", json={"agent": agent})).raise_for_status()
        async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="unused") as ai:
            first = await ask(ai, says("One? (quota)"))
            await ask(ai, says("Two? (quota)"))
            with pytest.raises(openai.BadRequestError, match="max_waiting_runs") as refused:
                await ask(ai, says("Three? (quota)"))
            async with service.client() as client:
                await client.cancel_run(run_of(first))
            await ask(ai, says("Three? (quota)"))

    assert refused.value.param == "tools"
    assert refused.value.code == "too_many_waiting_runs"


@pytest.mark.req("cw/16.tools")
async def test_javascript_clients_execute_their_tools(
    service: ServiceProcess, ai: openai.AsyncOpenAI, provider: FakeProvider
) -> None:
    """OpenAI's tool runner and the AI SDK's steps, with and without stream."""
    modules = await asyncio.to_thread(installed_packages, NPM)
    steps = [Step(text="I look.", tool_calls=[call(7)]), Step(text=ANSWER)]
    await provider.script("(js)", steps * 4)
    command = node(NPM / "tools.mjs", modules, f"{service.url}/v1", "shop", "Where? (js)")

    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False, timeout=120
    )

    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)

    assert outcome["client"] == [ANSWER, ANSWER]
    assert (outcome["sdk"]["text"], outcome["sdk"]["steps"]) == (ANSWER, 2)
    assert outcome["sdk"]["parts"] == f"I look.{ANSWER}"
    assert outcome["orders"] == [7, 7, 7, 7]
    assert await provider.count("(js)") == 8
