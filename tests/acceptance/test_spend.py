"""The sums of GET /spend equal the counts of the provider, for every end of a run."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from tests.support.external import start
from tests.support.fake_provider.arrivals import Arrival
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.graph_documents import map_run
from tests.support.json_client import JsonClient
from tests.support.service import ServiceProcess, finished, model_settings
from tests.support.tenants import OPERATOR_KEY, open_tenants
from tests.support.usage_oracle import cost_of, settings_of_prices, tokens_of

WAIT = {"Prefer": "wait=60"}
CLERK = {"name": "clerk", "prompt": {"system": "Answer."}, "tools": []}
BY_NAME = {"kind": "agent", "agent": {"name": "clerk"}, "metadata": {"team": "b"}}
AMOUNTS = ("cost_usd", "cost_usd_estimated", "tokens", "llm_calls")


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    prices = settings_of_prices("MODELS_SMALL") | settings_of_prices("MODELS_BIG")
    return model_settings(running_provider.openai_url) | prices


async def run_to_its_end(http: httpx.AsyncClient, run_id: str, body: Mapping[str, Any]) -> None:
    posted = await http.post("/runs", json={**body, "run_id": run_id}, headers=WAIT)
    assert posted.status_code in (200, 202), posted.text


async def spend(http: httpx.AsyncClient, after: datetime, **query: str) -> dict[str, Any]:
    """Return the answer of ``GET /spend`` about the runs after a time."""
    answer = await http.get("/spend", params={**query, "after": after.isoformat()})
    return dict(answer.raise_for_status().json())


def amounts(items: Mapping[str, Any]) -> dict[str, Any]:
    return {name: items[name] for name in AMOUNTS}


def counts(arrivals: Sequence[Arrival]) -> dict[str, Any]:
    """Return the counts of the provider for requests, as amounts of ``GET /spend``."""
    return {
        "cost_usd": float(sum(map(cost_of, arrivals))),
        "cost_usd_estimated": 0,
        "tokens": sum(map(tokens_of, arrivals)),
        "llm_calls": len(arrivals),
    }


@pytest.fixture
async def http(service: ServiceProcess, provider: FakeProvider) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a service that knows the agent ``clerk``."""
    async with httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=90) as http:
        await http.post("/agents", json={"agent": CLERK})
        yield http


async def test_the_sums_equal_the_counts_of_the_provider(
    http: httpx.AsyncClient, client: JsonClient, provider: FakeProvider
) -> None:
    """A refused call is counted without tokens, and an imported one is not counted."""
    await provider.script("fail", [Step(status=400)])
    after = datetime.now(UTC)
    case = {"input": "What is 6 * 7?", "metadata": {"team": "a"}}
    await run_to_its_end(http, "case", case)
    await run_to_its_end(http, "agent", {**BY_NAME, "input": "Say ok."})
    await run_to_its_end(http, "failed", {**BY_NAME, "input": "Please fail."})
    await run_to_its_end(http, "graph", map_run("Say ok to ${default}.", 4, lanes=2))
    few = {"budget": {"max_llm_calls": 2}}
    await run_to_its_end(http, "halted", {**map_run("Say ${default}.", 4, lanes=2), **few})
    await run_to_its_end(http, "fork", {"from": {"run_id": "graph"}})
    parent = await start(http, run_id="parent", name="outside")
    child = await start(http, run_id="child", parent={"run_id": "parent"})
    for agent in (parent, child):
        assert (await agent.ask()).status_code == 200
    for agent in (child, parent):
        await agent.finish({"output": 1})
        await finished(client, agent.run_id)

    by_tenant = await spend(http, after, group_by="tenant", period="day")
    by_agent = await spend(http, after, group_by="agent", period="day")
    by_model = await spend(http, after, group_by="model", period="month")
    by_team = await spend(http, after, group_by="metadata.team")
    arrivals = await provider.arrivals()

    assert amounts(by_tenant["total"]) == pytest.approx(counts(arrivals))
    for summary in (by_tenant, by_agent, by_model, by_team):
        assert summary["total"] == by_tenant["total"]
        for name in AMOUNTS:
            in_all = sum(item[name] for item in summary["items"])
            assert in_all == pytest.approx(summary["total"][name]), name
    for item in by_model["items"]:
        of_model = [each for each in arrivals if each.model == item["key"]]
        assert amounts(item) == pytest.approx(counts(of_model)), item["key"]
    assert {item["key"]: item["runs"] for item in by_tenant["items"]} == {"default": 8}
    assert {item["key"]: item["runs"] for item in by_agent["items"]} == {
        "clerk": 2,
        "outside": 1,
        None: 5,
    }
    assert {item["key"]: item["runs"] for item in by_team["items"]} == {"a": 1, "b": 2, None: 5}
    assert all(len(item["period"]) == len("2026-11") for item in by_model["items"])


async def test_a_call_in_flight_is_estimated_until_its_reply_is_counted(
    http: httpx.AsyncClient, client: JsonClient, provider: FakeProvider
) -> None:
    """The estimate of a cancelled call stays, because its reply never arrives."""
    await provider.script("hold", [Step(hang=True)], repeat_last=True)
    after = datetime.now(UTC)
    for run_id in ("cancelled", "running"):
        body = {**BY_NAME, "run_id": run_id, "input": f"hold {run_id}"}
        await http.post("/runs", json=body)
        await provider.wait_for_arrivals(1, f"hold {run_id}")
    await http.delete("/runs/cancelled")
    cancelled = await finished(client, "cancelled")
    in_flight = (await spend(http, after, group_by="agent"))["total"]
    await provider.release()
    await finished(client, "running")
    by_agent = await spend(http, after, group_by="agent")
    total, (item,) = by_agent["total"], by_agent["items"]

    exact = counts(await provider.arrivals("hold running"))
    estimate = cancelled["usage"]
    assert in_flight["cost_usd_estimated"] > total["cost_usd_estimated"] > 0
    assert total["cost_usd_estimated"] == pytest.approx(estimate["cost_usd_estimated"])
    assert total["cost_usd"] - total["cost_usd_estimated"] == pytest.approx(exact["cost_usd"])
    assert total["tokens"] == exact["tokens"] + estimate["tokens_estimated"]
    assert total["llm_calls"] == 2
    assert (item["key"], item["runs"]) == ("clerk", 2)


async def test_other_tenants_and_ranges_are_left_out(database_url: str) -> None:
    """Only the operator sees all tenants, and only when it groups by tenant."""
    run = {"input": "2+2?"}
    async with open_tenants(database_url) as tenants:
        for tenant in ("a", "a", "b"):
            await tenants.ask(tenant, "POST", "/runs", run)
        operator = {"Authorization": f"Bearer {OPERATOR_KEY}"}

        async def runs(query: str, **headers: str) -> dict[str, int]:
            path = f"/spend?group_by={query}"
            if headers:
                found = await tenants.client.get(path, headers=headers)
            else:
                found = await tenants.ask("a", "GET", path)
            return {each["key"]: each["runs"] for each in found.json()["items"]}

        assert await runs("tenant") == {"a": 2}
        assert await runs("tenant", **operator) == {"a": 2, "b": 1}
        assert await runs("agent", **operator) == {}
        assert await runs("tenant&before=2020-01-01T00:00:00Z") == {}
        assert await runs("tenant&after=2020-01-01T00:00:00Z") == {"a": 2}
