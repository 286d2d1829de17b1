"""The sums of GET /spend equal the traces of all runs, whatever they are and however they ended."""

from collections import Counter
from typing import Any

import httpx
import pytest

from tests.support.external import start
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.graph_documents import map_run
from tests.support.json_client import JsonClient
from tests.support.service import ServiceProcess, finished, model_settings
from tests.support.tenants import OPERATOR_KEY, open_tenants
from tests.support.usage_oracle import settings_of_prices

WAIT = {"Prefer": "wait=60"}


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    prices = settings_of_prices("MODELS_SMALL") | settings_of_prices("MODELS_BIG")
    return model_settings(running_provider.openai_url) | prices


async def test_the_sums_equal_the_traces(
    service: ServiceProcess, client: JsonClient, provider: FakeProvider
) -> None:
    """Failed, halted, cancelled and running calls count; imported calls are free."""
    await provider.script("fail", [Step(status=400)])
    await provider.script("hold", [Step(hang=True)], repeat_last=True)
    agent = {"name": "clerk", "prompt": {"system": "Answer."}, "tools": []}
    async with httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=90) as http:

        async def run(body: dict[str, Any]) -> None:
            posted = await http.post("/runs", json=body, headers=WAIT)
            assert posted.status_code in (200, 202), posted.text

        await http.post("/agents", json={"agent": agent})
        await run({"run_id": "case", "input": "What is 6 * 7?", "metadata": {"team": "a"}})
        by_name = {"kind": "agent", "agent": {"name": "clerk"}, "metadata": {"team": "b"}}
        await run({**by_name, "run_id": "agent", "input": "Say ok."})
        await run({**by_name, "run_id": "failed", "input": "Please fail."})
        await run({**map_run("Say ok to ${default}.", 4, lanes=2), "run_id": "graph"})
        few = {"budget": {"max_llm_calls": 2}}
        await run({**map_run("Say ${default}.", 4, lanes=2), "run_id": "halted", **few})
        await run({"from": {"run_id": "graph"}, "run_id": "fork"})
        for name in ("cancelled", "running"):
            await http.post("/runs", json={**by_name, "run_id": name, "input": f"hold {name}"})
            await provider.wait_for_arrivals(1, f"hold {name}")
        await http.delete("/runs/cancelled")
        parent = await start(http, run_id="parent", name="outside")
        child = await start(http, run_id="child", parent={"run_id": "parent"})
        for each in (parent, child):
            assert (await each.ask()).status_code == 200
        for each in (child, parent):
            await each.finish({"output": 1})
            await finished(client, each.run_id)
        await finished(client, "cancelled")
        in_flight = (await http.get("/spend", params={"group_by": "agent"})).json()["total"]
        await provider.release()
        await finished(client, "running")

        names = [each["run_id"] for each in (await client.list_runs())["runs"]]
        traces = [(await client.trace(name))["snapshot"] for name in names]
        sums = [trace["aggregates"] for trace in traces]
        groups = ("tenant", "day"), ("agent", "day"), ("model", "month"), ("metadata.team", None)
        found = {}
        for name, period in groups:
            asked = {"group_by": name} | ({} if period is None else {"period": period})
            found[name] = (await http.get("/spend", params=asked)).json()

    assert len(names) == 10
    total = found["agent"]["total"]
    assert in_flight["cost_usd_estimated"] > total["cost_usd_estimated"] > 0
    assert total["cost_usd"] == pytest.approx(sum(each["total_cost_usd"] for each in sums))
    tokens = (each["total_tokens_in"] + each["total_tokens_out"] for each in sums)
    assert total["tokens"] == sum(tokens)
    by_model = Counter[str | None]()
    for node in (node for each in traces for node in each["nodes"].values()):
        by_model[node["model"]] += node["cost_usd"]
    models = {each["key"]: each["cost_usd"] for each in found["model"]["items"]}
    assert models == pytest.approx({name: by_model[name] for name in models})
    for each in found.values():
        assert each["total"] == total
        for name in ("cost_usd", "cost_usd_estimated", "tokens", "llm_calls"):
            assert sum(item[name] for item in each["items"]) == pytest.approx(total[name])
    runs = {
        name: {item["key"]: item["runs"] for item in each["items"]} for name, each in found.items()
    }
    assert runs["tenant"] == {"default": 10}
    assert runs["agent"] == {"clerk": 4, "outside": 1, None: 5}
    assert runs["metadata.team"] == {"a": 1, "b": 4, None: 5}
    assert all(len(item["period"]) == len("2026-11") for item in found["model"]["items"])


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
