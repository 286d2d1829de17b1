"""The APIs of the gateway with the clients of their vendors, and with raw requests."""

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.gateway_clients import External
from tests.support.service import ServiceProcess, model_settings
from tests.unit.models.wires.captured import captures

CHAT = "/gateway/openai/v1/chat/completions"
RESPONSES = "/gateway/openai/v1/responses"
MESSAGES = "/gateway/anthropic/v1/messages"
COUNT = f"{MESSAGES}/count_tokens"
HELLO: Any = [{"role": "user", "content": "hello"}]
MARKED: Any = [{"role": "user", "content": "marked"}]


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    """Set two models of each API; the second Anthropic endpoint has no functions."""
    claude = {"provider": "anthropic", "api_key": "sk-provider", "model": "claude-haiku-4-5"}
    named = {
        "claude": {**claude, "base_url": running_provider.url},
        "bare": {**claude, "base_url": f"{running_provider.url}/none"},
    }
    return {**model_settings(running_provider.openai_url), "MODELS_NAMED": json.dumps(named)}


Opening = Callable[..., Awaitable[External]]


@pytest.fixture
async def opened(service: ServiceProcess, provider: FakeProvider) -> AsyncIterator[Opening]:
    """Return a function that opens an external run with the given fields."""
    async with (
        service.client() as client,
        httpx2.AsyncClient(base_url=service.url, timeout=150) as http,
    ):

        async def opening(**fields: Any) -> External:
            return External(http, await client.post_run({"kind": "external", **fields}))

        yield opening


@pytest.fixture
async def run(opened: Opening) -> External:
    """Open an external run without limits."""
    return await opened()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("credential", ["api_key", "auth_token"])
async def test_the_anthropic_client_gets_the_message_and_the_run_is_charged(
    run: External, provider: FakeProvider, streamed: bool, credential: str
) -> None:
    """Both forms of the key are accepted, and tokens from the prompt cache count as input."""
    step = Step(text="It is forty-two.", tokens_in=1000, tokens_out=70, tokens_cached=600)
    await provider.script("marked", [step])
    client = anthropic.AsyncAnthropic(
        base_url=run.access["anthropic_base_url"],
        http_client=run.http,
        **{credential: run.access["key"]},
    )
    asked: dict[str, Any] = {"model": "claude", "max_tokens": 100, "messages": MARKED}

    if streamed:
        async with client.messages.stream(**asked) as stream:
            message = await stream.get_final_message()
    else:
        message = await client.beta.messages.create(**asked)

    (block,) = message.content
    assert block.type == "text"
    assert (block.text, message.stop_reason) == ("It is forty-two.", "end_turn")
    (arrival,) = await provider.arrivals("marked", bodies=True)
    sent = {**asked, "model": "claude-haiku-4-5", "stream": True}
    assert arrival.body == {name: sent[name] for name in arrival.body or {}}
    assert ("stream" in (arrival.body or {})) is streamed
    usage = await run.usage()
    assert (usage["llm_calls"], usage["tokens"]) == (1, 1070)
    assert usage["cost_usd"] == pytest.approx((400 + 600 * 0.1 + 70 * 5) / 1_000_000)


@pytest.mark.req("cw/15.dialects")
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_replies_arrive_byte_for_byte(
    run: External, provider: FakeProvider, dialect: str
) -> None:
    """Every published reply, whole or streamed, reaches the client unchanged."""
    played = 0
    for capture in (each for each in captures() if each.dialect == dialect):
        if capture.status in (401, 403) or capture.status >= 429:
            continue  # the service's own key, and replies that are retried
        kind = "text/event-stream" if capture.streamed else "application/json"
        step = Step(
            raw_body=capture.body.decode(), status=capture.status, headers={"content-type": kind}
        )
        await provider.script(capture.id, [step], repeat_last=True)
        body = {"messages": [{"role": "user", "content": capture.id}], "stream": capture.streamed}
        if dialect == "openai":
            body |= {"model": "small", "stream_options": {"include_usage": True}}
        else:
            body |= {"model": "claude", "max_tokens": 100}

        reply = await run.post(CHAT if dialect == "openai" else MESSAGES, body)

        error = capture.expected.get("error") and capture.status == 200
        if error and not capture.streamed:
            continue  # an error in a whole reply with status 200 fails the call
        same = reply.content.startswith(capture.body) if error else reply.content == capture.body
        assert (capture.id, same) == (capture.id, True)
        assert reply.status_code == capture.status
        played += 1

    assert played > 10


