"""Embeddings through the gateway, with the client library of OpenAI."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import httpx2
import openai
import pytest

from tests.support.external import OVERLOADED, QUICK_RECOVERY, Agent, next_attempt, start
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.embeddings import counted, vector_of
from tests.support.fake_provider.script import Step
from tests.support.pairs import Pair
from tests.support.service import ServiceProcess, model_settings
from tests.support.usage_oracle import settings_of_prices

PATH = "/gateway/openai/v1/embeddings"
TEXTS = ["one text", "another text"]
TOKENS = [[1, 2, 3], [4, 5]]
SENTENCE = "The budget of a run limits what its calls may cost, and waits for no invoice."
RECORDED_VECTORS = 2
"""Vectors of ``MANY`` dimensions that a run records in the service of this module."""
MANY = 128


@pytest.fixture(scope="module")
def service_settings(service_settings: dict[str, str]) -> dict[str, str]:
    """Set small limits for replies and for recorded vectors, in KiB."""
    limits = {"GATEWAY_RECORD_EMBEDDINGS_KB": "1", "LIMITS_MAX_EMBEDDINGS_KB": "4"}
    return {**service_settings, **limits, "TRACE_PAYLOADS": "redacted"}


@asynccontextmanager
async def client_of(agent: Agent) -> AsyncIterator[openai.AsyncOpenAI]:
    """Open the client library for a run."""
    access = agent.run["access"]
    async with (
        httpx2.AsyncClient(trust_env=False) as transport,
        openai.AsyncOpenAI(
            base_url=access["openai_base_url"], api_key=access["key"], http_client=transport
        ) as client,
    ):
        yield client


async def vectors(agent: Agent, given: Any, **fields: Any) -> list[list[float]]:
    """Return the vectors of inputs."""
    async with client_of(agent) as client:
        reply = await client.embeddings.create(model="small", input=given, **fields)
    return [each.embedding for each in reply.data]


@pytest.mark.req("cw/15.embeddings")
@pytest.mark.parametrize("fields", [{}, {"encoding_format": "float"}], ids=["base64", "float"])
@pytest.mark.parametrize(
    "given", ["one text", TEXTS, [1, 2, 3], TOKENS], ids=["text", "texts", "tokens", "arrays"]
)
async def test_the_client_gets_its_vectors_and_the_run_is_charged_what_the_provider_counts(
    http: httpx.AsyncClient, provider: FakeProvider, given: Any, fields: dict[str, Any]
) -> None:
    """A later attempt gets equal vectors without another call, at no cost."""
    budget = {"max_cost_usd": 1, "max_tokens": 1000}
    run = await start(http, budget=budget)
    first = await vectors(run, given, dimensions=5, **fields)
    again = await vectors(
        await next_attempt(http, run, budget=budget), given, dimensions=5, **fields
    )
    usage = (await run.get()).json()["usage"]
    (arrival,) = await provider.arrivals("", bodies=True)

    inputs = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    assert first == again == [vector_of(each, 5).tolist() for each in inputs]
    assert arrival.body is not None
    assert arrival.body["input"] == given
    assert arrival.body["encoding_format"] == fields.get("encoding_format", "base64")
    assert usage["tokens"] == counted(arrival.body)
    assert usage["cost_usd"] == pytest.approx(counted(arrival.body) / 1_000_000)
    assert (usage["llm_calls"], usage["tokens_estimated"]) == (1, 0)


def values_of(reply: httpx.Response) -> Any:
    """Return the document of a reply, without the tokens that it counts."""
    document = reply.raise_for_status().json()
    return {name: value for name, value in document.items() if name != "usage"}


async def ask(agent: Agent, given: Any, **fields: Any) -> httpx.Response:
    """Send one request without the client library."""
    body = {"model": "small", "input": given, **fields}
    headers = {"Authorization": f"Bearer {agent.key}"}
    return await agent.http.post(PATH, json=body, headers=headers)


@pytest.mark.req("cw/15.embeddings")
async def test_vectors_beyond_the_recorded_size_are_requested_again_and_charged(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The replies that fit are replayed; a repetition of another one is no divergence."""
    texts = [f"BEYOND {number}" for number in range(4)]
    run = await start(http)
    first = [values_of(await ask(run, text, dimensions=MANY)) for text in texts]
    second_attempt = await run.next_attempt()
    second = [values_of(await ask(second_attempt, text, dimensions=MANY)) for text in texts]
    prompts = [each.prompt for each in await provider.arrivals("BEYOND")]
    usage = (await run.get()).json()["usage"]
    diverged = await run.events("replay.diverged")

    assert first == second
    assert prompts == [*texts, *texts[RECORDED_VECTORS:]]
    assert usage["llm_calls"] == len(prompts)
    assert usage["tokens"] == sum(counted({"input": each}) for each in prompts)
    assert diverged == []


