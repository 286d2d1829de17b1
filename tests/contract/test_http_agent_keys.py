"""Standing keys are created, listed, rotated and revoked like API keys."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from caseworker.features.access.authentication import Authentication
from caseworker.features.access.keys import KeyNotFoundError
from caseworker.platform.caller import LOCAL, OPERATOR, KeyScope
from tests.support.api import Api, client_of
from tests.support.limits import api_limits

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.req("cw/19.key")]

BOOTSTRAP = "operator-" + "7" * 32
AGENT = {"kind": "agent", "budget": {"max_cost_usd": 1}, "budget_per_day": None}


@pytest_asyncio.fixture(loop_scope="module")
async def client(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """Return the operator."""
    async with client_of(api.app(bootstrap_key=BOOTSTRAP)) as client:
        client.headers["Authorization"] = f"Bearer {BOOTSTRAP}"
        yield client


async def test_a_standing_key_states_its_budgets_and_its_limits(client: httpx.AsyncClient) -> None:
    """Only the answer to its creation has the secret."""
    created = await client.post(
        "/keys",
        json={
            **AGENT,
            "name": "laptops",
            "budget_per_day": {"max_cost_usd": 0.1, "max_llm_calls": 9},
            "budget_per_month": {"max_tokens": 10_000},
            "models": {"*": "small"},
            "idle_seconds": 30,
            "max_sessions_per_hour": 5,
            "max_open_sessions": 2,
        },
    )
    key = created.json()
    listed = (await client.get("/keys")).json()["keys"][0]

    assert created.status_code == 201, created.text
    assert key.pop("key").startswith(f"cwa_{key['key_id']}_")
    assert listed == key
    assert (key["kind"], key["scopes"], key["made_by"]) == ("agent", ["read"], None)
    assert key["budget"] == {"max_cost_usd": 1}
    assert key["budget_per_day"] == {"max_cost_usd": 0.1, "max_llm_calls": 9}
    assert key["models"] == {"*": "small"}
    limits = ("idle_seconds", "max_sessions_per_hour", "max_open_sessions")
    assert [key[name] for name in limits] == [30, 5, 2]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"kind": "agent", "budget": None},
            "budget_per_day: This field is required; null is unlimited.",
        ),
        (
            {"kind": "agent", "budget_per_day": None},
            "budget: This field is required; null is unlimited.",
        ),
        (
            {**AGENT, "budget_per_day": {"max_steps": 1}},
            "budget_per_day: Accounts do not count max_steps. They count max_cost_usd, max_tokens, "
            "max_llm_calls, max_api_calls.",
        ),
        ({**AGENT, "scopes": ["run"]}, "scopes: A key of kind agent has no scopes"),
        ({"name": "x", "budget": None}, "budget: Only keys of kind agent have this field."),
        ({"name": "x", "max_open_sessions": 1}, "max_open_sessions: Only keys of"),
        ({}, "name: This field is required."),
        ({**AGENT, "idle_seconds": 9}, "idle_seconds: This must be at least 10."),
    ],
)
async def test_an_invalid_key_is_refused_by_name(
    client: httpx.AsyncClient, body: dict[str, Any], message: str
) -> None:
    """A budget has only limits that accounts count, and the one of a day is required."""
    answer = await client.post("/keys", json=body)

    assert answer.status_code == 422, answer.text
    errors = [f"{each['field']}: {each['message']}" for each in answer.json()["errors"]]
    assert message in errors[0]


async def test_a_rotated_standing_key_is_one_with_the_same_terms(
    client: httpx.AsyncClient,
) -> None:
    """Both keys are listed with their budgets."""
    old = (await client.post("/keys", json=AGENT)).json()
    new = (await client.post(f"/keys/{old['key_id']}/rotate")).json()

    assert new["key"].startswith("cwa_")
    assert new["key_id"] != old["key_id"]
    for name in ("kind", "budget", "budget_per_day", "max_open_sessions"):
        assert new[name] == old[name]


async def test_a_standing_key_alone_does_not_close_an_open_service(api: Api) -> None:
    """Requests without a key are still accepted; with the standing key, they are not."""
    async with client_of(api.app(bootstrap_key=BOOTSTRAP)) as operator:
        operator.headers["Authorization"] = f"Bearer {BOOTSTRAP}"
        key = (await operator.post("/keys", json=AGENT)).json()["key"]
    authentication = Authentication(api.keys)

    assert await authentication.is_open()
    async with client_of(api.app()) as client:
        headers = {"Authorization": f"Bearer {key}"}
        assert (await client.get("/runs")).status_code == 200
        assert (await client.get("/runs", headers=headers)).status_code == 403
        assert (await client.get("/keys", headers=headers)).status_code == 403
        wrong = {"Authorization": f"Bearer {key[:-1]}{'0' if key[-1] != '0' else '1'}"}
        assert (await client.get("/runs", headers=wrong)).status_code == 401


async def test_local_callers_of_an_open_service_manage_standing_keys(api: Api) -> None:
    """They need no credential, as for everything else, and belong to the default tenant."""
    async with client_of(api.app()) as client:
        key = (await client.post("/keys", json=AGENT)).raise_for_status().json()
        rotated = (await client.post(f"/keys/{key['key_id']}/rotate")).raise_for_status().json()
        listed = {each["key_id"] for each in (await client.get("/keys")).json()["keys"]}
        revoked = await client.delete(f"/keys/{rotated['key_id']}")
        elsewhere = await client.post("/keys", json={**AGENT, "tenant": "other"})

    assert {key["key_id"], rotated["key_id"]} <= listed
    assert revoked.json()["revoked_at"] is not None
    assert (key["made_by"], key["tenant"]) == (None, "default")
    assert elsewhere.status_code == 403


async def test_callers_without_a_credential_never_manage_api_keys(api: Api) -> None:
    """A process may notice the first API key late, and could otherwise give away its successor."""
    issued = await api.keys.create(OPERATOR, name="first", scopes=frozenset({KeyScope.READ}))
    key_id = issued.key.key_id

    assert key_id not in {each.key_id for each in await api.keys.list(LOCAL)}
    for manage in (api.keys.rotate, api.keys.revoke):
        with pytest.raises(KeyNotFoundError):
            await manage(LOCAL, key_id)


async def test_remote_callers_of_an_open_service_manage_no_keys(api: Api) -> None:
    """Any client could otherwise spend without a budget of the operator."""
    app = api.app(limits=api_limits(anonymous="anywhere"))
    async with client_of(app, peer="192.0.2.1") as client:
        assert (await client.post("/keys", json=AGENT)).status_code == 403