async def test_a_stopped_stream_ends_with_an_error_that_the_anthropic_client_raises(
    run: External, provider: FakeProvider
) -> None:
    """A cancelled run interrupts the stream; the client does not take it for a whole message."""
    await provider.script("marked", [Step(text="never whole", after_events=3)])
    seen = []

    with pytest.raises(anthropic.APIStatusError) as raised:  # noqa: PT012
        async with run.anthropic.messages.stream(
            model="claude", max_tokens=100, messages=MARKED
        ) as stream:
            async for event in stream:
                seen.append(event.type)
                await run.http.delete(f"/runs/{run.run_id}")

    assert "message_start" in seen
    assert "message_stop" not in seen
    assert raised.value.body == {
        "type": "error",
        "error": {
            "type": "billing_error",
            "message": raised.value.body["error"]["message"],  # type: ignore[index]
            "code": "cancelled",
        },
    }
    (arrival,) = await provider.wait_for_arrivals(1, "marked", ended=True)
    assert arrival.outcome == "client_gone"


async def test_the_anthropic_client_stops_after_one_refused_request(
    opened: Opening, provider: FakeProvider
) -> None:
    """The refusal has the form of the API, with the kind of the stop as its code."""
    run = await opened(budget={"max_llm_calls": 1})
    requests = list[httpx2.Request]()
    run.http.event_hooks = {"request": [_appending(requests)]}
    asked: dict[str, Any] = {"model": "claude", "max_tokens": 100, "messages": HELLO}
    await run.anthropic.messages.create(**asked)

    with pytest.raises(anthropic.BadRequestError) as raised:
        await run.anthropic.messages.create(**asked)

    body: Any = raised.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "billing_error")
    assert body["error"]["code"] == "budget"
    assert (len(requests), await provider.count("hello")) == (2, 1)


def _appending(requests: list[httpx2.Request]) -> Any:
    async def hook(request: httpx2.Request) -> None:
        requests.append(request)

    return hook


async def test_each_api_lists_the_names_that_the_run_may_use(
    opened: Opening, provider: FakeProvider
) -> None:
    """Names are configured models, the providers' names of them, or the run's own names."""
    free = await opened()
    listed = await opened(models=["claude", "big"])
    mapped = await opened(models={"gpt-5": "small", "sonnet": "claude", "*": "big"})

    async def names(run: External) -> tuple[list[str], list[str]]:
        openai = [each.id async for each in run.openai.models.list()]
        return openai, [each.id async for each in run.anthropic.models.list()]

    assert await names(free) == (
        ["small", "big", "fake-big", "fake-small"],
        ["claude", "bare", "claude-haiku-4-5"],
    )
    assert await names(listed) == (["big", "fake-big"], ["claude", "claude-haiku-4-5"])
    assert await names(mapped) == (["gpt-5", "big"], ["sonnet"])
    for each in (free, listed, mapped):
        for name in (await names(each))[0]:
            await each.openai.chat.completions.create(model=name, messages=HELLO)
        for name in (await names(each))[1]:
            if name != "bare":
                await each.anthropic.messages.create(model=name, max_tokens=9, messages=HELLO)


@pytest.mark.req("cw/15.limits")
async def test_tokens_are_counted_by_the_provider_as_api_calls(
    opened: Opening, provider: FakeProvider
) -> None:
    """They cost nothing but count; an endpoint without this function answers for itself."""
    run = await opened(budget={"max_llm_calls": 1, "max_api_calls": 2})

    counted = await run.anthropic.messages.count_tokens(model="claude", messages=HELLO)
    with pytest.raises(anthropic.NotFoundError, match="no such route"):
        await run.anthropic.messages.count_tokens(model="bare", messages=HELLO)
    usage = await run.usage()
    for reason in ["The run was halted: API call limit exceeded: 2 used, limit 2"] * 2:
        with pytest.raises(anthropic.BadRequestError, match=reason):
            await run.anthropic.messages.count_tokens(model="claude", messages=HELLO)

    assert counted.input_tokens == 2
    assert (usage["tokens"], usage["api_calls"], usage.get("llm_calls", 0)) == (0, 2, 0)


