"""Services that share the limit of a model, and a provider that refuses calls beyond it."""

from typing import Any

import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient
from tests.support.service import ServiceProcess, finished, model_settings
from tests.support.stores import eventually, open_oracle

CALLS, RUNS = 16, 4
LIMITED = {"MODELS_SMALL_REQUESTS_PER_MINUTE": "600"}
"""Limits: ten requests at once, and then a little less than ten a second."""


def asking(prompt: str, times: int) -> dict[str, Any]:
    """Return a run that calls the small model ``times`` times in parallel."""
    inner = {"type": "llm", "data": {"prompt": f"{prompt} ${{default}}"}}
    data = {"step": inner, "max_parallel": 16}
    return {
        "kind": "graph",
        "graph": {"steps": [{"id": "m", "type": "map", "data": data}], "edges": []},
        "inputs": {"default": list(range(times))},
    }


async def refused_of(
    provider: FakeProvider, database_url: str, settings: dict[str, str], per_second: float = 11
) -> int:
    """Let two services call as often as possible; return how many requests were refused."""
    await provider.limit(burst=25, per_second=per_second)
    used = {**model_settings(provider.openai_url), "RETRY_MAX_RETRIES": "8", **settings}
    async with (
        ServiceProcess(database_url, settings=used, name="one") as one,
        ServiceProcess(database_url, settings=used, name="other") as other,
        one.client() as first,
        other.client() as second,
    ):
        clients = [(first, second)[number % 2] for number in range(RUNS)]
        for number, client in enumerate(clients):
            await client.post_run(asking("Say ok to", CALLS) | {"run_id": f"r{number}"})
        ended = [await finished(client, f"r{n}", seconds=180) for n, client in enumerate(clients)]
        waited = [ms for n, client in enumerate(clients) for ms in await waits(client, f"r{n}")]
    assert {run["status"] for run in ended} == {"completed"}
    assert bool(waited) == ("MODELS_SMALL_REQUESTS_PER_MINUTE" in settings)
    arrivals = await provider.arrivals("Say ok to")
    refused = sum(arrival.refused for arrival in arrivals)
    assert len(arrivals) == RUNS * CALLS + refused
    return refused


async def waits(client: JsonClient, run_id: str) -> list[int]:
    nodes = (await client.trace(run_id))["snapshot"]["nodes"].values()
    found = [node["metadata"].get("waited_for_model_ms") for node in nodes]
    return [ms for ms in found if ms is not None]


async def test_calls_of_two_services_wait_instead_of_being_refused(
    database_url: str, provider: FakeProvider
) -> None:
    """No one of sixty-four concurrent calls exceeds the limit, and the traces show the waits."""
    assert await refused_of(provider, database_url, LIMITED) == 0


@pytest.mark.proof
async def test_without_a_limit_the_provider_refuses(
    database_url: str, provider: FakeProvider
) -> None:
    """The same load exceeds the limit of the provider, so the test above is meaningful."""
    assert await refused_of(provider, database_url, {}, per_second=3) > 0


async def test_a_refusal_pauses_the_model_for_all_services(
    database_url: str, provider: FakeProvider
) -> None:
    """A call of another service waits for the time that the provider named."""
    busy = Step(status=429, headers={"retry-after": "3600"})
    await provider.script("First", [busy])
    settings = {**model_settings(provider.openai_url), **LIMITED}
    async with (
        ServiceProcess(database_url, settings=settings, name="one") as one,
        ServiceProcess(database_url, settings=settings, name="other") as other,
        one.client() as first,
        other.client() as second,
        open_oracle(database_url) as oracle,
    ):
        await first.post_run(asking("First", 1) | {"run_id": "a"})
        paused = "SELECT count(*) FROM provider_limits WHERE refilled_at > now()"
        await eventually(lambda: oracle.value(paused))
        await second.post_run(asking("Second", 1) | {"run_id": "b"})
        await eventually(lambda: oracle.value("SELECT count(*) FROM provider_turns"))
        asked_meanwhile = await provider.arrivals("Second")
        await oracle.rows("UPDATE provider_limits SET refilled_at = now()")
        assert (await finished(second, "b"))["status"] == "completed"

    assert asked_meanwhile == []
    assert len(await provider.arrivals("Second")) == 1


@pytest.mark.parametrize("how", ["cancel", "max_seconds"])
async def test_a_stop_ends_the_wait_for_a_turn(
    database_url: str, provider: FakeProvider, how: str
) -> None:
    """The call's slot would never come, and the waiting request is never sent."""
    settings = {**model_settings(provider.openai_url), "MODELS_SMALL_REQUESTS_PER_MINUTE": "1"}
    async with (
        ServiceProcess(database_url, settings=settings) as service,
        service.client() as client,
        open_oracle(database_url) as oracle,
    ):
        budget = {"max_seconds": 3} if how == "max_seconds" else {}
        await client.post_run(asking("Wait", 3) | {"run_id": "a", "budget": budget})
        await provider.wait_for_arrivals(1, "Wait", ended=True)
        await oracle.rows("UPDATE provider_limits SET refilled_at = now() + interval '1 day'")
        if how == "cancel":
            await client.cancel_run("a")
        ended = await finished(client, "a")
        waited = await waits(client, "a")

    assert ended["status"] == ("cancelled" if how == "cancel" else "halted")
    assert len(waited) == 2
    assert len(await provider.arrivals("Wait")) == 1
