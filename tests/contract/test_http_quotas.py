"""Tests who can read and set quotas over HTTP, and the answers to refused requests."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import httpx
import pytest
import pytest_asyncio

from caseworker.platform.caller import OPERATOR, KeyScope
from caseworker.runs.quotas import Quota
from tests.support.api import Api, client_of
from tests.support.limits import store_limits
from tests.support.runs import run_service
from tests.support.threads import ThreadClient

pytestmark = pytest.mark.asyncio(loop_scope="module")


BOOTSTRAP = "operator-" + "7" * 32
RATE = re.compile(r'"runs";r=\d+;t=\d+')
CASE = {"input": "2+2?"}


@pytest_asyncio.fixture(loop_scope="module")
async def operator(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(api.app(bootstrap_key=BOOTSTRAP)) as operator:
        operator.headers["Authorization"] = f"Bearer {BOOTSTRAP}"
        yield operator


async def test_the_operator_gives_a_tenant_a_quota_and_takes_it_back(
    operator: httpx.AsyncClient,
) -> None:
    """Omitted limits are unlimited, and a tenant without its own quota gets the default."""
    sent = {"max_running": 3, "max_cost_usd_per_day": 4.5}
    put = await operator.put("/quotas/a", json=sent)
    found = (await operator.get("/quotas/a")).json()
    gone = await operator.delete("/quotas/a")
    usual = (await operator.get("/quotas/a")).json()

    assert (put.status_code, gone.status_code) == (200, 204)
    assert {name: found[name] for name in sent} == sent
    assert (found["max_queued"], found["is_default"], usual["is_default"]) == (None, False, True)
    assert usual["max_running"] is None


async def test_a_tenant_sees_its_own_quota_and_changes_none(
    operator: httpx.AsyncClient, api: Api
) -> None:
    """The tenant's admins cannot change it either."""
    scopes = frozenset({KeyScope.ADMIN})
    admin = await api.keys.create(OPERATOR, name="robot", scopes=scopes, tenant="a")
    operator.headers["Authorization"] = f"Bearer {admin.secret}"

    assert (await operator.get("/quotas/a")).status_code == 200
    assert (await operator.get("/quotas")).json()["tenant"] == "a"
    for refused in (
        await operator.get("/quotas/b"),
        await operator.put("/quotas/a", json={}),
        await operator.delete("/quotas/a"),
    ):
        assert refused.status_code == 403
        assert refused.json()["type"].endswith("tenant-refused")


@pytest.mark.parametrize("value", [-1, 1.5, True, "3"])
async def test_a_limit_is_a_whole_number(operator: httpx.AsyncClient, value: Any) -> None:
    """The error names the field."""
    refused = await operator.put("/quotas/a", json={"max_running": value})

    assert refused.status_code == 422
    assert [error["field"] for error in refused.json()["errors"]] == ["max_running"]


async def test_a_refused_run_is_told_how_the_quota_stands(
    client: httpx.AsyncClient, api: Api
) -> None:
    """The refusal gives the retry delay and, if the quota has one, the rate limit."""
    quota = Quota(max_runs_per_minute=60, max_cost_usd_per_day=Decimal(1))
    await api.quotas.put("default", quota)
    accepted = await client.post("/runs", json=CASE)
    await api.quotas.put("default", replace(quota, max_cost_usd_per_day=Decimal(0)))
    refused = await client.post("/runs", json=CASE)

    assert (accepted.status_code, refused.status_code) == (202, 429)
    assert refused.json()["quota"] == {
        "dimension": "cost_usd_today",
        "used": 0.0,
        "reserved": 0.0,
        "requested": 0,
        "limit": 0.0,
    }
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    assert RATE.fullmatch(refused.headers["ratelimit"])
    assert refused.headers["ratelimit-policy"] == '"runs";q=60;w=60'


async def test_an_accepted_run_says_what_is_left_of_the_rate(
    client: httpx.AsyncClient, api: Api
) -> None:
    """The headers are absent for a tenant without a rate limit."""
    free = await client.post("/runs", json=CASE)
    await client.put("/schedules/daily", json={"cron": "0 6 * * *", "run": CASE})
    thread = await ThreadClient.begin(client, "talk")
    await api.quotas.put("default", Quota(max_runs_per_minute=1000))
    limited = (
        await client.post("/runs", json=CASE),
        await client.post("/schedules/daily/run"),
        await thread.send(content="2+2?"),
    )

    for accepted in limited:
        assert accepted.status_code == 202
        assert RATE.fullmatch(accepted.headers["ratelimit"])
    assert "ratelimit" not in free.headers


