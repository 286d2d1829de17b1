"""Calls of several processes share the quota of their tenant."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from tests.support.external import start
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.pairs import Pair, counted, has_failed
from tests.support.stores import eventually

MOST_TOKENS = 1000
AMOUNTS = "SELECT used_cost_usd, reserved_cost_usd FROM accounts"

pytestmark = pytest.mark.req("cw/3.accounts")


class QuotaPair(Pair):
    """Two processes whose tenant has a quota."""

    async def limit(self, **limits: float) -> None:
        """Set the quota of the tenant."""
        (await self.of_first.put("/quotas/default", json=limits)).raise_for_status()

    async def use(self) -> dict[str, Any]:
        """Return the usage of the quota."""
        answer = (await self.of_second.get("/quotas")).raise_for_status().json()
        return dict(answer["use"])


@pytest.fixture
async def pair(database_url: str, provider: FakeProvider) -> AsyncIterator[QuotaPair]:
    async with QuotaPair.of(database_url, provider) as pair:
        yield pair


@pytest.mark.parametrize(("tokens", "made"), [(100, 10), (45, 20)])
async def test_parallel_calls_of_two_processes_stay_within_a_quota(
    pair: QuotaPair, provider: FakeProvider, tokens: int, made: int
) -> None:
    """40 calls of at most a cent race for ten cents; calls that use less let more calls fit."""
    step = Step(text="short", delay_seconds=0.1, tokens_in=1, tokens_out=tokens)
    await provider.script("RACE", [step], repeat_last=True)
    await pair.limit(max_cost_usd_per_day=0.10)
    runs = [await start(http) for http in (pair.of_first, pair.of_second)]

    async with asyncio.TaskGroup() as group:
        calls = [
            group.create_task(runs[n % 2].ask("RACE", max_completion_tokens=100)) for n in range(40)
        ]
    statuses = [each.result().status_code for each in calls]

    _, spent = await counted(provider, "RACE")
    assert statuses.count(200) == await provider.count("RACE") >= made
    assert Decimal("0.09") < spent <= Decimal("0.10")
    for run in runs:
        ended = await run.ended()
        stop = ended["stop"]
        assert (ended["status"], stop["kind"], stop["dimension"]) == (
            "halted",
            "budget",
            "cost_usd",
        )
        assert stop["scope"] == "quota of the tenant, day"
        assert stop["resets_at"].endswith("T00:00:00Z")
    use = await pair.use()
    assert use["cost_usd_today"] == pytest.approx(float(spent))
    assert use["reserved_usd_today"] == 0


async def test_a_call_waits_for_the_calls_of_another_process_and_holds_nothing(
    pair: QuotaPair, provider: FakeProvider
) -> None:
    """The settlement of the other call wakes it."""
    await provider.script("FIRST", [Step(hang=True, tokens_out=10)])
    await pair.limit(max_cost_usd_per_day=0.10)
    first = await start(pair.of_first)
    second = await start(pair.of_second, budget={"max_cost_usd": 1})
    async with asyncio.TaskGroup() as group:
        holding = group.create_task(first.ask("FIRST", max_completion_tokens=1000))
        await provider.wait_for_arrivals(1, "FIRST")
        waiting = group.create_task(second.ask("SECOND", max_completion_tokens=100))
        awaited = "SELECT count(*) > 0 FROM accounts WHERE awaited_until IS NOT NULL"
        await eventually(lambda: pair.oracle.value(awaited))
        holds = await pair.oracle.rows("SELECT run_id, cost_usd FROM account_holds")
        beat = (await pair.of_second.post(f"/runs/{second.run_id}/heartbeat")).json()
        assert await provider.count("SECOND") == 0
        await provider.release()

    assert [each.result().status_code for each in (holding, waiting)] == [200, 200]
    assert holds == [{"run_id": first.run_id, "cost_usd": Decimal("0.10")}]
    assert beat["left"]["cost_usd"] == 1
    trace = (await second.get("/trace")).json()["snapshot"]["nodes"].values()
    assert [node["metadata"]["waited_ms"] > 0 for node in trace if node["kind"] == "llm"] == [True]


async def test_a_cancel_ends_the_wait_for_a_quota(pair: QuotaPair, provider: FakeProvider) -> None:
    """The call is never made, and the run ends as cancelled."""
    await provider.script("FIRST", [Step(hang=True, tokens_out=10)])
    await pair.limit(max_cost_usd_per_day=0.10)
    first, second = [await start(http) for http in (pair.of_first, pair.of_second)]
    async with asyncio.TaskGroup() as group:
        holding = group.create_task(first.ask("FIRST", max_completion_tokens=1000))
        await provider.wait_for_arrivals(1, "FIRST")
        waiting = group.create_task(second.ask("SECOND", max_completion_tokens=100))
        awaited = "SELECT count(*) > 0 FROM accounts WHERE awaited_until IS NOT NULL"
        await eventually(lambda: pair.oracle.value(awaited))
        await pair.of_first.delete(f"/runs/{second.run_id}")
        run = await second.ended()
        await provider.release()

    assert holding.result().status_code == 200
    assert waiting.result().status_code >= 400
    assert run["status"] == "cancelled"
    assert await provider.count("SECOND") == 0


async def test_a_killed_process_leaves_no_reservation(
    pair: QuotaPair, provider: FakeProvider
) -> None:
    """The next owner settles the lost call at its maximum, which its run is charged, too."""
    await provider.script("LOST", [Step(hang=True), Step(tokens_out=20)])
    await pair.limit(max_cost_usd_per_day=0.50)
    run = await start(pair.of_first)
    async with asyncio.TaskGroup() as group:
        lost = group.create_task(has_failed(run.ask("LOST", max_completion_tokens=1000)))
        await provider.wait_for_arrivals(1, "LOST")
        held = await pair.oracle.rows(AMOUNTS)
        pair.first.child.kill()
    there = replace(run, http=pair.of_second)
    answer = await there.ask_until_owned("LOST")
    await there.finish({"output": "done"})
    ended = await there.ended()

    assert (lost.result(), answer.status_code) == (True, 200)
    assert held == [{"used_cost_usd": 0, "reserved_cost_usd": Decimal("0.10")}]
    assert ended["usage"]["cost_usd"] == pytest.approx(0.102)
    assert await pair.oracle.rows(AMOUNTS) == [
        {"used_cost_usd": Decimal("0.102"), "reserved_cost_usd": 0}
    ]
    assert await pair.oracle.rows("SELECT * FROM account_holds") == []


async def test_a_raised_quota_counts_for_the_next_call(
    pair: QuotaPair, provider: FakeProvider
) -> None:
    """The call reserves all its tokens, although the old quota had no room for them."""
    await provider.script("FIRST", [Step(hang=True)])
    await pair.limit(max_cost_usd_per_day=0.10)
    post = pair.of_first.post
    await post("/runs", json=one_call("FIRST"))
    await provider.wait_for_arrivals(1, "FIRST")
    waiting = (await post("/runs", json=one_call("SECOND"))).json()
    awaited = "SELECT count(*) > 0 FROM accounts WHERE awaited_until IS NOT NULL"
    await eventually(lambda: pair.oracle.value(awaited))

    await pair.limit(max_cost_usd_per_day=1)
    await post("/runs", json=one_call("THIRD"))
    await provider.wait_for_arrivals(1, "SECOND")
    await provider.wait_for_arrivals(1, "THIRD")

    (arrival,) = await provider.arrivals("THIRD", bodies=True)
    assert arrival.body is not None
    assert arrival.body["max_tokens"] == MOST_TOKENS
    assert waiting["status"] == "running"


def one_call(prompt: str) -> dict[str, Any]:
    """Return a run with one call of ten cents."""
    model = {"tier": "small", "max_output_tokens": MOST_TOKENS}
    step = {"id": "only", "type": "llm", "data": {"prompt": prompt, "model": model}}
    return {"kind": "graph", "graph": {"steps": [step], "edges": []}}
