"""A standing key's webhook is called when 70 and 90 % of a budget are spent, once for each."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from standardwebhooks.webhooks import Webhook

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.pairs import Pair
from tests.support.standing import create_key
from tests.support.stores import eventually
from tests.support.tenants import OPERATOR_KEY
from tests.support.webhook_receiver import Receiver, receiving

OPERATOR = {"Authorization": f"Bearer {OPERATOR_KEY}"}
SETTINGS = {
    "AUTH_BOOTSTRAP_KEY": OPERATOR_KEY,
    "WEBHOOKS_ALLOW_HTTP": "true",
    "WEBHOOKS_ALLOW_PRIVATE": "true",
}


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """Start a receiver of webhooks."""
    async with receiving() as opened:
        yield opened


@pytest.mark.req("cw/19.key")
@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.proof)])
async def test_each_threshold_is_announced_once_by_two_processes(
    database_url: str, provider: FakeProvider, receiver: Receiver, rounds: int
) -> None:
    """Parallel calls of two sessions spend their budgets, and 95 % of that of the day.

    The budget of the month, of which little is spent, is not announced.
    """
    await provider.script("SPENT", [Step(tokens_in=1, tokens_out=100)], repeat_last=True)
    async with Pair.of(database_url, provider, SETTINGS) as pair:
        created = await pair.of_first.post("/webhooks/secret", headers=OPERATOR)
        secret = created.raise_for_status().json()["secret"]
        for number in range(rounds):
            holder = await create_key(
                pair.of_first,
                OPERATOR_KEY,
                name="nightly",
                budget={"max_llm_calls": 10},
                budget_per_day={"max_cost_usd": 0.20},
                budget_per_month={"max_cost_usd": 100},
                webhook={"url": receiver.url},
            )
            async with asyncio.TaskGroup() as group:
                for call in range(19):
                    session = holder.at(pair.clients[call % 2]).named(f"session {call // 10}")
                    group.create_task(session.ask_until_owned("SPENT", max_completion_tokens=100))
            await eventually(lambda: pair.oracle.value("SELECT count(*) = 0 FROM account_holds"))
            stored = await pair.oracle.value("SELECT count(*) FROM webhook_deliveries")
            arrivals = await receiver.wait_for(6 * (number + 1))
            messages = [Webhook(secret).verify(each.body, each.headers) for each in arrivals[-6:]]

            assert stored == 6 * (number + 1)
            assert {each["type"] for each in messages} == {"account.threshold"}
            data = [each["data"] for each in messages]
            announced = sorted((d["account"], d["session"] or "", d["percent"]) for d in data)
            assert announced == [
                *(("day", "", percent) for percent in (70, 90)),
                *(("session", f"session {n}", percent) for n in (0, 1) for percent in (70, 90)),
            ]
            for each in data:
                assert each["key_id"] == holder.key["key_id"]
                assert each["key_name"] == "nightly"
                share = each["used"] / each["maximum"] * 100
                assert each["percent"] <= share + 1e-9
                assert (each["resets_at"] is None) == (each["account"] == "session")
                of_cost = each["account"] == "day"
                assert each["limit"] == ("max_cost_usd" if of_cost else "max_llm_calls")
        listed = await pair.of_second.get("/webhooks/deliveries", headers=OPERATOR)

    assert {each["type"] for each in listed.json()["deliveries"]} == {"account.threshold"}
    assert holder.key["webhook"] == {"url": receiver.url.partition("?")[0]}


@pytest.mark.req("cw/19.key")
async def test_a_webhook_of_a_key_needs_a_secret_and_an_allowed_url(
    database_url: str, provider: FakeProvider
) -> None:
    """Otherwise no message could be signed or sent."""
    body = {"kind": "agent", "budget": None, "budget_per_day": None}
    async with Pair.of(database_url, provider, SETTINGS) as pair:

        async def post(**fields: object) -> httpx.Response:
            return await pair.of_first.post("/keys", json={**body, **fields}, headers=OPERATOR)

        unsigned = await post(webhook={"url": "https://example.com/hook"})
        (await pair.of_first.post("/webhooks/secret", headers=OPERATOR)).raise_for_status()
        malformed = await post(webhook={"url": "ftp://example.com"})
        of_api_key = await post(kind="api", name="x", webhook={"url": "https://example.com"})
        allowed = await post(webhook={"url": "https://example.com/hook"})

    assert [each.status_code for each in (unsigned, malformed, of_api_key)] == [422, 422, 422]
    assert malformed.json()["errors"][0]["field"] == "webhook.url"
    assert allowed.status_code == 201
