"""Tests that administrative acts are recorded with who did them, and who may read the records."""

from typing import Any

import httpx

from caseworker.features.audit.postgres import drop_audit
from caseworker.features.mcp_credentials.postgres import PostgresMcpCredentials
from caseworker.features.retention.postgres import set_days
from caseworker.platform.caller import OPERATOR, KeyScope
from caseworker.platform.postgres.audit import Act
from caseworker.platform.postgres.engines import transaction
from tests.support.api import Api
from tests.support.stores import open_stores
from tests.support.tenant_requests import GRAPH
from tests.support.tenants import OPERATOR_KEY, Tenants, open_tenants

AGENT = {"name": "clerk", "prompt": {"system": "s"}, "tools": []}
SCHEDULE = {"cron": "0 0 1 1 *", "run": {"kind": "graph", "graph": GRAPH}}
AS_OPERATOR = {"Authorization": f"Bearer {OPERATOR_KEY}"}


async def entries(tenants: Tenants, tenant: str, query: str = "") -> list[dict[str, Any]]:
    """Return the newest acts on a tenant's resources."""
    found = await tenants.ask(tenant, "GET", f"/audit?limit=200{query}")
    assert found.status_code == 200, found.text
    return list(found.json()["entries"])


async def test_every_act_is_recorded_with_its_caller(database_url: str) -> None:
    """An act on the command line is the operator's; a refused or repeated request is no act."""
    async with open_tenants(database_url) as tenants, open_stores(database_url) as stores:
        pool = stores.engines.work
        credentials = PostgresMcpCredentials(pool, "k" * 32, ["docs"])
        await credentials.put("a", "docs", {"X-Key": "sesame"})
        await credentials.delete("a", "docs")
        await set_days(pool, "a", "events", 3)

        async def ask(method: str, path: str, body: Any = None) -> Any:
            answer = await tenants.ask("a", method, path, body)
            assert answer.status_code < 300, answer.text
            return answer.json() if answer.content else None

        key = await ask("POST", "/keys", {"name": "n", "scopes": ["read"]})
        await ask("POST", f"/keys/{key['key_id']}/rotate")
        for _ in range(2):
            await ask("DELETE", f"/keys/{key['key_id']}")
        for _ in range(2):
            await ask("POST", "/agents", {"agent": AGENT})
        await ask("DELETE", "/agents/clerk/versions/1")
        await ask("POST", "/graphs", {"name": "g", "graph": GRAPH})
        await ask("DELETE", "/graphs/g")
        await ask("PUT", "/schedules/s", SCHEDULE)
        for _ in range(2):
            await ask("POST", "/schedules/s/pause")
        await ask("POST", "/schedules/s/resume")
        await ask("DELETE", "/schedules/s")
        await ask("POST", "/webhooks/secret")
        await ask("POST", "/runs", {"run_id": "r", "input": "2+2?", "metadata": {"of": "x"}})
        await ask("POST", "/runs/cancel", {"metadata": {"of": "x"}})
        await ask("DELETE", "/runs/r/record")
        await ask("POST", "/erasures", {"metadata": {"of": "x"}})
        gone = await tenants.ask("a", "DELETE", "/agents/clerk")
        for method, body in (("PUT", {"max_running": 3}), ("DELETE", None)):
            await tenants.client.request(method, "/quotas/a", json=body, headers=AS_OPERATOR)
        found = await entries(tenants, "a")
        only = await entries(tenants, "a", "&action=schedule.set")
        other = await entries(tenants, "b")
        everything = await tenants.client.get("/audit?limit=200", headers=AS_OPERATOR)
        one = (await tenants.ask("a", "GET", "/audit?limit=1")).json()
        rest = await entries(tenants, "a", f"&cursor={one['next_cursor']}")
        later = await entries(tenants, "a", f"&after={found[0]['at']}")
        refused = await tenants.ask("a", "GET", "/audit?tenant=b")
        batch = {"tenant": "a", "record": "audit", "days": 0, "limit": 100}
        async with transaction(pool) as connection:
            assert not await drop_audit(connection, batch)
        left = await entries(tenants, "a"), await entries(tenants, "b")

    assert gone.status_code == 404
    acts = [entry["action"] for entry in reversed(found)]
    assert acts == [
        *("mcp_credentials.set", "mcp_credentials.deleted", "retention_days.set"),
        *("key.created", "key.created", "key.rotated", "key.revoked"),
        *("agent.registered", "agent.deleted", "graph.registered", "graph.deleted"),
        *("schedule.set", "schedule.set", "schedule.set", "schedule.deleted"),
        "webhook_secret.rotated",
        *("run.cancelled", "run.erased", "data.erased", "quota.set", "quota.removed"),
    ]
    assert {Act(act) for act in acts} == set(Act) - {Act.DRAIN_REQUESTED}
    robot = tenants.keys["a"].split("_")[1]
    by = {entry["action"]: (entry["actor"], entry["actor_key_id"]) for entry in found}
    assert by["run.erased"] == by["agent.deleted"] == ("robot", robot)
    assert by["quota.set"] == by["retention_days.set"] == ("operator", None)
    assert [entry["request_id"] is None for entry in reversed(found)] == [True] * 3 + [False] * 18
    targets = {entry["action"]: entry["target"] for entry in found}
    assert targets["key.revoked"] == key["key_id"]
    assert targets["agent.registered"] == targets["agent.deleted"] == "clerk@1"
    assert not any(secret in str(found) for secret in ("sesame", key["key"], tenants.keys["a"]))
    assert ([entry["action"] for entry in only], later) == (["schedule.set"] * 3, [])
    assert [entry["action"] for entry in other] == ["key.created"]
    assert len(everything.json()["entries"]) == len(found) + 1
    assert one["entries"] + rest == found
    assert refused.status_code == 403
    assert (left[0], len(left[1])) == ([], 1)


async def test_readers_may_not_read_the_records(client: httpx.AsyncClient, api: Api) -> None:
    """The permission ``admin`` is needed."""
    scopes = frozenset({KeyScope.RUN, KeyScope.APPROVE})
    reader = await api.keys.create(OPERATOR, name="reader", scopes=scopes)
    client.headers["Authorization"] = f"Bearer {reader.secret}"

    assert (await client.get("/audit")).status_code == 403
