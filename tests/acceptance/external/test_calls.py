"""Calls of external runs: client libraries get the provider's replies through the gateway."""

import json
from typing import Any

import httpx
import pytest

from tests.support.external import ANTHROPIC, APIS, OPENAI, REFUSED, Api, both, start
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.unit.models.wires.captured import Capture, captures

_PLAYED = [each for each in captures() if each.status not in (401, 403)]


@pytest.mark.req("cw/15.limits")
@both
async def test_the_client_library_gets_whole_and_streamed_answers(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Only the base URL and the key of the client differ from those of the provider."""
    await provider.script("WHOLE", [Step(text="A whole answer.")])
    await provider.script("STREAM", [Step(text="An answer in several parts.")])
    agent = await start(http, api=api)
    async with agent.library() as (client, sent):
        whole = await api.create(client, "WHOLE")
        stream = await api.create(client, "STREAM", stream=True)
        pieces = [api.piece_of(part) async for part in stream]
    (first, second) = await provider.arrivals(bodies=True)

    assert api.text_of(whole) == "A whole answer."
    assert whole.usage is not None
    assert "".join(pieces) == "An answer in several parts."
    assert sent == {"200": 2}
    assert first.body == api.body("WHOLE") | {"model": f"fake-{api.model}"}
    assert second.body is not None
    assert second.body["model"] == f"fake-{api.model}"
    assert agent.key not in f"{first.headers} {second.headers}"


@pytest.mark.parametrize("capture", _PLAYED, ids=repr)
async def test_replies_of_real_endpoints_are_passed_on_unchanged(
    capture: Capture, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Published replies arrive byte for byte, apart from the chunk with the usage of a stream."""
    kind = "text/event-stream" if capture.streamed else "application/json"
    step = Step(
        raw_body=capture.body.decode(), status=capture.status, headers={"content-type": kind}
    )
    await provider.script(capture.id, [step], repeat_last=True)
    api = APIS[capture.dialect]
    agent = await start(http, api=api)
    usage: dict[str, Any] = {}
    if api is OPENAI:
        usage = {"stream_options": {"include_usage": True}}
    reply = await agent.ask(capture.id, stream=capture.streamed, **usage)

    assert reply.status_code == capture.status, reply.text
    assert reply.content[: len(capture.body)] == capture.body
    assert reply.headers["content-type"] == kind


async def test_nul_characters_reach_the_provider(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Replies may contain them, and a client sends its replies and tool results back."""
    text, called = "a\0b", {"id": "c1", "name": "t", "arguments": json.dumps({"x": "\0"})}
    await provider.script("NULS", [Step(text=text, tool_calls=[called]), Step(text=text)])
    agent = await start(http, run_id="with-nul")
    messages = [{"role": "user", "content": f"NULS {text}"}]
    first = (await agent.ask(messages=messages)).json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": "c1", "content": text}
    messages = [*messages, first, result]
    second = await agent.ask(messages=messages, user=text)
    repeated = await (await agent.next_attempt()).ask(messages=messages, user=text)
    trace = await agent.get("/trace?payloads=true")

    assert second.json()["choices"][0]["message"]["content"] == text, second.text
    assert repeated.content == second.content
    assert [each.prompt.count("\0") for each in await provider.arrivals("NULS")] == [1, 3]
    assert trace.status_code == 200, trace.text


@both
@pytest.mark.req("cw/15.calls")
async def test_the_trace_shows_each_call_with_prompt_and_reply(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Whole and streamed calls have a node with model, tokens and cost."""
    await provider.script("TRACED", [Step(text="the reply", tokens_in=9, tokens_out=2)] * 2)
    agent = await start(http, api=api)
    await agent.ask("TRACED whole")
    await agent.ask("TRACED stream", stream=True)
    await agent.finish({"output": 1})
    trace = (await agent.get("/trace")).json()
    calls = [node for node in trace["snapshot"]["nodes"].values() if node["kind"] == "llm"]

    assert len(calls) == 2
    for node, word in zip(calls, ("whole", "stream"), strict=True):
        call = (await agent.get(f"/calls/{node['node_id']}")).json()
        assert call["request"]["messages"] == api.body(f"TRACED {word}")["messages"]
        assert call["reply"]["text"] == "the reply"
        assert node["model"] == f"fake-{api.model}"
        assert (node["tokens_in"], node["tokens_out"]) == (9, 2)


async def test_models_restricts_and_renames(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Names that the run may not call are 404 in the form of the API."""
    listed = await start(http, models=["small"])
    mapped = await start(http, models={"gpt-x": "big", "*": "small"})
    own_name = await (await start(http)).ask("own", model="fake-small")
    allowed, refused = await listed.ask("ok"), await listed.ask("not", model="big")
    await mapped.ask("MAPPED", model="gpt-x")
    await mapped.ask("OTHERS", model="anything")
    unknown = await http.post("/runs", json={"kind": "external", "models": ["no-such"]})
    sent = {each.prompt: each.model for each in await provider.arrivals()}

    assert (own_name.status_code, allowed.status_code, refused.status_code) == (200, 200, 404)
    assert OPENAI.error_of(refused)["code"] == "model_not_found"
    assert unknown.status_code == 422
    assert sent["MAPPED"] == "fake-big"
    assert sent["OTHERS"] == "fake-small"
    assert "not" not in sent


@pytest.mark.req("cw/15.tools")
@both
async def test_tools_that_the_client_executes_are_shown_and_counted(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """A result in a later request is a tool call; after the limit, the next call is refused."""
    asked = {"id": "call_1", "name": "rain", "arguments": '{"city": "Bergen"}'}
    steps = [Step(tool_calls=[{**asked, "id": f"call_{at}"}]) for at in (1, 2, 3)]
    await provider.script("TOOLS", steps)
    agent = await start(http, api=api, budget={"max_tool_calls": 1})
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    if api is OPENAI:
        function = {"name": "rain", "parameters": parameters}
        tools: list[Any] = [{"type": "function", "function": function}]
    else:
        tools = [{"name": "rain", "input_schema": parameters}]
    messages = api.body("TOOLS")["messages"]
    statuses = []
    for at in (1, 2, 3):
        reply = await agent.ask("", messages=messages, tools=tools)
        statuses.append(reply.status_code)
        if reply.status_code != 200:
            break
        content = f"wet {at}"
        if api is OPENAI:
            answer = {"role": "tool", "tool_call_id": f"call_{at}", "content": content}
            messages = [*messages, reply.json()["choices"][0]["message"], answer]
        else:
            part = {"type": "tool_result", "tool_use_id": f"call_{at}", "content": content}
            said = {"role": "assistant", "content": reply.json()["content"]}
            messages = [*messages, said, {"role": "user", "content": [part]}]
    run = await agent.ended()
    trace = (await agent.get("/trace")).json()
    shown = [node for node in trace["snapshot"]["nodes"].values() if node["kind"] == "tool"]

    assert statuses == [200, 200, REFUSED]
    agent.require_final(reply, "budget")
    assert run["stop"]["dimension"] == "tool_calls"
    assert run["usage"]["tool_calls"] == 1
    assert [node["name"] for node in shown if node["status"] == "success"] == ["rain"]
    assert shown[0]["metadata"]["reported"] is True
    call = (await agent.get(f"/calls/{shown[0]['node_id']}")).json()
    assert call["request"]["args"] == {"city": "Bergen"}
    assert "wet 1" in json.dumps(call["reply"])


@both
async def test_a_model_of_another_api_is_refused_with_the_right_base_url(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Nothing is translated between the APIs of vendors."""
    other = OPENAI if api is ANTHROPIC else ANTHROPIC
    agent = await start(http, api=api)
    reply = await agent.ask("OTHER", model=other.model)

    assert reply.status_code == 400
    assert other.base_url in api.error_of(reply)["message"]
    assert await provider.count("OTHER") == 0


@both
async def test_the_library_lists_the_models_that_it_may_call(
    api: Api, http: httpx.AsyncClient
) -> None:
    """A map shows the names that the client sends."""
    listed = await start(http, api=api)
    mapped = await start(http, api=api, models={"their-name": api.model})
    any_name = await start(http, api=api, models={"*": api.model})
    names = []
    for agent in (listed, mapped, any_name):
        async with agent.library() as (client, _):
            names.append({model.id async for model in client.models.list()})

    assert api.model in names[0]
    assert names[1:] == [{"their-name"}, {api.model}]


@both
@pytest.mark.parametrize("version", ["", "/v1", "/v1/v1"])
async def test_a_base_url_works_with_and_without_its_version(
    api: Api, version: str, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Clients differ in whether they add ``/v1`` to the base URL."""
    agent = await start(http, api=api)
    headers = {"Authorization": f"Bearer {agent.key}"}
    path = api.path.replace("/v1", version)
    listed = f"/gateway/{api.path.split('/')[2]}{version}/models"

    called = await http.post(path, json=api.body("VERSION"), headers=headers)
    models = await http.get(listed, headers=headers)

    assert (called.status_code, models.status_code) == (200, 200), called.text