async def test_other_paths_are_refused_in_the_form_of_the_api(run: External) -> None:
    """The message lists the paths of the gateway; a base URL can be checked without a key."""
    with pytest.raises(openai.NotFoundError, match="/openai/v1/chat/completions"):
        await run.openai.moderations.create(model="small", input="x")
    with pytest.raises(openai.NotFoundError):
        await run.openai.files.list()
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
    websocket = await run.http.get("/gateway/openai/v1/responses", headers=upgrade)
    with pytest.raises(anthropic.NotFoundError, match="/anthropic/v1/messages") as raised:
        await run.anthropic.messages.batches.list()
    body: Any = raised.value.body
    reached = [
        (await run.http.head(path)).status_code
        for path in ("/gateway/anthropic", "/gateway/openai/v1", "/gateway/other")
    ]

    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
    assert reached == [200, 200, 404]
    assert (websocket.status_code, websocket.json()["error"]["code"]) == (426, "no_websocket")
    assert (await run.http.get(MESSAGES)).json()["error"]["code"] == "unknown_path"


async def test_a_model_of_another_api_is_refused_with_the_right_base_url(run: External) -> None:
    """There is no translation between vendors."""
    with pytest.raises(openai.BadRequestError, match=r"anthropic_base_url.*/gateway/anthropic\."):
        await run.openai.chat.completions.create(model="claude", messages=HELLO)
    with pytest.raises(anthropic.BadRequestError, match=r"openai_base_url.*/gateway/openai/v1\."):
        await run.anthropic.messages.create(model="small", max_tokens=9, messages=HELLO)
    with pytest.raises(anthropic.NotFoundError, match="may not call"):
        await run.anthropic.messages.create(model="unknown", max_tokens=9, messages=HELLO)


async def test_only_some_headers_reach_the_provider_and_come_back(
    run: External, provider: FakeProvider
) -> None:
    """The client's version replaces the default one; cookies, keys and unknown headers stay."""
    answered = {
        "x-request-id": "r-1",
        "request-id": "r-2",
        "retry-after": "7",
        "set-cookie": "a=b",
        "x-secret": "s",
    }
    sent = {
        "user-agent": "my-agent",
        "anthropic-version": "2099-01-01",
        "anthropic-beta": "one,two",
        "openai-beta": "three",
        "cookie": "a=b",
        "x-unknown": "x",
        "x-stainless-os": "Linux",
        "anthropic-dangerous-direct-browser-access": "true",
    }
    await provider.script("marked", [Step(status=400, headers=answered), Step(headers=answered)])
    body = {"model": "claude", "max_tokens": 9, "messages": MARKED}

    refused = await run.post(MESSAGES, body, **sent)
    plain = await run.post(f"{MESSAGES}?beta=true", {**body, "temperature": 0})
    await run.post(CHAT, {"model": "small", "messages": MARKED}, **sent)

    first, second, third = await provider.arrivals("marked")
    ours = {"host", "content-length", "accept-encoding", "content-type", "accept"}
    kept = {"user-agent", "anthropic-version", "anthropic-beta", "openai-beta"}
    assert first.headers.keys() == ours | kept | {"x-api-key"}
    assert {name: first.headers[name] for name in kept} == {name: sent[name] for name in kept}
    assert (first.headers["x-api-key"], first.headers["accept-encoding"]) == (
        *("sk-provider", "identity"),
    )
    assert second.headers["anthropic-version"] == "2023-06-01"
    assert third.headers.keys() == ours | kept | {"authorization"}
    assert run.access["key"] not in third.headers["authorization"]
    for reply, status in ((refused, 400), (plain, 200)):
        assert reply.status_code == status
        passed = {name: reply.headers.get(name) for name in answered}
        assert passed == {**answered, "set-cookie": None, "x-secret": None}


