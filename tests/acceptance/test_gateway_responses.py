"""The Responses API of the gateway with the client of its vendor, and references to its objects."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import openai
import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.gateway_clients import External
from tests.support.service import ServiceProcess, model_settings
from tests.support.tenants import OPERATOR_KEY

PATH = "/gateway/openai/v1/responses"
MAX_BODY_KB = 3000
TOOL: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}}


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    return {
        **model_settings(running_provider.openai_url),
        "MODELS_SMALL_PRICE_PER_MILLION_IN_USD": "1",
        "MODELS_SMALL_PRICE_PER_MILLION_OUT_USD": "2",
        "AUTH_BOOTSTRAP_KEY": OPERATOR_KEY,
        "GATEWAY_MAX_BODY_KB": str(MAX_BODY_KB),
        "SERVER_MAX_BODIES_MB": "4",
    }


Opening = Callable[..., Awaitable[External]]


@pytest.fixture
async def opened(service: ServiceProcess, provider: FakeProvider) -> AsyncIterator[Opening]:
    """Return a function that opens an external run of a tenant with the given fields."""
    async with httpx2.AsyncClient(base_url=service.url, timeout=150, trust_env=False) as http:
        keys = dict[str, dict[str, str]]()

        async def opening(tenant: str = "one", **fields: Any) -> External:
            if tenant not in keys:
                asked = {"name": "robot", "scopes": ["admin"], "tenant": tenant}
                operator = {"authorization": f"Bearer {OPERATOR_KEY}"}
                made = await http.post("/keys", json=asked, headers=operator)
                keys[tenant] = {"authorization": f"Bearer {made.raise_for_status().json()['key']}"}
            body = {"kind": "external", **fields}
            posted = await http.post("/runs", json=body, headers=keys[tenant])
            run = External(http, posted.raise_for_status().json())
            run.tenant_headers = keys[tenant]  # type: ignore[attr-defined]
            return run

        yield opening


async def asked(run: External, text: str, **fields: Any) -> httpx2.Response:
    """Send one request without the client library."""
    return await run.post(PATH, {"model": "small", "input": text, **fields})


def events_in(content: bytes) -> list[dict[str, Any]]:
    """Return the documents of a stream, whose event names are their types."""
    found = []
    for event in content.decode().strip().split("\n\n"):
        name, _, data = event.partition("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


@pytest.mark.req("cw/15.dialects")
@pytest.mark.parametrize("streamed", [False, True])
async def test_the_client_gets_the_response_and_the_run_is_charged(
    opened: Opening, provider: FakeProvider, streamed: bool
) -> None:
    """The provider gets the body as it was sent; cached tokens count as input."""
    step = Step(text="It is forty-two.", tokens_in=1000, tokens_out=70, tokens_cached=600)
    await provider.script("MARKED", [step])
    run = await opened(budget={"max_cost_usd": 1})
    body: dict[str, Any] = {
        "model": "small",
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": "MARKED"}],
        "max_output_tokens": 300,
        "store": False,
    }

    if streamed:
        events = [each async for each in await run.openai.responses.create(**body, stream=True)]
        response: Any = events[-1].response
        deltas = [each.delta for each in events if each.type == "response.output_text.delta"]
        assert [events[0].type, events[-1].type] == ["response.created", "response.completed"]
        assert "".join(deltas) == "It is forty-two."
    else:
        response = await run.openai.responses.create(**body)

    assert (response.output_text, response.usage.output_tokens) == ("It is forty-two.", 70)
    (arrival,) = await provider.arrivals("MARKED", bodies=True)
    assert arrival.path == "/v1/responses"
    more = {"stream": True} if streamed else {}
    assert arrival.body == {**body, "model": "fake-small", **more}
    usage = await run.usage()
    assert (usage["llm_calls"], usage["tokens"]) == (1, 1070)
    assert usage["cost_usd"] == pytest.approx((1000 + 70 * 2) / 1_000_000)
    trace = (await run.ask("GET", f"/runs/{run.run_id}/trace")).json()
    (node,) = [each for each in trace["snapshot"]["nodes"].values() if each["kind"] == "llm"]
    headers = run.tenant_headers  # type: ignore[attr-defined]
    call = await run.http.get(f"/runs/{run.run_id}/calls/{node['node_id']}", headers=headers)
    assert call.json()["request"]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "MARKED"},
    ]
    assert call.json()["reply"]["text"] == "It is forty-two."


@pytest.mark.req("cw/15.dialects")
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_arrives_byte_for_byte(
    opened: Opening, provider: FakeProvider, streamed: bool
) -> None:
    """Unknown events and fields, blanks and line ends are passed on unchanged."""
    response = '{"id": "resp_1",  "object":"response", "status":"completed", "output":[], "new":1}'
    new = '{"type":"response.new", "sequence_number":0}'
    last = f'{{"type":"response.completed", "sequence_number":1, "response":{response}}}'
    stream = f": hello\r\n\r\nevent: response.new\ndata:{new}\n\ndata: {last}\n\n"
    kind = "text/event-stream" if streamed else "application/json"
    sent = stream if streamed else f" {response}\n"
    await provider.script("BYTES", [Step(raw_body=sent, headers={"content-type": kind})])

    reply = await asked(await opened(), "BYTES", stream=streamed, unknown={"field": [1, None]})

    assert reply.content.decode() == sent
    (arrival,) = await provider.arrivals("BYTES", bodies=True)
    assert arrival.body is not None
    assert arrival.body["unknown"] == {"field": [1, None]}


async def test_the_output_limit_is_lowered_to_what_the_budget_can_pay(
    opened: Opening, provider: FakeProvider
) -> None:
    """A body without a limit gets one in a run with a limit on cost."""
    run = await opened(budget={"max_tokens": 2000})

    await asked(run, "LOWERED", max_output_tokens=9000)
    await asked(run, "LOWERED more")

    first, second = await provider.arrivals("LOWERED", bodies=True)
    assert first.body is not None
    assert second.body is not None
    assert 1500 < first.body["max_output_tokens"] < 2000
    assert 0 < second.body["max_output_tokens"] < 2000


async def test_tools_of_the_client_are_reported(opened: Opening, provider: FakeProvider) -> None:
    """A call in the output and its result in a later input are one tool call of the run."""
    call = {"id": "call_1", "name": "add", "arguments": '{"a": 1}'}
    await provider.script("ADD", [Step(tool_calls=[call]), Step(text="three")])
    run = await opened()
    question: Any = {"role": "user", "content": "ADD"}

    first = await run.openai.responses.create(model="small", input=[question], tools=[TOOL])
    (item,) = first.output
    result = {"type": "function_call_output", "call_id": "call_1", "output": "3"}
    written: Any = [question, item.model_dump(exclude_none=True), result]
    second = await run.openai.responses.create(model="small", input=written, tools=[TOOL])

    assert second.output_text == "three"
    assert (await run.usage())["tool_calls"] == 1
    trace = (await run.ask("GET", f"/runs/{run.run_id}/trace")).json()
    (node,) = [each for each in trace["snapshot"]["nodes"].values() if each["kind"] == "tool"]
    assert (node["name"], node["metadata"]["args"]) == ("add", {"a": 1})


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("status", ["incomplete", "failed"])
async def test_an_incomplete_response_is_recorded_and_a_failed_one_is_not(
    opened: Opening, provider: FakeProvider, status: str, streamed: bool
) -> None:
    """Both arrive as the provider sent them, and are charged at their token counts."""
    step = Step(text="a part", finish_reason=status, tokens_in=100, tokens_out=20)
    marker = f"ENDS {status} {streamed}"
    await provider.script(marker, [step], repeat_last=True)
    run = await opened(run_id=f"ends-{status}-{streamed}")

    reply = await asked(run, marker, stream=streamed)
    later = await opened(run_id=run.run_id)
    again = await asked(later, marker, stream=streamed)

    for each in (reply, again):
        assert each.status_code == 200
        last = events_in(each.content)[-1] if streamed else {"response": each.json()}
        assert last["response"]["status"] == status
        assert last["response"]["usage"]["output_tokens"] == 20
        assert b"event: error" not in each.content
    made = 1 if status == "incomplete" else 2
    assert await provider.count(marker) == made
    assert (await later.usage())["tokens"] == 120 * made


async def test_a_broken_stream_is_not_given_to_a_repeated_request(
    opened: Opening, provider: FakeProvider
) -> None:
    """The request is made again; only calls whose replies are complete are joined."""
    steps = [Step(text="never whole", after_events=4, then="cut"), Step(text="whole")]
    await provider.script("BROKEN", steps)
    run = await opened()

    broken = await asked(run, "BROKEN", stream=True)
    whole = await asked(run, "BROKEN", stream=True)

    assert events_in(broken.content)[-1]["code"] == "provider_failed"
    assert events_in(whole.content)[-1]["type"] == "response.completed"


async def test_a_stopped_stream_ends_with_a_numbered_error_event(
    opened: Opening, provider: FakeProvider
) -> None:
    """The client library raises it, so that the part is not taken for the whole response."""
    await provider.script("STOPPED", [Step(text="never whole", after_events=3)])
    run = await opened()
    seen = []

    stream = await run.openai.responses.create(model="small", input="STOPPED", stream=True)
    with pytest.raises(openai.APIError) as raised:  # noqa: PT012
        async for event in stream:
            seen.append(event.type)
            headers = run.tenant_headers  # type: ignore[attr-defined]
            await run.http.delete(f"/runs/{run.run_id}", headers=headers)

    assert len(seen) == 3
    body: Any = raised.value.body
    assert (body["code"], set(body)) == ("cancelled", {"message", "type", "param", "code"})


async def test_a_refusal_has_the_form_of_the_api(opened: Opening, provider: FakeProvider) -> None:
    """The client stops after one request."""
    run = await opened(budget={"max_llm_calls": 1})
    await asked(run, "REFUSED")

    with pytest.raises(openai.BadRequestError) as raised:
        await run.openai.responses.create(model="small", input="REFUSED")
    with pytest.raises(openai.NotFoundError, match="/openai/v1/responses"):
        await run.openai.responses.retrieve("resp_fake")

    assert raised.value.code == "budget"
    assert await provider.count("REFUSED") == 1


async def test_a_conversation_continues_by_its_response_and_is_replayed(
    opened: Opening, provider: FakeProvider
) -> None:
    """Later attempts get the recorded responses, and continue from them."""
    steps = [Step(text=each, response_id=f"resp_chain_{each}") for each in "abc"]
    await provider.script("CHAIN", steps)

    async def work(run: External, turns: int) -> list[str]:
        texts, last = list[str](), None
        for turn in range(turns):
            response = await run.openai.responses.create(
                model="small", input=f"CHAIN {turn}", previous_response_id=last
            )
            texts.append(response.output_text)
            last = response.id
        return texts

    first = await work(await opened(run_id="chain"), 2)
    second = await work(await opened(run_id="chain"), 3)

    assert (first, second) == (["a", "b"], ["a", "b", "c"])
    assert await provider.count("CHAIN") == 3


async def test_a_request_may_refer_only_to_responses_of_its_tenant(
    opened: Opening, provider: FakeProvider
) -> None:
    """Other runs of the tenant may too, until the run that got the response is erased."""
    await provider.script("NAMED", [Step(text="hi", response_id="resp_of_one")])
    run = await opened("one")
    await asked(run, "NAMED", stream=True)
    later = await opened("one")
    tenant: Any = later.tenant_headers  # type: ignore[attr-defined]

    same = await asked(later, "later", previous_response_id="resp_of_one")
    item = {"type": "item_reference", "id": "msg_fake"}
    by_item = await run.post(PATH, {"model": "small", "input": [item]})
    other = await asked(await opened("two"), "other", previous_response_id="resp_of_one")
    await later.ask("POST", f"/runs/{run.run_id}/finish", json={"output": 1})
    await run.ask("POST", f"/runs/{run.run_id}/finish", json={"output": 1})
    await run.http.delete(f"/runs/{run.run_id}/record", headers=tenant)
    erased = await asked(later, "again", previous_response_id="resp_of_one")

    assert (same.status_code, by_item.status_code) == (200, 200)
    for refused in (other, erased):
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert (error["code"], error["param"]) == ("unsupported_field", "previous_response_id")
    assert await provider.count("other") == 0


async def test_an_object_counts_with_the_largest_reply_that_named_it(
    opened: Opening, provider: FakeProvider
) -> None:
    """A container or a conversation grows with each reply."""
    steps = [Step(text="a", response_id="resp_grows", tokens_in=each) for each in (10, 50_000)]
    await provider.script("GROWS", steps)
    run = await opened("one", budget={"max_tokens": 90_000})

    first = await asked(run, "GROWS", max_output_tokens=16)
    second = await asked(run, "GROWS", max_output_tokens=16)
    third = await asked(run, "read it", previous_response_id="resp_grows", max_output_tokens=16)

    assert [each.status_code for each in (first, second)] == [200, 200]
    assert third.status_code != 200
    assert await provider.count("read it") == 0


async def test_an_id_that_only_the_request_named_is_unknown(
    opened: Opening, provider: FakeProvider
) -> None:
    """A response repeats fields of its request; they prove nothing."""
    stolen = {"file_id": "file_stolen", "container": {"id": "cntr_stolen"}}
    body = {"id": "resp_s", "object": "response", "output": [], "status": "completed"}
    echoed = {**body, "metadata": stolen, "tools": [stolen], "conversation": {"id": "conv_stolen"}}
    await provider.script("ECHO", [Step(raw_body=json.dumps(echoed))])
    run = await opened("one")
    await asked(run, "ECHO", metadata={"file_id": "file_stolen"})

    part = [{"role": "user", "content": [{"type": "input_file", "file_id": "file_stolen"}]}]
    by_file = await run.post(PATH, {"model": "small", "input": part})
    by_conversation = await asked(run, "x", conversation="conv_stolen")

    assert (by_file.status_code, by_conversation.status_code) == (400, 400)


async def test_one_model_can_be_retrieved(opened: Opening) -> None:
    """A name that the run may not call is 404 in the form of the API."""
    run = await opened(models={"gpt/5": "small"})

    found = await run.openai.models.retrieve("gpt/5")
    with pytest.raises(openai.NotFoundError) as raised:
        await run.openai.models.retrieve("small")

    assert (found.id, found.object) == ("gpt/5", "model")
    assert raised.value.code == "model_not_found"


async def test_bodies_of_the_gateway_have_their_own_limit(
    opened: Opening, provider: FakeProvider
) -> None:
    """Long bodies that are in flight share the memory for bodies; one more gets 503."""
    await provider.script("LONG", [Step(hang=True)])
    run = await opened()
    image = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * (2 << 20)}
    text = {"type": "input_text", "text": "LONG"}
    items = [{"role": "user", "content": [text, image]}]

    async def long() -> httpx2.Response:
        return await run.post(PATH, {"model": "small", "input": items})

    async with asyncio.TaskGroup() as group:
        first = group.create_task(long())
        await provider.wait_for_arrivals(1, "LONG")
        second = await run.post(PATH, {"model": "small", "input": [*items, text]})
        too_long = await asked(run, "A" * (MAX_BODY_KB * 1024))
        await provider.release()

    assert first.result().status_code == 200
    assert (second.status_code, second.headers["retry-after"]) == (503, "2")
    assert too_long.status_code == 413
    assert (await long()).status_code == 200
