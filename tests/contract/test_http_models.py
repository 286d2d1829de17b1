"""Callers use configured models only, and known prices wherever a quota limits cost."""

from collections.abc import Mapping
from typing import Any

import pytest

from caseworker.settings.models import ModelsSettings, SmallModelSettings
from tests.support.fake_provider.client import FakeProvider
from tests.support.graph_requests import fields
from tests.support.tenants import OPERATOR_KEY, Tenants, open_tenants

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def sections(running_provider: FakeProvider) -> Mapping[str, Any]:
    """Use a small model that has no known price."""
    small = SmallModelSettings(
        provider="openai", base_url=running_provider.openai_url, model="fake-small"
    )
    return {"models": ModelsSettings(small=small)}


def agent(**model: Any) -> dict[str, Any]:
    return {"name": "a", "prompt": {"system": "?"}, "model": {"stream": False, **model}}


def step(inner: dict[str, Any]) -> dict[str, Any]:
    return {"steps": [{"id": "s", "type": "agent", "data": {"agent": inner}}], "edges": []}


UNLISTED = {"name": "gpt-99-ultra"}
REQUESTS = {
    "run": (
        "/runs",
        {"kind": "agent", "agent": agent(**UNLISTED), "input": "?"},
        "agent.model.name",
    ),
    "fallback": (
        "/runs",
        {"kind": "agent", "agent": agent(fallbacks=["fake-small", "x"]), "input": "?"},
        "agent.model.fallbacks.1",
    ),
    "agent as a tool": (
        "/runs",
        {
            "kind": "agent",
            "agent": {**agent(), "tools": [{"agent": {**agent(**UNLISTED), "name": "b"}}]},
            "input": "?",
        },
        "agent.tools.0.agent.model.name",
    ),
    "graph": (
        "/runs",
        {"kind": "graph", "graph": step(agent(**UNLISTED))},
        "graph.steps.0.data.agent.model.name",
    ),
    "thread": ("/threads", {"agent": agent(**UNLISTED)}, "agent.model.name"),
    "registered agent": ("/agents", {"agent": agent(**UNLISTED)}, "agent.model.name"),
    "tier without a model": (
        "/runs",
        {"kind": "agent", "agent": agent(name="fake-small", tier="big"), "input": "?"},
        "agent.model.tier",
    ),
}


@pytest.mark.parametrize(("path", "body", "field"), REQUESTS.values(), ids=REQUESTS)
async def test_a_model_that_is_not_configured_is_422(
    tenants: Tenants, path: str, body: dict[str, Any], field: str
) -> None:
    """Every route that names a model reports the place."""
    assert fields(await tenants.ask("a", "POST", path, body)) == [field]


async def test_unlisted_models_are_accepted_where_the_operator_allows_them(
    database_url: str,
) -> None:
    """The setting models.allow_unlisted allows them."""
    models = ModelsSettings(allow_unlisted=True)
    async with open_tenants(database_url, models=models) as tenants:
        body = {"kind": "agent", "agent": agent(**UNLISTED), "input": "?"}
        assert (await tenants.ask("a", "POST", "/runs", body)).status_code == 202


@pytest.mark.parametrize("limits", [{"max_cost_usd_per_day": 20}, {"max_cost_usd_per_month": 20}])
async def test_a_quota_on_cost_refuses_calls_of_unknown_price(
    tenants: Tenants, limits: dict[str, Any]
) -> None:
    """The configured model without a price is used without a quota, and halts with one."""
    operator = {"Authorization": f"Bearer {OPERATOR_KEY}"}
    tenant = f"limited-{'-'.join(limits).replace('_', '-')}"
    await tenants.client.put(f"/quotas/{tenant}", json=limits, headers=operator)
    body = {"kind": "agent", "agent": agent(name="fake-small"), "input": "hello"}

    free = (await tenants.ask("free", "POST", "/runs", body, prefer="wait=30")).json()
    limited = (await tenants.ask(tenant, "POST", "/runs", body, prefer="wait=30")).json()

    assert free["status"] == "completed", free
    assert (limited["status"], limited["stop"]["dimension"]) == ("halted", "cost_usd")
