"""Tests that administrative acts are recorded with who did them, and who may read the records.

Each test uses a separate tenant.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import Context
from typing import Any

import pytest
import pytest_asyncio

from caseworker.features.audit.postgres import drop_audit
from caseworker.features.mcp_credentials.postgres import PostgresMcpCredentials
from caseworker.features.retention.postgres import set_days
from caseworker.platform.postgres.audit import Act
from caseworker.platform.postgres.engines import transaction
from tests.support.stores import Stores, open_stores
from tests.support.tenant_requests import GRAPH, Request
from tests.support.tenants import OPERATOR_KEY, Tenants, open_tenants

pytestmark = pytest.mark.asyncio(loop_scope="module")

AGENT = {"name": "clerk", "prompt": {"system": "s"}, "tools": []}
SCHEDULE = {"cron": "0 0 1 1 *", "run": {"kind": "graph", "graph": GRAPH}}
RUN = {"run_id": "r", "input": "2+2?", "metadata": {"of": "x"}}
ROTATED: Request = ("POST", "/webhooks/secret", None, {})

BY_TENANT: Mapping[str, tuple[Sequence[Request], Sequence[str]]] = {
    "agents": (
        [
            ("POST", "/agents", {"agent": AGENT}, {}),
            ("POST", "/agents", {"agent": AGENT}, {}),
            ("DELETE", "/agents/clerk/versions/1", None, {}),
        ],
        ["agent.registered clerk@1", "agent.deleted clerk@1"],
    ),
    "graphs": (
        [
            ("POST", "/graphs", {"name": "g", "graph": GRAPH}, {}),
            ("DELETE", "/graphs/g", None, {}),
        ],
        ["graph.registered g@1", "graph.deleted g"],
    ),
    "schedules": (
        [
            ("PUT", "/schedules/s", SCHEDULE, {}),
            ("POST", "/schedules/s/pause", None, {}),
            ("POST", "/schedules/s/pause", None, {}),
            ("POST", "/schedules/s/resume", None, {}),
            ("DELETE", "/schedules/s", None, {}),
        ],
        ["schedule.set s", "schedule.set s", "schedule.set s", "schedule.deleted s"],
    ),
    "webhooks": ([ROTATED], ["webhook_secret.rotated version 1"]),
    "runs": (
        [
            ("POST", "/runs", RUN, {}),
            ("POST", "/runs/cancel", {"metadata": {"of": "x"}}, {}),
            ("DELETE", "/runs/r/record", None, {}),
            ("POST", "/erasures", {"metadata": {"of": "x"}}, {}),
        ],
        ["run.cancelled r", "run.erased r", "data.erased metadata.of"],
    ),
}
"""For each resource, requests of its tenant, and the acts that they record with their targets."""

OF_KEYS = ["key.created", "key.rotated", "key.revoked"]
OF_OPERATOR = ["quota.set", "quota.removed"]
OF_COMMANDS = ["mcp_credentials.set", "mcp_credentials.deleted", "retention_days.set"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tenants(module_database_url: str) -> AsyncIterator[Tenants]:
    """Run a service whose runs stay queued."""
    async with open_tenants(module_database_url) as tenants:
        yield tenants


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stores(module_database_url: str) -> AsyncIterator[Stores]:
    async with open_stores(module_database_url) as stores:
        yield stores


async def act(tenants: Tenants, tenant: str, method: str, path: str, body: Any = None) -> Any:
    """Send a request that must succeed, and return its answer."""
    answer = await tenants.ask(tenant, method, path, body)
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else None


async def as_operator(tenants: Tenants, method: str, path: str, body: Any = None) -> Any:
    """Send a request of the operator that must succeed, and return its answer."""
    headers = {"Authorization": f"Bearer {OPERATOR_KEY}"}
    answer = await tenants.client.request(method, path, json=body, headers=headers)
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else None


async def entries(tenants: Tenants, tenant: str, query: str = "") -> list[dict[str, Any]]:
    """Return the acts on a tenant's resources, newest first."""
    page = await act(tenants, tenant, "GET", f"/audit?limit=200{query}")
    return list(page["entries"])


async def acts_after_key(tenants: Tenants, tenant: str) -> list[dict[str, Any]]:
    """Return the acts on a tenant's resources, oldest first, without the creation of its key."""
    recorded = (await entries(tenants, tenant))[::-1]
    first = recorded[0]["action"], recorded[0]["target"]
    assert first == ("key.created", key_id(tenants, tenant))
    return recorded[1:]


def key_id(tenants: Tenants, tenant: str) -> str:
    """Return the ID of the key with which ``Tenants`` sends the requests of a tenant."""
    return tenants.keys[tenant].split("_")[1]


@pytest.mark.parametrize("resource", BY_TENANT)
async def test_acts_of_a_tenant_are_recorded_with_its_key_and_request(
    tenants: Tenants, resource: str
) -> None:
    """A repeated request that changes nothing is no act; a second pause is one."""
    requests, expected = BY_TENANT[resource]
    for method, path, body, _ in requests:
        await act(tenants, resource, method, path, body)

    recorded = await acts_after_key(tenants, resource)

    assert [f"{entry['action']} {entry['target']}" for entry in recorded] == expected
    robot = key_id(tenants, resource)
    assert {(entry["actor"], entry["actor_key_id"]) for entry in recorded} == {("robot", robot)}
    assert all(entry["request_id"] is not None for entry in recorded)
    assert tenants.keys[resource] not in str(recorded)