@pytest.mark.req("cw/15.embeddings")
@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ([SENTENCE] * 10, {"max_tokens": 4 * 10 * (len(SENTENCE) // 4 + 1) + 150}),
        ([[1] * 50] * 2, {"max_tokens": 4 * 100}),
        ([[1] * 50] * 2, {"max_cost_usd": 4 * 100 / 1_000_000}),
    ],
    ids=["texts", "tokens", "cost"],
)
async def test_a_budget_stops_after_the_batches_that_it_pays(
    http: httpx.AsyncClient, provider: FakeProvider, given: Any, limit: dict[str, float]
) -> None:
    """The provider's own counter is the judge; arrays of tokens reserve exactly their length."""
    run = await start(http, budget=limit)
    replies = [await ask(run, given) for _ in range(6)]
    made = [each for each in replies if each.status_code == 200]
    charged = [each.charged for each in await provider.arrivals("")]
    refused = replies[len(made)]

    tokens = sum(each["tokens_in"] for each in charged if each)
    assert len(charged) == len(made) == 4
    assert tokens <= limit.get("max_tokens", tokens)
    assert tokens <= limit.get("max_cost_usd", 1) * 1_000_000
    run.require_final(refused, "budget")
    assert all(each.status_code == 400 for each in replies[len(made) :])


@pytest.mark.req("cw/15.embeddings")
async def test_the_trace_has_the_digest_of_the_vectors_and_never_the_vectors(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The inputs are shown as the settings of payloads allow; tokens only by their number."""
    run = await start(http, input="x")
    document = (await ask(run, ["a text to show", "other"], dimensions=5)).json()
    await ask(run, TOKENS, dimensions=5, encoding_format="base64")
    trace = await run.get("/trace?payloads=true")
    nodes = [node for node in trace.json()["snapshot"]["nodes"].values() if node["kind"] == "llm"]
    shown = [await run.get(f"/calls/{node['node_id']}") for node in nodes]

    about = [node["metadata"]["embeddings"] for node in nodes]
    assert [(each["count"], each["dimensions"]) for each in about] == [(2, 5), (2, 5)]
    assert all(len(each["digest"]) == 16 for each in about)
    assert "a text to show" in shown[0].text
    assert "[3 tokens]" in shown[1].text
    for text in (trace.text, *(each.raise_for_status().text for each in shown)):
        assert str(document["data"][0]["embedding"][0]) not in text
        assert "bulk" not in text
        assert "packed" not in text


async def test_a_reply_that_is_too_long_fails_with_the_setting_and_is_charged_as_an_estimate(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """It is not requested again."""
    run = await start(http)
    reply = await ask(run, ["LONG"] * 4, dimensions=MANY)
    usage = (await run.get()).json()["usage"]

    assert reply.status_code == 502
    assert "limits.max_embeddings_kb" in reply.json()["error"]["message"]
    assert await provider.count("LONG") == 1
    assert 0 < usage["tokens_estimated"] == usage["tokens"]


@pytest.mark.parametrize(
    "document",
    [
        {"data": [{"embedding": [1, 2]}, {"embedding": [3]}], "usage": {"prompt_tokens": 2}},
        {"embeddings": {"float": [[0.5]]}, "usage": {"total_tokens": 2}},
    ],
    ids=["whole numbers", "another form"],
)
async def test_a_reply_of_another_form_is_passed_on_and_replayed_unchanged(
    http: httpx.AsyncClient, provider: FakeProvider, document: Any
) -> None:
    """Its counts are charged."""
    content = json.dumps(document, indent=1)
    await provider.script("FORM", [Step(raw_body=content)])
    run = await start(http)
    first = await ask(run, "FORM")
    second = await ask(await run.next_attempt(), "FORM")

    assert first.text == second.text == content
    assert await provider.count("FORM") == 1
    assert (await run.get()).json()["usage"]["tokens"] == 2


async def test_a_reply_without_vectors_and_counts_is_a_failure_of_the_provider(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The call is repeated, as for other APIs."""
    await provider.script("EMPTY", [Step(raw_body="{}")])
    reply = await ask(await start(http), "EMPTY")

    assert reply.json()["data"][0]["embedding"] == vector_of("EMPTY", 8).tolist()
    assert await provider.count("EMPTY") == 2


async def test_refusals_of_the_provider_and_of_the_gateway_are_those_of_other_calls(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """A model without embeddings gets the provider's error."""
    await provider.script("CHATS", [Step(status=404, text="this model has no embeddings")])
    run = await start(http, models={"one": "small"}, budget={"max_tokens": 100})
    bodies: dict[str, dict[str, Any]] = {
        "model_not_found": {"model": "other"},
        "unsupported_field": {"model": "one", "api_key": "x"},
        "invalid_request": {"model": "one", "input": {"a": 1}},
    }
    codes = []
    for body in bodies.values():
        headers = {"Authorization": f"Bearer {run.key}"}
        refused = await http.post(PATH, json={"input": "a", **body}, headers=headers)
        codes.append(refused.json()["error"]["code"])
    async with client_of(run) as client:
        with pytest.raises(openai.NotFoundError, match="no embeddings"):
            await client.embeddings.create(model="one", input="CHATS")
    usage = (await run.get()).json()["usage"]

    assert codes == list(bodies)
    assert usage["tokens"] == 0


@pytest.mark.req("cw/15.embeddings")
async def test_recorded_vectors_survive_the_death_of_the_owner_and_count_towards_the_limit(
    database_url: str, provider: FakeProvider
) -> None:
    """The next owner replays them, and records as much more as the limit leaves."""
    settings = {
        **model_settings(provider.openai_url),
        **settings_of_prices("MODELS_SMALL"),
        **QUICK_RECOVERY,
        "GATEWAY_RECORD_EMBEDDINGS_KB": "1",
    }
    budget = {"max_cost_usd": 1}
    async with ServiceProcess(database_url, settings=settings) as killed, killed.http() as http:
        run = await start(http, budget=budget)
        first = values_of(await ask(run, "KILL 0", dimensions=MANY))
        killed.child.kill()
    async with ServiceProcess(database_url, settings=settings) as other, other.http() as http:
        second = await next_attempt(http, run, budget=budget)
        while (reply := await ask(second, "KILL 0", dimensions=MANY)).status_code == OVERLOADED:
            assert reply.headers["retry-after"] == "1"
        for number in (1, 2):
            values_of(await ask(second, f"KILL {number}", dimensions=MANY))
        third = await next_attempt(http, run, budget=budget)
        for number in range(3):
            values_of(await ask(third, f"KILL {number}", dimensions=MANY))
        usage = (await third.get()).json()["usage"]
    prompts = [each.prompt for each in await provider.arrivals("KILL")]

    assert values_of(reply) == first
    assert prompts == ["KILL 0", "KILL 1", "KILL 2", "KILL 2"]
    assert usage["tokens"] == sum(counted({"input": each}) for each in prompts)
    assert usage["tokens_estimated"] == 0


async def test_equal_requests_share_a_call_only_with_the_same_key(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Two open requests without a key are two calls."""
    await provider.script("JOIN", [Step(hang=True)] * 2)
    await provider.script("APART", [Step(hang=True)] * 2)
    run = await start(http)
    headers = {"Authorization": f"Bearer {run.key}"}

    async def send(text: str, **more: str) -> httpx.Response:
        body = {"model": "small", "input": text}
        return await http.post(PATH, json=body, headers={**headers, **more})

    async with asyncio.TaskGroup() as group:
        joined = [group.create_task(send("JOIN", **{"idempotency-key": "k"})) for _ in range(2)]
        apart = [group.create_task(send("APART")) for _ in range(2)]
        await provider.wait_for_arrivals(1, "JOIN")
        await provider.wait_for_arrivals(2, "APART")
        await provider.release()

    assert values_of(joined[0].result()) == values_of(joined[1].result())
    assert values_of(apart[0].result()) == values_of(apart[1].result())
    assert [await provider.count(each) for each in ("JOIN", "APART")] == [1, 2]


async def test_a_cancel_in_mid_call_closes_the_providers_connection(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The client gets the reason, and later calls are refused without a call."""
    await provider.script("STOPPED", [Step(hang=True)])
    run = await start(http)
    async with asyncio.TaskGroup() as group:
        call = group.create_task(ask(run, "STOPPED"))
        await provider.wait_for_arrivals(1, "STOPPED")
        (await http.delete(f"/runs/{run.run_id}")).raise_for_status()
    ended = await run.ended()
    later = await ask(run, "STOPPED")

    assert ended["status"] == "cancelled"
    assert [call.result().status_code, later.status_code] == [400, 400]
    assert call.result().json()["error"]["code"] == "cancelled"
    assert await provider.count("STOPPED") == 1


@pytest.mark.req("cw/15.embeddings")
async def test_another_process_forwards_a_request_to_the_owner_of_the_run(
    database_url: str, provider: FakeProvider
) -> None:
    """The vectors are those of the provider, and one call is charged."""
    async with Pair.of(database_url, provider) as pair:
        run = await start(pair.of_first)
        there = replace(run, http=pair.of_second)
        text = await ask(there, TEXTS, dimensions=5)
        tokens = await ask(there, TOKENS, dimensions=5, encoding_format="base64")
        usage = (await run.get()).json()["usage"]

    vectors_of_text = [each["embedding"] for each in text.json()["data"]]
    assert vectors_of_text == [vector_of(each, 5).tolist() for each in TEXTS]
    assert tokens.status_code == 200
    assert usage["llm_calls"] == 2
