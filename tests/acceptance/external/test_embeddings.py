"""Embeddings through the gateway, with the client library of OpenAI."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

from tests.support.external import Agent, next_attempt, start
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.embeddings import counted, vector_of

PATH = "/gateway/openai/v1/embeddings"
TEXTS = ["one text", "another text"]
TOKENS = [[1, 2, 3], [4, 5]]


@asynccontextmanager
async def client_of(agent: Agent) -> AsyncIterator[openai.AsyncOpenAI]:
    """Open the client library for a run."""
    access = agent.run["access"]
    async with (
        httpx.AsyncClient(trust_env=False) as transport,
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