async def test_a_full_queue_and_a_repeated_request_say_what_is_left_of_the_rate(api: Api) -> None:
    """Both answers have the rate headers; the full queue also gives a retry delay."""
    await api.quotas.put("default", Quota(max_runs_per_minute=60))
    store = replace(api.store, limits=store_limits(max_queued=1))
    async with client_of(api.app(run_service(store))) as client:
        await client.post("/runs", json=CASE | {"run_id": "case-1"})
        refused = await client.post("/runs", json=CASE | {"run_id": "refused"})
        repeated = await client.post("/runs", json=CASE | {"run_id": "case-1"})

    assert (refused.status_code, repeated.status_code) == (429, 200)
    assert refused.json()["type"].endswith("queue-full")
    assert int(refused.headers["retry-after"]) > 0
    for answer in (refused, repeated):
        assert RATE.fullmatch(answer.headers["ratelimit"])
        assert answer.headers["ratelimit-policy"] == '"runs";q=60;w=60'


async def test_priority_and_concurrency_key_come_back_with_the_run(
    client: httpx.AsyncClient,
) -> None:
    """A limit without a key is refused."""
    sent = {"priority": 7, "concurrency_key": "repo 1", "concurrency_limit": 2}
    run = (await client.post("/runs", json=CASE | sent)).json()
    refused = await client.post("/runs", json=CASE | {"concurrency_limit": 2})

    assert (run["priority"], run["concurrency_key"]) == (7, "repo 1")
    assert refused.status_code == 422


GRAPH = {"steps": [{"id": "r", "type": "llm", "data": {"prompt": "hello"}}], "edges": []}


async def test_a_full_quota_of_storage_refuses_what_is_new_and_says_what_to_delete(
    client: httpx.AsyncClient, api: Api
) -> None:
    """Runs, messages, graphs, agents, threads and schedules are refused; accepted runs continue."""
    accepted = await client.post("/runs", json=CASE | {"run_id": "accepted"})
    thread = await ThreadClient.begin(client, "talk")
    await api.quotas.put("default", Quota(max_stored_bytes=1))
    agent = {"name": "a", "prompt": {"system": "Help."}}
    refused = {
        "runs": await client.post("/runs", json=CASE),
        "messages": await thread.send(content="2+2?"),
        "graphs": await client.post("/graphs", json={"name": "g", "graph": GRAPH}),
        "agents": await client.post("/agents", json={"agent": agent}),
        "threads": await client.post("/threads", json={"agent": agent}),
        "schedules": await client.put("/schedules/d", json={"cron": "0 6 * * *", "run": CASE}),
    }
    cancelled = await client.delete("/runs/accepted")

    for what, answer in refused.items():
        assert answer.status_code == 429, what
        problem = answer.json()
        assert problem["type"].endswith("quota-exceeded")
        assert "DELETE /runs/{run_id}/record" in problem["detail"]
        assert (problem["quota"]["dimension"], problem["quota"]["limit"]) == ("stored_bytes", 1)
        assert problem["quota"]["used"] > 1
        assert problem["quota"]["requested"] > 0
        assert int(answer.headers["retry-after"]) > 0
    assert (accepted.status_code, cancelled.status_code) == (202, 202)
    assert (await client.get("/runs/accepted")).json()["status"] == "cancelled"
    assert (await client.get("/threads/talk/messages")).json()["messages"] == []


async def test_deleting_what_the_refusal_names_lets_more_in(
    client: httpx.AsyncClient, api: Api
) -> None:
    """Deleting a thread or a version frees quota, and the quota warns before it is exhausted."""
    await api.quotas.put("default", Quota(max_threads=1, max_definitions=1))
    await ThreadClient.begin(client, "talk")
    await client.post("/graphs", json={"name": "g", "graph": GRAPH})
    quota = (await client.get("/quotas")).json()
    full = (
        await client.post("/threads", json={"agent": {"name": "a", "prompt": {"system": "x"}}}),
        await client.post("/graphs", json={"name": "g2", "graph": GRAPH}),
    )
    await client.delete("/threads/talk")
    await client.delete("/graphs/g/versions/1")
    await ThreadClient.begin(client, "again")
    registered = await client.post("/graphs", json={"name": "g2", "graph": GRAPH})

    assert quota["nearly_full"] == ["definitions", "threads"]
    assert (quota["use"]["definitions"], quota["use"]["threads"]) == (1, 1)
    assert [answer.status_code for answer in full] == [429, 429]
    assert "DELETE /threads/{thread_id}" in full[0].json()["detail"]
    assert "DELETE /graphs/{name}/versions/{version}" in full[1].json()["detail"]
    assert registered.status_code == 201


async def test_a_tenant_with_keys_has_limits_of_storage_by_default(
    operator: httpx.AsyncClient,
) -> None:
    """The tenant of callers without keys has none."""
    names = ("max_stored_bytes", "max_definitions", "max_threads")
    with_keys = (await operator.get("/quotas/a")).json()
    without = (await operator.get("/quotas/default")).json()

    assert all(with_keys[name] > 0 for name in names)
    assert [without[name] for name in names] == [None] * 3
