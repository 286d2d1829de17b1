"""Agents that run outside of the service: real clients, a real process, and the provider's record.

The clients are the packages `openai` and `anthropic`, or `httpx` where the bytes count.
"""

import asyncio
import base64
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
import pytest_asyncio

from tests.support.external import (
    ANTHROPIC,
    APIS,
    NEW,
    OLD,
    OPENAI,
    REFUSED,
    Agent,
    Api,
    both,
    client_of,
    start,
)
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, model_settings
from tests.support.stores import eventually
from tests.support.tenants import OPERATOR_KEY
from tests.support.usage_oracle import settings_of_prices
from tests.unit.models.wires.captured import Capture, captures

MAX_GATEWAY_KB = 32
EVENT_END = b"\n\n"

_PLAYED = [each for each in captures() if each.status not in (401, 403)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(
    module_database_url: str, running_provider: FakeProvider
) -> AsyncIterator[ServiceProcess]:
    """Run a service with prices, a small limit on bodies, and an operator's key."""
    claude = {"provider": "anthropic", "base_url": running_provider.url, "model": "fake-claude"}
    prices = {"price_per_million_in_usd": 1, "price_per_million_out_usd": 2}
    settings = {
        **model_settings(running_provider.openai_url),
        **settings_of_prices("MODELS_SMALL"),
        "MODELS_NAMED": json.dumps({"claude": {**claude, **prices, "api_key": "sk-x"}}),
        "AUTH_BOOTSTRAP_KEY": OPERATOR_KEY,
        "GATEWAY_MAX_BODY_KB": str(MAX_GATEWAY_KB),
        "RETRY_BASE_SECONDS": "0.02",
        "SERVER_TRUSTED_PROXIES": '["127.0.0.1"]',
    }
    async with ServiceProcess(module_database_url, settings=settings) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tenant_keys(service: ServiceProcess) -> dict[str, str]:
    """Return an admin key of each of two tenants."""
    operator = {"Authorization": f"Bearer {OPERATOR_KEY}"}
    keys = {}
    async with httpx.AsyncClient(base_url=service.url, trust_env=False) as http:
        for tenant in ("one", "two"):
            body = {"name": "robot", "scopes": ["admin"], "tenant": tenant}
            made = await http.post("/keys", json=body, headers=operator)
            keys[tenant] = made.raise_for_status().json()["key"]
    return keys


@pytest.fixture
async def http(
    service: ServiceProcess, tenant_keys: Mapping[str, str], provider: FakeProvider
) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of the first tenant; the provider has no record yet."""
    async with client_of(service, tenant_keys["one"]) as opened:
        yield opened


@pytest.mark.req("cw/15.create")
async def test_creating_a_run_returns_a_key_that_is_shown_once_and_stored_hashed(
    http: httpx.AsyncClient, service: ServiceProcess, module_database_url: str
) -> None:
    """The response has the key and the base URL; no other response and no row has the key."""
    agent = await start(http, name="Reporter", input={"topic": "rain"}, metadata={"team": "a"})
    await agent.ask()
    await agent.finish({"output": 1})
    others = [(await agent.get(part)).text for part in ("", "/trace", "/events")]
    listed = (await http.get("/runs", params={"agent": "Reporter"})).text

    named = [agent.run, *json.loads(listed)["runs"]]
    assert [run["agent"] for run in named] == [{"name": "Reporter", "version": None}] * 2
    assert agent.run["kind"] == "external"
    assert agent.run["status"] == "running"
    assert agent.run["input"] == {"topic": "rain"}
    assert agent.run["attempt"] == 1
    assert agent.key.startswith("cwr_")
    assert agent.run["access"]["openai_base_url"] == f"{service.url}/gateway/openai/v1"
    assert not [text for text in (*others, listed) if agent.key in text]
    with psycopg.connect(module_database_url) as connection:
        (stored,) = connection.execute(
            "SELECT sha256 FROM external_attempts WHERE run_id = %s", (agent.run_id,)
        ).fetchone() or (None,)
        tables = [
            name
            for (name,) in connection.execute(
                "SELECT table_name FROM information_schema.tables"
                " WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
            )
        ]
        holding = [
            name
            for name in tables
            for (found,) in connection.execute(
                f'SELECT count(*) FROM "{name}" t WHERE t::text LIKE %s',  # noqa: S608
                (f"%{agent.key}%",),
            )
            if found
        ]
    assert bytes(stored) == hashlib.sha256(agent.key.encode()).digest()
    assert "external_attempts" in tables
    assert holding == []
    assert agent.key not in service.child.stderr + service.child.stdout


async def test_the_base_urls_start_with_the_address_that_a_trusted_proxy_names(
    http: httpx.AsyncClient, service: ServiceProcess
) -> None:
    """The client of these tests has the address of the proxy."""
    named = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "agents.example.com:8443"}
    odd = {"X-Forwarded-Proto": "file", "X-Forwarded-Host": "a/b@c"}
    found = [(await start(http, headers=each)).run["access"] for each in (named, odd)]
    assert [access["openai_base_url"] for access in found] == [
        "https://agents.example.com:8443/gateway/openai/v1",
        f"{service.url}/gateway/openai/v1",
    ]


async def test_a_finish_while_the_run_halts_waits_for_its_end(http: httpx.AsyncClient) -> None:
    """The run ends a moment after the refusal, and has ended differently."""
    agents = [await start(http, budget={"max_llm_calls": 0}) for _ in range(20)]
    for agent in agents:
        await agent.ask()
        finished = await agent.finish({"output": 1})
        assert finished.status_code == 409, finished.text
        assert finished.json()["type"].endswith("external-run-ended")


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
    repeated = await (await agent.again()).ask(messages=messages, user=text)
    trace = await agent.get("/trace?payloads=true")

    assert second.json()["choices"][0]["message"]["content"] == text, second.text
    assert repeated.content == second.content
    assert [each.prompt.count("\0") for each in await provider.arrivals("NULS")] == [1, 3]
    assert trace.status_code == 200, trace.text


MADE_UP = {
    "of an unknown run": b"acme\nno-such-run",
    "of a run with NUL": b"acme\nx\x00",
    "of a tenant with NUL": b"a\x00\nb",
    "of no run": b"\n",
    "of too many parts": b"a\nb\nc",
    "of long names": b"x" * 5_000 + b"\n" + b"y" * 1_000,
    "of a run of somebody else": b"default\nmade-up",
}


@pytest.mark.parametrize("named", MADE_UP.values(), ids=MADE_UP)
@pytest.mark.parametrize(
    "path",
    [
        *("/gateway/openai/v1/chat/completions", "/gateway/openai/v1/responses"),
        *("/gateway/anthropic/v1/messages", "/gateway/mcp", "/runs/made-up/finish", "/runs"),
    ],
)
async def test_no_body_is_read_for_a_made_up_key(
    http: httpx.AsyncClient, service: ServiceProcess, path: str, named: bytes
) -> None:
    """The answer comes though the client announces 200 kB and sends none of them."""
    agent = await start(http)
    named = named.replace(b"made-up", agent.run_id.encode())
    path = path.replace("made-up", agent.run_id)
    key = f"cwr_{base64.urlsafe_b64encode(named).decode()}.{'0' * 96}"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        "Content-Type: application/json\r\nContent-Length: 200000\r\n\r\n"
    )
    address = urlsplit(service.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(head.encode())
        async with asyncio.timeout(150):
            status = await reader.readline()
    finally:
        writer.close()

    assert status.startswith(b"HTTP/1.1 401"), status


UNREADABLE = {
    "a page": ("<html><body>Bad gateway</body></html>", "text/html"),
    "a page as JSON": ("<html></html>", "application/json"),
    "half a document": ('{"choices": [{"message"', "application/json"),
    "nested deeply": ("[" * 100_000, "application/json"),
    "nothing": ("", "application/json"),
    "a stream that is none": ("<html></html>", "text/event-stream"),
    "a stream of odd documents": ('data: {"choices": 5}\n\ndata: 7\n\n', "text/event-stream"),
    "a stream of half documents": ('data: {"choices"\n\n', "text/event-stream"),
}


@pytest.mark.parametrize(("body", "kind"), UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("api", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
async def test_a_reply_that_cannot_be_read_is_an_error_of_the_api(
    http: httpx.AsyncClient, provider: FakeProvider, api: Any, body: str, kind: str
) -> None:
    """The client's library understands it, and the run continues."""
    steps = [Step(raw_body=body, headers={"content-type": kind})] * 3
    await provider.script("UNREADABLE", [*steps, Step(text="Fine.")])
    agent = await start(http, api=api)

    reply = await agent.ask("UNREADABLE", stream="event-stream" in kind)
    run = await agent.get()

    assert "urn:" not in reply.text
    if reply.status_code == 200:  # the beginning of a stream was passed on
        reported = json.loads(reply.text.rstrip().rpartition("data: ")[2])
    else:
        assert 400 <= reply.status_code < 600
        reported = reply.json()
    assert reported["error"]["message"], reply.text
    assert run.json()["status"] == "running"


CONTENT = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
COUNTS = b'"usage":{"prompt_tokens":11,"completion_tokens":7}}'


@pytest.mark.parametrize("end", [b"\n\r\n", b"\r\n\n", b"\r\n\r\n", b"\n\n", b"\r\r"])
@pytest.mark.parametrize("choices", [b'"choices":[],', b"", b'"choices":null,'])
async def test_a_stream_of_any_form_arrives_without_its_usage_chunk(
    http: httpx.AsyncClient, provider: FakeProvider, end: bytes, choices: bytes
) -> None:
    """Endpoints mix the ends of lines, and omit the choices of the chunk with the counts."""
    shown, counts = CONTENT + end + STOP + end, b"data: {" + choices + COUNTS + end
    body = (shown + counts + b"data: [DONE]" + end).decode()
    step = Step(raw_body=body, headers={"content-type": "text/event-stream"})
    await provider.script("FORMS", [step], repeat_last=True)
    agent = await start(http)

    reply = await agent.ask("FORMS", stream=True)
    used = (await agent.get()).json()["usage"]

    assert reply.content == shown + b"data: [DONE]" + end
    assert used["tokens"] == 11 + 7


async def test_the_usage_chunk_is_hidden_from_a_client_that_did_not_ask_for_it(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The provider is always asked for it, because the run is charged with these counts."""
    await provider.script("COUNTED", [Step(text="on and on", tokens_in=11, tokens_out=7)] * 2)
    agent = await start(http)
    shown = await agent.ask("COUNTED", stream=True, stream_options={"include_usage": True})
    hidden = await agent.ask("COUNTED", stream=True, seed=1)
    used = (await agent.get()).json()["usage"]
    arrivals = await provider.arrivals(bodies=True)

    events, fewer = (reply.content.split(EVENT_END) for reply in (shown, hidden))
    counted = [event for event in events if b'"prompt_tokens": 11' in event]
    assert len(counted) == 1
    stripped = [event for event in events if event not in counted]
    created = [json.loads(event[6:])["created"] for event in (events[0], fewer[0])]
    old, new = (f'"created": {at}'.encode() for at in created)
    assert [event.replace(old, new) for event in stripped] == fewer
    assert used["tokens"] == 2 * (11 + 7)
    assert [each.body["stream_options"] for each in arrivals if each.body] == [
        {"include_usage": True}
    ] * 2


@both
@pytest.mark.req("cw/15.calls")
@pytest.mark.req("cw/15.refusals")
async def test_a_limit_of_three_calls_lets_exactly_three_of_twelve_parallel_calls_through(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The other nine wait for the first three, and are then refused; no client repeats them."""
    await provider.script("PARALLEL", [Step(hang=True)], repeat_last=True)
    agent = await start(http, api=api, budget={"max_llm_calls": 3})
    async with agent.library() as (client, sent):

        async def call(number: int) -> str:
            try:
                await api.create(client, f"PARALLEL {number}", stream=number % 2 == 0)
            except api.refused as error:
                agent.require_final(error.response, "budget")  # type: ignore[attr-defined]
                return "refused"
            return "answered"

        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(call(number)) for number in range(12)]
            await provider.wait_for_arrivals(3, "PARALLEL")
            await provider.release()
    run = await agent.ended()

    assert Counter(each.result() for each in calls) == {"answered": 3, "refused": 9}
    assert sent == {"200": 3, "400": 9}
    assert await provider.count("PARALLEL") == 3
    assert run["status"] == "halted"
    assert run["stop"]["kind"] == "budget"
    assert run["stop"]["dimension"] == "llm_calls"
    assert run["usage"]["llm_calls"] == 3
    agent.require_final(await agent.ask("PARALLEL after the end"), "budget")
    assert await provider.count("PARALLEL") == 3


@both
@pytest.mark.req("cw/15.calls", "cw/15.refusals")
async def test_parallel_streams_stay_within_a_limit_on_cost(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The provider counts at most the limit; the rest of it pays no further stream."""
    limit, price_in, price_out = Decimal("0.006"), Decimal("0.000001"), Decimal("0.000002")
    output = 256  # an output limit is not lowered any further
    answered = Step(text="x " * 20, tokens_in=40, tokens_out=output, chunk_seconds=0.002)
    await provider.script("STREAMS", [answered], repeat_last=True)
    agent = await start(http, api=api, budget={"max_cost_usd": float(limit)})
    named = "max_completion_tokens" if api is OPENAI else "max_tokens"

    async def call(number: int) -> bool:
        body = api.body(f"STREAMS {number} {'blah ' * 20}", stream=True, **{named: output})
        headers = {"Authorization": f"Bearer {agent.key}"}
        async with http.stream("POST", api.path, json=body, headers=headers) as reply:
            whole = await reply.aread()
        if reply.status_code != httpx.codes.OK:
            agent.require_final(reply, "budget")
        return whole.rstrip().endswith(api.end) or api.end in whole

    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(call(number)) for number in range(40)]
    run = await agent.ended()

    counted = [each.charged or {} for each in await provider.arrivals("STREAMS")]
    cost = sum(
        (each["tokens_in"] * price_in + each["tokens_out"] * price_out for each in counted),
        Decimal(0),
    )
    assert cost <= limit
    assert limit - cost < Decimal("0.001")
    assert len(counted) == sum(each.result() for each in calls) < len(calls)
    assert Decimal(str(run["usage"]["cost_usd"])) == cost
    assert (run["status"], run["stop"]["dimension"]) == ("halted", "cost_usd")


@pytest.mark.req("cw/15.calls")
async def test_a_limit_on_cost_lowers_the_output_and_then_refuses(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The provider gets an output limit that the budget can pay; afterwards no call is sent."""
    await provider.script("MONEY", [Step(tokens_in=100, tokens_out=440)], repeat_last=True)
    agent = await start(http, budget={"max_cost_usd": 0.001})
    first = await agent.ask("MONEY", max_completion_tokens=4000)
    second = await agent.ask("MONEY again")
    run = await agent.ended()
    (arrival,) = await provider.arrivals(bodies=True)

    assert first.status_code == 200, first.text
    assert arrival.body is not None
    assert arrival.body["max_completion_tokens"] < 500
    agent.require_final(second, "budget")
    assert run["stop"]["dimension"] == "cost_usd"
    assert float(run["usage"]["cost_usd"]) == pytest.approx(0.00098)


async def test_a_call_of_a_model_without_a_price_is_refused_under_a_limit_on_cost(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The big model has no price here, so its calls could exceed the limit."""
    agent = await start(http, budget={"max_cost_usd": 1})
    reply = await agent.ask("FREE", model="big")

    agent.require_final(reply, "budget")
    assert await provider.count("FREE") == 0


@both
@pytest.mark.req("cw/15.stop")
async def test_a_cancel_closes_the_connection_to_the_provider_and_ends_the_stream_with_an_error(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """No client takes the interrupted stream for a whole answer, and no later call is made."""
    step = Step(text="a long answer " * 5, after_events=4, then="hold")
    await provider.script("STOPPED", [step], repeat_last=True)
    agent = await start(http, api=api)
    async with agent.streamed("STOPPED raw") as reply, agent.library() as (client, sent):
        stream = await api.create(client, "STOPPED", stream=True)
        await anext(stream)
        parts = reply.aiter_bytes()
        received = await anext(parts)
        cancelled = await http.delete(f"/runs/{agent.run_id}", params={"reason": "enough"})
        arrivals = await provider.wait_for_arrivals(2, "STOPPED", ended=True)
        received += b"".join([part async for part in parts])
        with pytest.raises(api.error, match="enough"):
            async for _ in stream:
                pass
        with pytest.raises(api.refused):
            await api.create(client, "STOPPED later")
    run = await agent.ended()
    last = received.rstrip().rsplit(EVENT_END, 1)[1]

    assert cancelled.status_code == NEW
    assert [each.outcome for each in arrivals] == ["client_gone"] * 2
    assert last.startswith(b"data: " if api is OPENAI else b"event: error\ndata: ")
    assert json.loads(last.partition(b"data: ")[2])["error"]["code"] == "cancelled"
    assert api.end not in received
    assert sent == {"200": 1, "400": 1}
    assert run["status"] == "cancelled"
    assert run["stop"]["reason"] == "enough"
    agent.require_final(await agent.ask("STOPPED last"), "cancelled")
    assert await provider.count("STOPPED") == 2


@both
async def test_a_cancel_answers_a_call_that_waits_for_its_whole_reply(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The client library does not repeat the refused call."""
    await provider.script("WAITS", [Step(hang=True)], repeat_last=True)
    agent = await start(http, api=api)
    async with agent.library() as (client, sent):
        call = asyncio.create_task(api.create(client, "WAITS"))
        await provider.wait_for_arrivals(1, "WAITS")
        await http.delete(f"/runs/{agent.run_id}")
        with pytest.raises(api.refused) as caught:
            await call
    (arrival,) = await provider.wait_for_arrivals(1, "WAITS", ended=True)

    agent.require_final(caught.value.response, "cancelled")  # type: ignore[attr-defined]
    assert sent == {"400": 1}
    assert arrival.outcome == "client_gone"


@pytest.mark.req("cw/15.stop")
async def test_a_cancel_before_the_run_exists_holds(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The run is created as cancelled, without access."""
    early = await http.delete("/runs/cancelled-early")
    posted = await http.post("/runs", json={"kind": "external", "run_id": "cancelled-early"})

    assert early.status_code == NEW
    assert posted.status_code in (OLD, NEW), posted.text
    assert posted.json()["status"] == "cancelled"
    assert posted.json()["access"] is None


@pytest.mark.req("cw/15.finish")
async def test_finishing_with_an_output_completes_the_run(http: httpx.AsyncClient) -> None:
    """The output is the result; an equal second finish changes nothing, another one is refused."""
    agent = await start(http)
    first = await agent.finish({"output": {"answer": [1, 2]}})
    run = (await agent.get()).json()

    assert first.status_code == 200, first.text
    assert first.json()["status"] == "completed"
    assert run["status"] == "completed"
    assert run["result"]["output"] == {"answer": [1, 2]}
    assert run["stop"] is None


@pytest.mark.req("cw/15.finish")
async def test_an_equal_second_finish_is_accepted_and_another_one_refused(
    http: httpx.AsyncClient,
) -> None:
    """A client may repeat its finish after a lost response."""
    done, failed = await start(http), await start(http)
    error = {"class": "ValueError", "message": "bad"}
    for agent, body in ((done, {"output": {"a": 1}}), (failed, {"error": error})):
        first = await agent.finish(body)
        same = await agent.finish(body)
        other = await agent.finish({"output": {"a": 2}})

        assert (first.status_code, same.status_code) == (200, 200), same.text
        assert same.json()["status"] == first.json()["status"]
        assert other.status_code == 409
        assert other.json()["type"].endswith("external-run-ended")


@pytest.mark.req("cw/15.finish")
async def test_finishing_with_an_error_fails_the_run(http: httpx.AsyncClient) -> None:
    """Class and message of the error are shown."""
    agent = await start(http)
    answer = await agent.finish({"error": {"class": "KeyError", "message": "No such city."}})
    run = (await agent.get()).json()

    assert answer.json()["status"] == "failed"
    assert run["status"] == "failed"
    assert run["stop"]["kind"] == "error"
    assert run["stop"]["error_class"] == "KeyError"
    assert run["stop"]["reason"] == "No such city."


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"output": None},
        {"output": 1.0},
        {"output": {"big": 2**60, "small": 1e-9, "text": "\u00e9\u2028", "list": []}},
        {"output": "the key is sk-proj-" + "a1" * 20},
        {"output": "x" * 10_000},
        {"error": {"class": "E", "message": "x" * 10_000}},
        {"error": {"class": "E", "message": "the key is sk-proj-" + "a1" * 20}},
        {"error": {"class": "my.Error\u00e9 <b>" + "c" * 180, "message": "a\nb  c "}},
        {"error": {"message": ""}},
    ],
    ids=lambda body: str(body)[:50],
)
async def test_any_output_and_error_can_be_sent_twice(
    body: dict[str, Any], http: httpx.AsyncClient
) -> None:
    """Texts that are shortened or redacted where they are stored count as equal too."""
    agent = await start(http)
    first, second = await agent.finish(body), await agent.finish(body)

    assert (first.status_code, second.status_code) == (200, 200), first.text + second.text
    assert first.json()["status"] == ("failed" if "error" in body else "completed")


@pytest.mark.req("cw/15.finish")
async def test_finishing_cancels_the_calls_in_flight(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The provider's connection closes, and the client of the call gets a final refusal."""
    await provider.script("FLIES", [Step(hang=True)])
    agent = await start(http)
    call = asyncio.create_task(agent.ask("FLIES"))
    await provider.wait_for_arrivals(1, "FLIES")
    finished = await agent.finish({"output": "early"})
    reply = await call
    (arrival,) = await provider.wait_for_arrivals(1, "FLIES", ended=True)

    assert finished.json()["status"] == "completed"
    agent.require_final(reply, "finished")
    assert arrival.outcome == "client_gone"
    agent.require_final(await agent.ask("later"), "finished")


@pytest.mark.req("cw/15.finish")
async def test_finishing_ends_an_open_stream_with_an_error_event(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    await provider.script("OPEN", [Step(text="a long text", after_events=2)])
    agent = await start(http)
    async with agent.streamed("OPEN") as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        await agent.finish({"output": "early"})
        rest = [json.loads(line[6:]) async for line in lines if line.startswith("data: {")]
    assert rest[-1]["error"]["code"] == "finished"


@pytest.mark.req("cw/15.finish")
async def test_a_heartbeat_returns_the_status_and_what_is_left(http: httpx.AsyncClient) -> None:
    """A call, its tokens and the time are subtracted."""
    agent = await start(http, budget={"max_llm_calls": 5, "max_cost_usd": 1, "max_seconds": 600})
    before = await http.post(f"/runs/{agent.run_id}/heartbeat")
    await agent.ask()
    after = await http.post(f"/runs/{agent.run_id}/heartbeat")
    unknown = await http.post("/runs/no-such-run/heartbeat")

    assert before.status_code == 200, before.text
    assert before.json()["status"] == "running"
    assert before.json()["left"]["llm_calls"] == 5
    assert after.json()["left"]["llm_calls"] == 4
    assert 0 < float(after.json()["left"]["cost_usd"]) < 1
    assert 0 < after.json()["left"]["seconds"] < before.json()["left"]["seconds"] < 600
    assert unknown.status_code == 404


@pytest.mark.proof
@pytest.mark.req("cw/15.finish")
async def test_a_run_without_calls_and_heartbeats_fails_as_abandoned(
    http: httpx.AsyncClient,
) -> None:
    """The smallest idle time is ten seconds."""
    agent = await start(http, idle_seconds=10)
    run = await agent.ended()

    assert run["status"] == "failed"
    assert run["stop"]["kind"] == "abandoned"
    agent.require_final(await agent.ask("late"), "abandoned")


@both
async def test_an_unknown_key_is_refused_in_the_form_of_the_api(
    api: Api,
    http: httpx.AsyncClient,
    tenant_keys: Mapping[str, str],
    provider: FakeProvider,
) -> None:
    """An API key of the service is no key of a run, and neither is a changed key."""
    agent = await start(http, api=api)
    wrong = ["cwr_" + "0" * 64, agent.key[:-1] + ("0" if agent.key[-1] != "0" else "1"), "x"]
    body = api.body("UNKNOWN")
    for key in (*wrong, tenant_keys["one"], OPERATOR_KEY):
        shown = {"Authorization": f"Bearer {key}"}
        reply = await http.post(api.path, json=body, headers=shown)
        assert reply.status_code == 401, reply.text
        assert api.error_of(reply)["code"] == "invalid_api_key"
    async with httpx.AsyncClient(base_url=http.base_url, trust_env=False) as bare:
        none = await bare.post(api.path, json=body)
        shown = {"x-api-key": agent.key}
        by_header = await bare.post(api.path, json=api.body("by header"), headers=shown)

    assert none.status_code == 401
    assert by_header.status_code == 200
    assert await provider.count("UNKNOWN") == 0


@pytest.mark.req("cw/15.create")
async def test_the_key_identifies_the_run_and_reaches_no_other(
    http: httpx.AsyncClient,
    service: ServiceProcess,
    tenant_keys: Mapping[str, str],
    provider: FakeProvider,
) -> None:
    """Two tenants use the same run ID; each call is charged to the run of its key."""
    async with client_of(service, tenant_keys["two"]) as second:
        mine = await start(http, run_id="shared-name")
        theirs = await start(second, run_id="shared-name")
        other = await start(http)
        await theirs.ask("CHARGED")
        await theirs.ask("CHARGED twice")
        used = [
            (await each.get()).json()["usage"].get("llm_calls", 0) for each in (mine, theirs, other)
        ]
        foreign = await second.get(f"/runs/{other.run_id}")
        foreign_finish = await second.post(f"/runs/{other.run_id}/finish", json={"output": 1})
        foreign_beat = await second.post(f"/runs/{other.run_id}/heartbeat")
        await theirs.finish({"output": "theirs"})
        left = (await mine.get()).json()["status"]
    async with client_of(service, mine.key) as agent:
        reached = {
            path: (await agent.request(method, path, json=body)).status_code
            for method, path, body in (
                ("GET", f"/runs/{other.run_id}", None),
                ("GET", f"/runs/{other.run_id}/trace", None),
                ("POST", f"/runs/{other.run_id}/finish", {"output": 1}),
                ("POST", f"/runs/{other.run_id}/heartbeat", None),
                ("DELETE", f"/runs/{other.run_id}", None),
                ("GET", "/runs", None),
                ("GET", "/keys", None),
                ("GET", "/usage", None),
                ("GET", "/agents", None),
            )
        }

    assert used == [0, 2, 0]
    assert [each.status_code for each in (foreign, foreign_finish, foreign_beat)] == [404] * 3
    assert left == "running"
    assert set(reached.values()) <= {401, 403, 404}, reached
    assert (await other.get()).json()["status"] == "running"


async def test_the_key_is_accepted_as_x_api_key_by_every_route_that_it_may_use(
    http: httpx.AsyncClient, service: ServiceProcess
) -> None:
    agent = await start(http)
    headers = {"x-api-key": agent.key}
    async with httpx.AsyncClient(
        base_url=service.url, headers=headers, trust_env=False
    ) as with_key:
        run = await with_key.get(f"/runs/{agent.run_id}")
        trace = await with_key.get(f"/runs/{agent.run_id}/trace")
        beat = await with_key.post(f"/runs/{agent.run_id}/heartbeat")
        child = await with_key.post("/runs", json={"kind": "external"})
        listed = await with_key.get("/runs")
        finished = await with_key.post(f"/runs/{agent.run_id}/finish", json={"output": 1})
        unknown = await with_key.get(f"/runs/{agent.run_id}", headers={"x-api-key": "cwr_0"})

    assert [each.status_code for each in (run, trace, beat, finished)] == [200] * 4
    assert (child.status_code, listed.status_code, unknown.status_code) == (NEW, 403, 401)


@pytest.mark.req("cw/15.refusals")
@pytest.mark.req("cw/15.resume")
async def test_another_post_opens_an_attempt_and_supersedes_the_earlier_key(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The earlier key is refused finally; a different body is a conflict."""
    first = await start(http, run_id="attempts", name="a")
    await first.ask("FIRST")
    again = await http.post("/runs", json={"kind": "external", "run_id": "attempts", "name": "a"})
    conflict = await http.post(
        "/runs", json={"kind": "external", "run_id": "attempts", "name": "b"}
    )
    second = Agent(http=http, run=again.json())

    assert again.status_code == OLD, again.text
    assert second.run["attempt"] == 2
    assert second.key != first.key
    assert conflict.status_code == 409
    first.require_final(await first.ask("SUPERSEDED"), "superseded")
    assert (await second.ask("SECOND")).status_code == 200
    assert await provider.count("SUPERSEDED") == 0


@asynccontextmanager
async def arriving(agent: Agent, text: str) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
    """Send the head of a call, which the service accepts; the function sends the body.

    It returns the whole reply.
    """
    content = json.dumps(agent.api.body(text)).encode()
    head = (
        f"POST {agent.api.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Authorization: Bearer {agent.key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nExpect: 100-continue\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.http.base_url.port)
    writer.write(head.encode())
    assert b" 100 " in await reader.readuntil(b"\r\n\r\n")

    async def rest() -> bytes:
        writer.write(content)
        return await reader.read()

    yield rest
    writer.close()


async def test_a_call_whose_attempt_is_superseded_while_its_body_arrives_is_refused(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    first = await start(http)
    async with arriving(first, "LATE") as rest:
        second = await first.again()
        assert (await second.ask("SECOND")).status_code == 200
        assert b'"superseded"' in await rest()
    assert await provider.count("LATE") == 0


async def test_a_call_of_a_run_that_ends_while_its_body_arrives_is_refused(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    agent = await start(http)
    async with arriving(agent, "AFTER") as rest:
        assert (await agent.finish({"output": 1})).status_code == 200
        reply = await rest()
    assert b'"finished"' in reply, reply
    assert await provider.count("AFTER") == 0


async def test_a_repeated_post_with_an_idempotency_key_only_renews_the_key(
    http: httpx.AsyncClient,
) -> None:
    """A client that lost the response of its POST does not start a second attempt."""
    key = {"Idempotency-Key": "renewed"}
    lost = await start(http, headers=key)
    again = await http.post("/runs", json={"kind": "external"}, headers=key)
    renewed = Agent(http=http, run=again.json())
    used = await renewed.ask("Hello")
    late = await lost.ask("Hello")
    third = await http.post("/runs", json={"kind": "external"}, headers=key)

    assert again.status_code == OLD
    assert renewed.run_id == lost.run_id
    assert renewed.run["attempt"] == 1
    assert used.status_code == 200
    assert late.status_code in (401, REFUSED)
    assert third.json()["attempt"] == 2


async def test_a_finished_run_is_returned_without_access(http: httpx.AsyncClient) -> None:
    """A POST that repeats the body of an ended run opens nothing."""
    agent = await start(http, run_id="over")
    await agent.finish({"output": 1})
    again = await http.post("/runs", json={"kind": "external", "run_id": "over"})

    assert again.status_code == OLD
    assert again.json()["access"] is None
    assert again.json()["status"] == "completed"


@pytest.mark.parametrize(
    ("status", "headers"),
    [(400, {}), (422, {}), (429, {"retry-after": "7"}), (500, {}), (503, {"retry-after": "1"})],
)
@both
async def test_an_error_of_the_provider_is_passed_on(
    api: Api,
    status: int,
    headers: dict[str, str],
    http: httpx.AsyncClient,
    provider: FakeProvider,
) -> None:
    """Status, body and the time to wait are those of the provider's last reply."""
    body = json.dumps({"error": {"message": f"provider says {status}", "type": "x", "code": "y"}})
    step = Step(status=status, raw_body=body, headers={"x-request-id": "req-7", **headers})
    await provider.script(f"ERR{status}", [step], repeat_last=True)
    agent = await start(http, api=api)
    reply = await agent.ask(f"ERR{status}")
    run = (await agent.get()).json()

    assert (reply.status_code, reply.text) == (status, body)
    assert reply.headers["x-request-id"] == "req-7"
    assert reply.headers.get("retry-after") == headers.get("retry-after")
    assert run["status"] == "running"


@both
async def test_errors_about_the_providers_key_do_not_look_like_errors_of_the_clients_key(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The client cannot correct them, and does not repeat the call."""
    await provider.script("NOKEY", [Step(status=401, text="sk-secret")], repeat_last=True)
    agent = await start(http, api=api)
    reply = await agent.ask("NOKEY")

    assert reply.status_code == 502
    assert reply.headers["x-should-retry"] == "false"
    assert api.error_of(reply)["code"] == "provider_failed"
    assert "sk-secret" not in reply.text


@both
@pytest.mark.req("cw/15.refusals")
async def test_a_provider_is_retried_only_while_no_byte_was_passed_on(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """A failure before the first byte is repeated; a stream that breaks off ends with an error."""
    await provider.script("EARLY", [Step(status=503), Step(cut="before"), Step(text="fine")])
    await provider.script("WHOLE", [Step(cut="middle"), Step(text="fine")])
    broken = Step(text="half of an answer", after_events=4, then="cut")
    await provider.script("BROKEN", [broken, Step(text="fine")])
    agent = await start(http, api=api)
    early, whole = await agent.ask("EARLY", stream=True), await agent.ask("WHOLE")
    late = await agent.ask("BROKEN", stream=True)
    last = late.content.rstrip().rsplit(EVENT_END, 1)[1]

    assert (early.status_code, whole.status_code) == (200, 200)
    assert b"fine" in early.content
    assert "fine" in whole.text
    assert await provider.count("EARLY") == 3
    assert await provider.count("WHOLE") == 2
    assert await provider.count("BROKEN") == 1
    assert json.loads(last.partition(b"data: ")[2])["error"]["code"] == "provider_failed"
    assert b"fine" not in late.content


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


async def test_erasing_a_run_removes_its_attempts(
    http: httpx.AsyncClient, module_database_url: str
) -> None:
    """The key is unknown afterwards."""
    agent = await start(http)
    await agent.ask()
    await agent.finish({"output": 1})
    with psycopg.connect(module_database_url, autocommit=True) as connection:

        def rows() -> int:
            counted = connection.execute(
                "SELECT count(*) FROM external_attempts WHERE run_id = %s", (agent.run_id,)
            ).fetchone()
            return int((counted or (0,))[0])

        before = rows()
        erased = await http.delete(f"/runs/{agent.run_id}/record")
        after = rows()

    assert (before, after) == (1, 0)
    assert erased.status_code == 204
    assert (await agent.ask()).status_code == 401


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


async def test_fields_that_the_gateway_does_not_offer_are_refused_in_the_form_of_the_api(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Other unknown fields reach the provider."""
    agent = await start(http)
    for name in ("background", "previous_response_id", "conversation"):
        sent: dict[str, Any] = {name: "x"}
        reply = await agent.ask("FIELDS", **sent)
        assert reply.status_code == 400, reply.text
        assert name in OPENAI.error_of(reply)["message"]
    await agent.ask("FIELDS", some_new_field={"a": 1})
    (arrival,) = await provider.arrivals("FIELDS", bodies=True)

    assert arrival.body is not None
    assert arrival.body["some_new_field"] == {"a": 1}


@pytest.mark.parametrize("content", [b"[1]", b"{", b"", b"\xff\xfe", b'{"model": "small"}'])
@both
async def test_a_malformed_body_is_refused_in_the_form_of_the_api(
    api: Api, content: bytes, http: httpx.AsyncClient
) -> None:
    """The status is one that no client repeats."""
    agent = await start(http)
    headers = {"Authorization": f"Bearer {agent.key}", "Content-Type": "application/json"}
    reply = await http.post(api.path, content=content, headers=headers)

    assert reply.status_code == 400, reply.text
    assert reply.headers["x-should-retry"] == "false"
    api.error_of(reply)


@both
async def test_a_request_that_is_too_large_is_refused_in_the_form_of_the_api(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The limit is the sum of server.max_body_kb and admission.max_graph_kb."""
    agent = await start(http, api=api)
    reply = await agent.ask("LARGE" + "x" * MAX_GATEWAY_KB * 1024)

    assert reply.status_code == 413, reply.text
    assert reply.headers["x-should-retry"] == "false"
    api.error_of(reply)
    assert await provider.count("LARGE") == 0


@pytest.mark.parametrize(
    "field",
    [
        {"start_at": "2030-01-01T00:00:00Z"},
        {"priority": 1},
        {"concurrency_key": "k"},
        {"idle_seconds": 9},
        {"idle_seconds": 86_401},
        {"graph": {"steps": [], "edges": []}},
        {"models": []},
    ],
    ids=lambda field: next(iter(field)),
)
async def test_fields_of_other_kinds_are_refused(
    field: dict[str, Any], http: httpx.AsyncClient
) -> None:
    """An external run starts at once or is refused, so it cannot be queued."""
    posted = await http.post("/runs", json={"kind": "external", **field})

    assert posted.status_code == 422, posted.text
    assert posted.json()["errors"][0]["field"].startswith(next(iter(field)))


async def test_a_run_of_another_kind_is_not_finished_by_a_client(http: httpx.AsyncClient) -> None:
    """The service itself ends it, and it needs no heartbeat."""
    step = {
        "id": "sum",
        "type": "tool",
        "data": {"tool": "calculator", "args": {"expression": "1"}},
    }
    body = {"kind": "graph", "run_id": "graph-run", "graph": {"steps": [step], "edges": []}}
    (await http.post("/runs", json=body)).raise_for_status()
    finished = await http.post("/runs/graph-run/finish", json={"output": 1})
    kept = await http.post("/runs/graph-run/heartbeat")

    assert (finished.status_code, kept.status_code) == (422, 422)


async def test_schedules_and_threads_refuse_the_kind(http: httpx.AsyncClient) -> None:
    """They start runs later, when no agent is there to use them."""
    schedule = {"cron": "0 9 * * *", "run": {"kind": "external"}}
    scheduled = await http.put("/schedules/outside", json=schedule)
    thread = await http.post("/threads", json={"kind": "external"})

    assert scheduled.status_code == 422, scheduled.text
    assert thread.status_code == 422, thread.text


async def test_the_deadline_interrupts_a_call_and_refuses_later_ones(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The key expires with the deadline."""
    await provider.script("LATE", [Step(hang=True)], repeat_last=True)
    deadline = (datetime.now(UTC) + timedelta(seconds=3)).isoformat()
    agent = await start(http, deadline=deadline)
    reply = await agent.ask("LATE")
    run = await agent.ended()
    (arrival,) = await provider.wait_for_arrivals(1, "LATE", ended=True)

    assert datetime.fromisoformat(agent.run["access"]["expires_at"]) == datetime.fromisoformat(
        deadline
    )
    agent.require_final(reply, "deadline")
    agent.require_final(await agent.ask("LATE"), "deadline")
    assert run["status"] == "halted"
    assert arrival.outcome == "client_gone"


@both
async def test_a_later_attempt_gets_the_recorded_replies_without_a_call(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Equal requests get the recorded bytes in the order in which they were made."""
    for text, answers in (("POLL", ["not yet", "done"]), ("FLOW", ["in parts"])):
        await provider.script(text, [Step(text=answer) for answer in answers])
    first = await start(http, api=api, run_id=f"replayed-{api}")
    made = [await first.ask("POLL"), await first.ask("POLL"), await first.ask("FLOW", stream=True)]
    used = (await first.get()).json()["usage"]
    second = await first.again()
    replayed = [
        await second.ask("POLL"),
        await second.ask("FLOW", stream=True),
        await second.ask("POLL"),
    ]
    now = (await first.get()).json()["usage"]
    await second.ask("POLL")  # one more than recorded
    await second.finish({"output": 1})
    result = (await second.get()).json()["result"]

    assert "not yet" in made[0].text
    assert "done" in made[1].text
    assert [each.content for each in replayed] == [made[each].content for each in (0, 2, 1)]
    assert [each.headers["content-type"] for each in replayed] == [
        made[each].headers["content-type"] for each in (0, 2, 1)
    ]
    names = "tokens", "cost_usd", "llm_calls", "api_calls"
    assert [now[name] for name in names] == [used[name] for name in names]
    assert await provider.count("") == 4
    assert (result["replayed_calls"], result["unused_calls"]) == (3, 0)
    assert await second.events("replay.diverged") == []


@both
@pytest.mark.req("cw/15.resume")
async def test_a_repeated_request_joins_the_call_in_flight_and_others_do_not(
    api: Api, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """An idempotency key or a library's retry makes it the same request; equal content does not."""
    step = Step(text="joined in the middle", after_events=3, then="hold")
    await provider.script("JOIN", [step], repeat_last=True)
    agent = await start(http, api=api)
    key, retry = {"Idempotency-Key": "k"}, {"x-stainless-retry-count": "1"}
    async with AsyncExitStack() as stack:

        async def opened(text: str, **headers: str) -> httpx.Response:
            return await stack.enter_async_context(agent.streamed(text, headers))

        async with agent.streamed("JOIN left") as left:
            assert left.status_code == 200
        named, plain, twin = [
            await opened("JOIN named", **key),
            await opened("JOIN plain"),
            await opened("JOIN plain"),
        ]
        await provider.wait_for_arrivals(4, "JOIN")
        joined = [
            await opened("JOIN named", **key),
            await opened("JOIN plain", **retry),
            await opened("JOIN left", **retry),
        ]
        await provider.release()
        replies = [await each.aread() for each in (named, plain, twin, *joined)]

    assert await provider.count("JOIN") == 4
    assert replies[3] == replies[0]
    assert replies[4] in (replies[1], replies[2])
    assert all(api.end in each for each in replies)


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


async def test_a_run_can_be_continued_with_a_larger_budget(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The recorded replies are replayed at no cost."""
    agent = await start(http, budget={"max_llm_calls": 1})
    await agent.ask("RECORDED")
    await agent.ask("RECORDED no more")
    await agent.ended()
    posted = await http.post(
        "/runs", json={"from": {"run_id": agent.run_id}, "budget": {"max_llm_calls": 2}}
    )
    assert posted.status_code == NEW, posted.text
    resumed = Agent(http=http, run=posted.json())
    replies = [await resumed.ask("RECORDED"), await resumed.ask("RECORDED no more")]

    assert [each.status_code for each in replies] == [200, 200]
    assert await provider.count("RECORDED") == 2


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


@both
@pytest.mark.req("cw/15.refusals")
async def test_an_overloaded_process_answers_503_with_retry_after(
    api: Api, database_url: str, provider: FakeProvider
) -> None:
    """The client library repeats the call, which then succeeds."""
    claude = {"provider": "anthropic", "base_url": provider.url, "model": "fake-claude"}
    settings = {
        **model_settings(provider.openai_url),
        "MODELS_NAMED": json.dumps({"claude": {**claude, "api_key": "sk-x"}}),
        "SERVER_MAX_CONNECTIONS": "2",
    }
    await provider.script("HOLDS", [Step(hang=True)])
    async with (
        ServiceProcess(database_url, settings=settings) as service,
        httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=150) as http,
    ):
        agent = await start(http, api=api)
        held = asyncio.create_task(agent.ask("HOLDS"))
        await provider.wait_for_arrivals(1, "HOLDS")
        reply = await agent.ask("REFUSED")
        async with agent.library() as (client, sent):
            call = asyncio.create_task(api.create(client, "REPEATED"))

            async def refused() -> bool:
                return sent["503"] > 0

            await eventually(refused)
            await provider.release()
            await call
        answered = await held

    assert answered.status_code == 200
    assert reply.status_code == 503, reply.text
    assert int(reply.headers["retry-after"]) > 0
    assert "x-should-retry" not in reply.headers
    api.error_of(reply)
    assert sent["200"] == 1


async def test_more_runs_than_the_process_may_own_are_refused(
    database_url: str, running_provider: FakeProvider
) -> None:
    """An external run is never queued, and takes no slot of other runs."""
    settings = {
        **model_settings(running_provider.openai_url),
        "ADMISSION_MAX_EXTERNAL_RUNS": "1",
        "WORKER_MAX_RUNS": "1",
        "SERVER_PUBLIC_URL": "https://agents.example/",
        "SERVER_REQUEST_TIMEOUT_SECONDS": "1",
    }
    await running_provider.script("SLOW", [Step(text="slow", delay_seconds=2)])
    async with (
        ServiceProcess(database_url, settings=settings) as service,
        httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=150) as http,
    ):
        agent = await start(http)
        full = await http.post("/runs", json={"kind": "external"})
        data = {"tool": "calculator", "args": {"expression": "1 + 1"}}
        graph = {"steps": [{"id": "a", "type": "tool", "data": data}], "edges": []}
        beside = await http.post(
            "/runs", json={"kind": "graph", "graph": graph}, headers={"Prefer": "wait=100"}
        )
        slow = await http.post(
            OPENAI.path, json=OPENAI.body("SLOW"), headers={"Authorization": f"Bearer {agent.key}"}
        )
        await agent.finish({"output": 1})
        await agent.ended()
        after = await http.post("/runs", json={"kind": "external"})

    assert agent.run["access"]["openai_base_url"] == "https://agents.example/gateway/openai/v1"
    assert full.status_code == 429
    assert full.json()["type"].endswith("external-runs-full")
    assert int(full.headers["retry-after"]) > 0
    assert beside.json()["status"] == "completed", beside.text
    assert slow.status_code == 200, slow.text  # server.request_timeout_seconds does not apply
    assert after.status_code == NEW, after.text
