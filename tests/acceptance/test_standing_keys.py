"""A standing key opens external runs, whose calls stay within its budgets on all processes."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import httpx
import pytest

from bench.budget_race import settings_of
from tests.support.external import QUICK_RECOVERY
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess
from tests.support.standing import Holder, create_key
from tests.support.stores import Oracle, eventually, open_oracle
from tests.support.tenants import OPERATOR_KEY

CENT = Decimal("0.01")
"""Cost of 100 output tokens; the input is free."""

OPERATOR = {"Authorization": f"Bearer {OPERATOR_KEY}"}


@dataclass(frozen=True)
class Pair:
    """Two processes of the service, a client of each, and their database."""

    first: ServiceProcess
    second: ServiceProcess
    of_first: httpx.AsyncClient
    of_second: httpx.AsyncClient
    oracle: Oracle

    @property
    def clients(self) -> tuple[httpx.AsyncClient, httpx.AsyncClient]:
        """The clients of both processes."""
        return self.of_first, self.of_second

    async def key(self, **fields: Any) -> Holder:
        """Return the holder of a new standing key."""
        return await create_key(self.of_first, OPERATOR_KEY, **fields)

    async def runs(self) -> list[Mapping[str, Any]]:
        """Return the runs of the tenant, oldest first."""
        listed = await self.of_second.get("/runs", headers=OPERATOR)
        return list(reversed(listed.raise_for_status().json()["runs"]))


@asynccontextmanager
async def pair_of(database_url: str, provider: FakeProvider) -> AsyncIterator[Pair]:
    settings = {
        **settings_of(provider),
        **QUICK_RECOVERY,
        "AUTH_BOOTSTRAP_KEY": OPERATOR_KEY,
    }
    async with (
        ServiceProcess(database_url, settings=settings, name="first") as first,
        ServiceProcess(database_url, settings=settings, name="second") as second,
        first.http() as of_first,
        second.http() as of_second,
        open_oracle(database_url) as oracle,
    ):
        yield Pair(first, second, of_first, of_second, oracle)


@pytest.fixture
async def pair(database_url: str, provider: FakeProvider) -> AsyncIterator[Pair]:
    async with pair_of(database_url, provider) as pair:
        yield pair


@pytest.mark.req("cw/19.key")
async def test_parallel_calls_of_one_session_open_one_run_and_stay_within_the_day(
    pair: Pair, provider: FakeProvider
) -> None:
    """40 calls at two processes race for ten calls; both processes find the same run."""
    step = Step(text="short", delay_seconds=0.1, tokens_in=1, tokens_out=100)
    await provider.script("RACE", [step], repeat_last=True)
    holder = await pair.key(budget_per_day={"max_llm_calls": 10})

    async with asyncio.TaskGroup() as group:
        calls = [
            group.create_task(holder.at(pair.clients[n % 2]).ask("RACE")) for n in range(40)
        ]
    replies = [each.result() for each in calls]

    statuses = [each.status_code for each in replies]
    refused = next(each for each in replies if each.status_code == 400)
    assert set(statuses) == {200, 400}, {each.text for each in replies}
    assert statuses.count(200) == await provider.count("RACE") == 10
    error = refused.json()["error"]
    assert "LLM call limit exceeded: 10 used, 1 requested, limit 10" in error["message"], error
    assert "budget of the key, day" in error["message"]
    (run,) = await pair.runs()
    assert (run["kind"], run["status"]) == ("external", "halted")
