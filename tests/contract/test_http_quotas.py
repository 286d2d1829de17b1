"""Quotas over HTTP: who may see and set them, and how a refused request is told."""

from collections.abc import AsyncIterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import httpx
import pytest

from app.access.authentication import Authentication
from app.access.caller import OPERATOR, Scope
from app.access.keys import Keys
from app.runs.errors import QueueFullError
from app.runs.ports import Accepted
from app.runs.quotas import QuotaExceededError, RateState
from app.runs.run import NewRun
from tests.support.memory_api import client_of, memory_api
from tests.support.memory_keys import MemoryKeys
from tests.support.memory_runs import MemoryRuns
from tests.support.threads import ThreadClient

BOOTSTRAP = "operator-" + "7" * 32
RATE = RateState(limit=60, remaining=0, reset_seconds=7)
CASE = {"input": "2+2?"}


@pytest.fixture
def keys() -> MemoryKeys:
    return MemoryKeys()


@pytest.fixture
async def client(keys: MemoryKeys) -> AsyncIterator[httpx.AsyncClient]:
    app = memory_api(keys=keys, authentication=Authentication(keys, bootstrap_key=BOOTSTRAP))
    async with client_of(app) as client:
        client.headers["Authorization"] = f"Bearer {BOOTSTRAP}"
        yield client


async def test_the_operator_gives_a_tenant_a_quota_and_takes_it_back(
    client: httpx.AsyncClient,
) -> None:
    """What is left out is unlimited; without one of its own a tenant has the usual one."""
    sent = {"max_running": 3, "max_cost_usd_per_day": 4.5}
    put = await client.put("/quotas/a", json=sent)
    found = (await client.get("/quotas/a")).json()
    gone = await client.delete("/quotas/a")
    usual = (await client.get("/quotas/a")).json()

    assert (put.status_code, gone.status_code) == (200, 204)
    assert {name: found[name] for name in sent} == sent
    assert (found["max_queued"], found["is_default"], usual["is_default"]) == (None, False, True)
    assert usual["max_running"] is None


async def test_a_tenant_sees_its_own_quota_and_changes_none(
    client: httpx.AsyncClient, keys: MemoryKeys
) -> None:
    """Not even its admins do."""
    scopes = frozenset({Scope.ADMIN})
    admin = await Keys(keys).create(OPERATOR, name="robot", scopes=scopes, tenant="a")
    client.headers["Authorization"] = f"Bearer {admin.secret}"

    assert (await client.get("/quotas/a")).status_code == 200
    assert (await client.get("/quotas")).json()["tenant"] == "a"
    for refused in (
        await client.get("/quotas/b"),
        await client.put("/quotas/a", json={}),
        await client.delete("/quotas/a"),
    ):
        assert refused.status_code == 403
        assert refused.json()["type"].endswith("tenant-refused")


@pytest.mark.parametrize("value", [-1, 1.5, True, "3"])
async def test_a_limit_is_a_whole_number(client: httpx.AsyncClient, value: Any) -> None:
    """The field at fault is named."""
    refused = await client.put("/quotas/a", json={"max_running": value})

    assert refused.status_code == 422
    assert [error["field"] for error in refused.json()["errors"]] == ["max_running"]


async def test_a_refused_run_is_told_how_the_quota_stands() -> None:
    """With the time to come back, and the rate if there is one."""

    class UsedUp(MemoryRuns):
        async def accept(self, new: NewRun, *, worker_id: str | None) -> Accepted:
            raise QuotaExceededError(
                "cost_usd_today",
                used=Decimal("4.10"),
                reserved=Decimal("0.9"),
                requested=Decimal("0.5"),
                limit=Decimal(5),
                retry_after_seconds=90,
                rate=RATE,
            )

    async with client_of(memory_api(UsedUp())) as client:
        refused = await client.post("/runs", json=CASE)

    assert refused.status_code == 429
    assert refused.json()["quota"] == {
        "dimension": "cost_usd_today",
        "used": 4.1,
        "reserved": 0.9,
        "requested": 0.5,
        "limit": 5,
    }
    assert refused.headers["retry-after"] == "90"
    assert refused.headers["ratelimit"] == '"runs";r=0;t=7'
    assert refused.headers["ratelimit-policy"] == '"runs";q=60;w=60'


async def test_an_accepted_run_says_what_is_left_of_the_rate() -> None:
    """Only where it is limited."""

    class Limited(MemoryRuns):
        async def accept(self, new: NewRun, *, worker_id: str | None) -> Accepted:
            return replace(await super().accept(new, worker_id=worker_id), rate=RATE)

    async with client_of(memory_api(Limited())) as client:
        await client.put("/schedules/daily", json={"cron": "0 6 * * *", "run": CASE})
        thread = await ThreadClient.begin(client, "talk")
        limited = (
            await client.post("/runs", json=CASE),
            await client.post("/schedules/daily/run"),
            await thread.send(content="2+2?"),
        )
    async with client_of(memory_api()) as client:
        free = await client.post("/runs", json=CASE)

    for accepted in limited:
        assert accepted.status_code == 202
        assert accepted.headers["ratelimit"] == '"runs";r=0;t=7'
    assert "ratelimit" not in free.headers


async def test_a_full_queue_and_a_repeated_request_say_what_is_left_of_the_rate() -> None:
    """With the time to come back, as a queue that is full always tells it."""

    class Full(MemoryRuns):
        async def accept(self, new: NewRun, *, worker_id: str | None) -> Accepted:
            if new.key.run_id == "refused":
                raise QueueFullError(RATE)
            return replace(await super().accept(new, worker_id=worker_id), rate=RATE)

    async with client_of(memory_api(Full())) as client:
        refused = await client.post("/runs", json=CASE | {"run_id": "refused"})
        await client.post("/runs", json=CASE | {"run_id": "case-1"})
        repeated = await client.post("/runs", json=CASE | {"run_id": "case-1"})

    assert (refused.status_code, repeated.status_code) == (429, 200)
    assert refused.json()["type"].endswith("queue-full")
    assert int(refused.headers["retry-after"]) > 0
    for answer in (refused, repeated):
        assert answer.headers["ratelimit"] == '"runs";r=0;t=7'
        assert answer.headers["ratelimit-policy"] == '"runs";q=60;w=60'


async def test_priority_and_concurrency_key_come_back_with_the_run() -> None:
    """A limit without a key is refused."""
    async with client_of(memory_api()) as client:
        sent = {"priority": 7, "concurrency_key": "repo 1", "concurrency_limit": 2}
        run = (await client.post("/runs", json=CASE | sent)).json()
        refused = await client.post("/runs", json=CASE | {"concurrency_limit": 2})

    assert (run["priority"], run["concurrency_key"]) == (7, "repo 1")
    assert refused.status_code == 422