@pytest.mark.req("cw/15.dialects")
async def test_a_refused_field_is_named_and_nothing_is_sent(
    opened: Opening, provider: FakeProvider
) -> None:
    """A hosted tool has no price, so a run with a limit on cost must not use it."""
    run = await opened(budget={"max_cost_usd": 1})
    tools: Any = [{"type": "code_execution_20250825", "name": "code_execution"}]

    with pytest.raises(anthropic.BadRequestError, match=r"tools\[0\]: code_execution"):
        await run.anthropic.messages.create(
            model="claude", max_tokens=9, messages=HELLO, tools=tools
        )
    with pytest.raises(openai.BadRequestError) as raised:
        await run.openai.chat.completions.create(
            model="small", messages=HELLO, extra_body={"previous_response_id": "r"}
        )

    assert (raised.value.param, raised.value.code) == ("previous_response_id", "unsupported_field")
    assert await provider.count("hello") == 0


async def test_a_refused_request_does_not_use_up_the_replay(
    opened: Opening, provider: FakeProvider
) -> None:
    """The first request of an attempt may be refused; its calls still get the recorded replies."""
    first = await opened(run_id="again")
    await first.openai.chat.completions.create(model="small", messages=MARKED)
    second = await opened(run_id="again")

    with pytest.raises(openai.NotFoundError):
        await second.openai.chat.completions.create(model="unknown", messages=MARKED)
    await second.openai.chat.completions.create(model="small", messages=MARKED)

    assert await provider.count("marked") == 1


def _odd(chance: random.Random, depth: int = 0) -> Any:
    """Return an odd JSON value."""
    plain = [
        None,
        True,
        -1,
        0,
        2**62,
        10**30,
        1e308,
        "",
        "text",
        "\ud800",
        "\0",
        "data:" + "A" * 2000,
    ]
    kind = chance.randrange(12 if depth < 4 else 8)
    if kind < 8:
        return chance.choice(plain)
    if kind < 10:
        return [_odd(chance, depth + 1) for _ in range(chance.randrange(4))]
    fields = ("role", "content", "type", "text", "source", "url", "data", "file", "image_url")
    return {chance.choice(fields): _odd(chance, depth + 1) for _ in range(4)}


def _odd_body(chance: random.Random, model: str) -> Any:
    names = ("stop", "tools", "thinking", "system", "temperature", "metadata", "service_tier", "n")
    body = {name: _odd(chance) for name in chance.sample(names, chance.randrange(3))}
    said = chance.choice([[_odd(chance)], [{"role": "user", "content": _odd(chance)}]])
    body["messages"] = body["input"] = said
    body["model"] = _odd(chance) if chance.random() < 0.1 else model
    if chance.random() < 0.2:
        body["stream"] = _odd(chance)
    if chance.random() < 0.8:
        body["max_tokens"] = chance.choice([0, 1, 2**60, _odd(chance)])
    return body


ODD_TEXTS = (
    *(b"", b"{", b"[]", b"null", b"NaN", b'"text"', b"\xff", b"\xef\xbb\xbf{}"),
    b'{"model": "small", "model": "small", "messages": []}',
    b'{"model": "small", "messages": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"model": "small", "n": ' + b"9" * 5000 + b', "messages": []}',
    b'{"model": "small", "messages": [{"role": "user", "content": "\\ud800"}]}',
)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, COUNT])
async def test_no_body_makes_the_service_fail(
    run: External, provider: FakeProvider, path: str
) -> None:
    """Odd bodies get the provider's answer or a refusal in the form of the API."""
    await provider.answer_by_default(Step(text="fine"))
    chance = random.Random(path)
    model = "small" if path in (CHAT, RESPONSES) else "claude"
    bodies = [*ODD_TEXTS, *(json.dumps(_odd_body(chance, model)).encode() for _ in range(200))]
    statuses = set[int]()
    for body in bodies:
        reply = await run.post(path, body)
        statuses.add(reply.status_code)
        if reply.status_code != 200:
            assert "error" in reply.json(), (body, reply.text)

    assert {200, 400} <= statuses <= {200, 400, 404, 413}
    assert (await run.ask("GET", f"/runs/{run.run_id}")).json()["status"] == "running"
    assert (await run.post(path, b"{}", **{"content-type": "text/plain"})).status_code == 415
    unknown = await run.http.post(path, content=b"{", headers={"x-api-key": "cwr_no"})
    assert (unknown.status_code, unknown.headers["x-should-retry"]) == (401, "false")