async def test_a_key_that_is_revoked_twice_is_recorded_as_revoked_once(tenants: Tenants) -> None:
    """The target is the key's ID, and no entry contains the key itself."""
    key = await act(tenants, "of-keys", "POST", "/keys", {"name": "n", "scopes": ["read"]})
    successor = await act(tenants, "of-keys", "POST", f"/keys/{key['key_id']}/rotate")
    for _ in range(2):
        await act(tenants, "of-keys", "DELETE", f"/keys/{key['key_id']}")

    recorded = await acts_after_key(tenants, "of-keys")

    assert [entry["action"] for entry in recorded] == OF_KEYS
    assert {entry["target"] for entry in recorded} == {key["key_id"]}
    assert all(entry["request_id"] is not None for entry in recorded)
    assert not any(each["key"] in str(recorded) for each in (key, successor))


async def test_acts_on_quotas_are_the_operators(tenants: Tenants) -> None:
    """The bootstrap key has no ID; the acts are among those of the tenant."""
    await entries(tenants, "of-quotas")
    await as_operator(tenants, "PUT", "/quotas/of-quotas", {"max_running": 3})
    await as_operator(tenants, "DELETE", "/quotas/of-quotas")

    recorded = await acts_after_key(tenants, "of-quotas")

    assert [entry["action"] for entry in recorded] == OF_OPERATOR
    assert {(entry["actor"], entry["actor_key_id"]) for entry in recorded} == {("operator", None)}
    assert all(entry["request_id"] is not None for entry in recorded)


async def test_acts_on_the_command_line_are_the_operators_without_a_request(
    tenants: Tenants, stores: Stores
) -> None:
    """No entry contains a credential that was set."""
    await entries(tenants, "of-commands")

    async def commands() -> None:
        pool = stores.engines.work
        credentials = PostgresMcpCredentials(pool, "k" * 32, ["docs"])
        await credentials.put("of-commands", "docs", {"X-Key": "sesame"})
        await credentials.delete("of-commands", "docs")
        await set_days(pool, "of-commands", "events", 3)

    # The service runs in this process: its last request would remain the caller.
    await asyncio.create_task(commands(), context=Context())

    recorded = await acts_after_key(tenants, "of-commands")

    assert [entry["action"] for entry in recorded] == OF_COMMANDS
    assert {(entry["actor"], entry["actor_key_id"]) for entry in recorded} == {("operator", None)}
    assert all(entry["request_id"] is None for entry in recorded)
    assert "sesame" not in str(recorded)


async def test_the_tests_of_this_module_record_every_kind_of_act() -> None:
    """The tests of draining check the record of a drain."""
    tested = {each.split(" ")[0] for _, expected in BY_TENANT.values() for each in expected}

    assert {Act(each) for each in {*tested, *OF_KEYS, *OF_OPERATOR, *OF_COMMANDS}} == (
        set(Act) - {Act.DRAIN_REQUESTED}
    )


async def test_a_refused_request_is_no_act(tenants: Tenants) -> None:
    """Only the creation of the tenant's key is recorded."""
    refused = await tenants.ask("refused", "DELETE", "/agents/clerk")

    assert refused.status_code == 404
    assert await acts_after_key(tenants, "refused") == []


async def test_pages_and_filters_select_from_all_acts(tenants: Tenants) -> None:
    """A page continues where the one before it ended."""
    for _ in range(2):
        await act(tenants, "paging", *ROTATED[:2])
    await act(tenants, "paging", "PUT", "/schedules/s", SCHEDULE)
    everything = await entries(tenants, "paging")

    page = await act(tenants, "paging", "GET", "/audit?limit=1")
    rest = await entries(tenants, "paging", f"&cursor={page['next_cursor']}")
    selected = await entries(tenants, "paging", "&action=webhook_secret.rotated")
    later = await entries(tenants, "paging", f"&after={everything[0]['at']}")

    assert len(everything) == 4
    assert page["entries"] + rest == everything
    assert selected == everything[1:3]
    assert later == []


async def test_only_the_operator_reads_the_acts_of_other_tenants(tenants: Tenants) -> None:
    """A tenant that names another one is refused."""
    await act(tenants, "one", *ROTATED[:2])
    one, other = await entries(tenants, "one"), await entries(tenants, "other")

    page = await as_operator(tenants, "GET", "/audit?limit=200")
    refused = await tenants.ask("one", "GET", "/audit?tenant=other")

    assert [entry["action"] for entry in one] == ["webhook_secret.rotated", "key.created"]
    assert [entry["action"] for entry in other] == ["key.created"]
    of_both = [each for each in page["entries"] if each["tenant"] in ("one", "other")]
    assert of_both == [*other, *one]
    assert refused.status_code == 403


async def test_expired_entries_of_one_tenant_are_deleted(tenants: Tenants, stores: Stores) -> None:
    """The entries of other tenants stay."""
    await act(tenants, "expiring", *ROTATED[:2])
    await entries(tenants, "keeping")
    batch = {"tenant": "expiring", "record": "audit", "days": 0, "limit": 100}

    async with transaction(stores.engines.work) as connection:
        assert not await drop_audit(connection, batch)

    assert await entries(tenants, "expiring") == []
    assert len(await entries(tenants, "keeping")) == 1


async def test_readers_may_not_read_the_records(tenants: Tenants) -> None:
    """The permission ``admin`` is needed."""
    reader = await as_operator(
        tenants, "POST", "/keys", {"name": "reader", "scopes": ["run", "approve"]}
    )
    headers = {"Authorization": f"Bearer {reader['key']}"}

    assert (await tenants.client.get("/audit", headers=headers)).status_code == 403
