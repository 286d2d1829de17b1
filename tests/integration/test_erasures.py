"""POST /erasures: nothing of a tenant, or of certain metadata, is left in any table."""

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import httpx
import psycopg
import pytest
import pytest_asyncio
from psycopg import sql

from caseworker.features.erasure import service
from caseworker.settings.schema import WebhookSettings
from tests.integration.postgres.two_tenants import OTHERS, rows_of_two_tenants
from tests.support.tenant_requests import GRAPH, changes, plant
from tests.support.tenants import OPERATOR_KEY, Tenants, open_tenants

NEEDLE = "needle-7391"
"""A text in all data of the customer, and in no other data."""
TABLES = """
SELECT table_name FROM information_schema.tables
WHERE table_schema = 'public' AND table_type = 'BASE TABLE' ORDER BY 1
"""
GENERAL = ("alembic_version", "workers", "procrastinate_workers", "provider_limits", "retention")
"""Tables whose rows the service changes without a request."""
Dump = Mapping[str, list[str]]


@pytest.fixture
def database(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """Open a separate connection for assertions."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest_asyncio.fixture
async def tenants(database_url: str) -> AsyncIterator[Tenants]:
    """Open the service; its runs stay queued."""
    hooks = WebhookSettings(allow_http=True, allow_private=True)
    async with open_tenants(database_url, webhooks=hooks) as opened:
        yield opened


def dump(database: psycopg.Connection[Any]) -> Dump:
    """Return all rows of all tables as text."""
    rows: dict[str, list[str]] = {}
    for (table,) in database.execute(TABLES).fetchall():
        query = sql.SQL("SELECT t::text FROM {} t ORDER BY 1").format(sql.Identifier(table))
        rows[table] = [row for (row,) in database.execute(query)]
    return rows


def naming(rows: Dump, text: str) -> Dump:
    """Return the rows that contain a text, by table."""
    found = {table: [row for row in given if text in row] for table, given in rows.items()}
    return {table: given for table, given in found.items() if given}


async def operator(tenants: Tenants, body: object) -> httpx.Response:
    headers = {"Authorization": f"Bearer {OPERATOR_KEY}"}
    return await tenants.client.post("/erasures", json=body, headers=headers)


async def made(answer: httpx.Response) -> Any:
    assert answer.is_success, answer.text
    return answer.json()


async def test_no_table_keeps_a_row_of_an_erased_tenant(
    tenants: Tenants, database: psycopg.Connection[Any]
) -> None:
    """Every table with tenants is emptied, also one that a later migration adds."""
    rows_of_two_tenants(database)
    database.execute("CREATE TABLE later (tenant_id text)")
    database.execute("INSERT INTO later VALUES ('a'), ('b')")
    database.execute("RESET session_replication_role")
    one, other = tuple(OTHERS)
    counted = "SELECT tenant_id, count(*) FROM {} WHERE tenant_id IN ('a', 'b') GROUP BY 1"

    erased = await made(await operator(tenants, {"tenant": one}))

    assert erased["complete"] is True
    tables = database.execute(
        TABLES.replace(
            "information_schema.tables",
            """
        information_schema.tables JOIN information_schema.columns
        USING (table_schema, table_name)""",
        ).replace("ORDER BY", "AND column_name = 'tenant_id' ORDER BY")
    ).fetchall()
    assert len(tables) > 25
    for (table,) in tables:
        query = sql.SQL(counted).format(sql.Identifier(table))
        assert dict(database.execute(query).fetchall()) == {other: 1}, table


async def test_an_erased_tenant_is_named_nowhere_and_others_keep_everything(
    tenants: Tenants, database: psycopg.Connection[Any]
) -> None:
    """Keys, agents, threads, schedules, jobs and the audit log are erased as well."""
    for tenant in ("acme-corp", "other"):
        await _fill(tenants, database, tenant)
    before = dump(database)
    assert len(naming(before, "acme-corp")) >= 15

    erased = await made(await operator(tenants, {"tenant": "acme-corp"}))

    assert (erased["complete"], erased["waiting"]) == (True, 0)
    assert erased["runs"] >= 2
    assert erased["threads"] == erased["schedules"] == 1
    after = dump(database)
    assert naming(after, "acme-corp") == {}
    assert naming(after, "(other,") == naming(before, "(other,")
    refused = await tenants.ask("acme-corp", "GET", "/runs")
    assert refused.status_code == 401


async def _fill(tenants: Tenants, database: psycopg.Connection[Any], tenant: str) -> None:
    wanted = ("/runs", "/graphs", "/agents", "/threads", "/keys", "/webhooks/secret", "/quotas")
    for method, path, body, headers in changes("x", "y", {}, GRAPH):
        if path == "/quotas/{their name}":
            continue
        if method in ("POST", "PUT") and path in (*wanted, "/schedules/x"):
            await tenants.ask(tenant, method, path, body, **headers)
    database.execute("INSERT INTO quotas (tenant_id, max_queued) VALUES (%s, 9)", (tenant,))
    plant(database, tenant, "x")
    await made(await tenants.ask(tenant, "POST", "/threads/x/messages", {"content": "Hello."}))


CUSTOMER = {"customer": 7, "name": NEEDLE}


async def _runs_of_customer(tenants: Tenants, metadata: Mapping[str, Any]) -> None:
    """Create everything that may belong to a customer, with the needle in it."""
    graph = {
        **GRAPH,
        "steps": [
            {**GRAPH["steps"][0], "data": {"tool": "calculator", "args": {"expression": NEEDLE}}}
        ],
    }
    ask = tenants.ask
    run = {"kind": "graph", "graph": graph}
    await made(await ask("t", "POST", "/runs", {**run, "run_id": "a", "metadata": metadata}))
    await made(await ask("t", "DELETE", "/runs/a"))
    await made(await ask("t", "POST", "/runs", {"run_id": "fork", "from": {"run_id": "a"}}))
    await made(await ask("t", "DELETE", "/runs/fork"))
    await made(await ask("t", "POST", "/runs", {"run_id": "fork2", "from": {"run_id": "fork"}}))
    schedule = {"cron": "0 0 1 1 *", "run": {**run, "metadata": metadata}}
    await made(await ask("t", "PUT", "/schedules/yearly", schedule))
    thread = {"thread_id": "talk", "graph": graph, "metadata": metadata, "title": NEEDLE}
    await made(await ask("t", "POST", "/threads", thread))
    await made(await ask("t", "POST", "/threads/talk/messages", {"content": NEEDLE}))
    await made(await ask("t", "POST", "/threads", {"thread_id": "lobby", "graph": GRAPH}))
    message = {"content": NEEDLE, "metadata": metadata}
    await made(await ask("t", "POST", "/threads/lobby/messages", message))


async def _others(tenants: Tenants, database: psycopg.Connection[Any]) -> None:
    run = {"kind": "graph", "graph": GRAPH}
    for index, metadata in enumerate(({"customer": 77}, {"customer": "8"}, {"x": 7}, {})):
        body = {**run, "run_id": f"other{index}", "metadata": metadata}
        await made(await tenants.ask("t", "POST", "/runs", body))
    body = {**run, "run_id": "foreign", "metadata": {"customer": 7}}
    await made(await tenants.ask("u", "POST", "/runs", body))


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        ({"customer": 7}, {"customer": 7}),
        ({"customer": 7}, {"customer": "7"}),
        ({"customer": "c-7", "x": 1}, {"customer": "c-7"}),
        ({"customer": True}, {"customer": True}),
        ({"customer": "c-7", "region": "eu"}, {"customer": "c-7", "region": "eu"}),
    ],
)
async def test_nothing_with_the_metadata_is_left(
    tenants: Tenants,
    database: psycopg.Connection[Any],
    stored: dict[str, Any],
    wanted: dict[str, Any],
) -> None:
    """Runs, their forks, threads, schedules and messages are erased; all other data stays."""
    await _others(tenants, database)
    before = {table: rows for table, rows in dump(database).items() if table not in GENERAL}
    await _runs_of_customer(tenants, stored)

    erased = await made(await tenants.ask("t", "POST", "/erasures", {"metadata": wanted}))

    assert erased == {"runs": 5, "threads": 1, "schedules": 1, "waiting": 0, "complete": True}
    after = dump(database)
    assert naming(after, NEEDLE) == {}
    runs = "SELECT run_id, request IS NULL FROM runs WHERE tenant_id = 't' ORDER BY 1"
    left = {run_id for run_id, gone in database.execute(runs).fetchall() if not gone}
    assert left == {"other0", "other1", "other2", "other3"}
    for table in ("calls", "events", "approvals", "artifacts", "schedules", "snapshots"):
        assert after[table] == before[table], table
    messages = (await tenants.ask("t", "GET", "/threads/lobby/messages")).json()["messages"]
    assert [one["content"] for one in messages] == ["(erased)", None]


async def _answered(tenants: Tenants, message: Mapping[str, Any]) -> str:
    """Send a message to the thread ``lobby``; return the ID of its run, which has ended."""
    sent = await made(await tenants.ask("t", "POST", "/threads/lobby/messages", message))
    await made(await tenants.ask("t", "DELETE", f"/runs/{sent['run']['run_id']}"))
    return str(sent["run"]["run_id"])


async def test_later_answers_contain_the_text_too(
    tenants: Tenants, database: psycopg.Connection[Any]
) -> None:
    """They have no metadata, but their models received the erased messages."""
    await made(await tenants.ask("t", "POST", "/threads", {"thread_id": "lobby", "graph": GRAPH}))
    before = await _answered(tenants, {"content": "Before."})
    await _answered(tenants, {"content": NEEDLE, "metadata": CUSTOMER})
    for content in ("Later.", "Last."):
        await _answered(tenants, {"content": content})
    assert len(naming(dump(database), NEEDLE)["runs"]) == 1

    erased = await made(await tenants.ask("t", "POST", "/erasures", {"metadata": {"customer": 7}}))

    assert (erased["runs"], erased["complete"]) == (3, True)
    assert naming(dump(database), NEEDLE) == {}
    assert (await tenants.ask("t", "GET", f"/runs/{before}")).status_code == 200


async def test_runs_of_an_older_thread_with_the_same_id_stay(tenants: Tenants) -> None:
    """The metadata is that of the newer thread."""
    await made(await tenants.ask("t", "POST", "/threads", {"thread_id": "lobby", "graph": GRAPH}))
    older = await _answered(tenants, {"content": "Hello."})
    assert (await tenants.ask("t", "DELETE", "/threads/lobby")).is_success
    thread = {"thread_id": "lobby", "graph": GRAPH, "metadata": CUSTOMER}
    await made(await tenants.ask("t", "POST", "/threads", thread))
    newer = await _answered(tenants, {"content": "Hello."})

    await made(await tenants.ask("t", "POST", "/erasures", {"metadata": {"customer": 7}}))

    statuses = [
        (await tenants.ask("t", "GET", f"/runs/{run_id}")).status_code for run_id in (older, newer)
    ]
    assert statuses == [200, 404]


async def test_the_last_keys_are_not_erased(tenants: Tenants) -> None:
    """Without any key, the service would accept requests without one."""
    await tenants.ask("acme-corp", "GET", "/runs")

    refused = await operator(tenants, {"tenant": "acme-corp"})

    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "tenant"
    assert (await tenants.ask("acme-corp", "GET", "/runs")).status_code == 200


async def test_a_key_of_the_metadata_must_match_as_a_whole(
    tenants: Tenants, database: psycopg.Connection[Any]
) -> None:
    """Data with only a part of the metadata stays."""
    await _runs_of_customer(tenants, {"customer": "c-7"})
    wanted = {"metadata": {"customer": "c-7", "region": "eu"}}
    before = naming(dump(database), NEEDLE)

    erased = await made(await tenants.ask("t", "POST", "/erasures", wanted))

    assert erased == {"runs": 0, "threads": 0, "schedules": 0, "waiting": 0, "complete": True}
    assert naming(dump(database), NEEDLE) == before


async def test_a_run_that_works_is_cancelled_and_erased_when_it_has_ended(
    tenants: Tenants, database: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then, neither the run nor the run that it was forked from is erased."""
    monkeypatch.setattr(service, "WORK_SECONDS", 0.05)
    await _runs_of_customer(tenants, CUSTOMER)
    works = "UPDATE runs SET status = 'running', worker_id = 'w', fence = 1, attempts = 1,"
    works += " started_at = now(), claimed_at = now() WHERE run_id = 'fork2'"
    database.execute(works)
    body = {"metadata": {"customer": 7}}

    first = await made(await tenants.ask("t", "POST", "/erasures", body))

    assert (first["complete"], first["waiting"] > 0) == (False, True)
    cancel = "SELECT cancel_reason FROM runs WHERE run_id = %s"
    assert database.execute(cancel, ("fork2",)).fetchone() == (service.REASON,)
    assert database.execute("SELECT request IS NOT NULL FROM runs WHERE run_id = 'a'").fetchone()

    ends = "UPDATE runs SET status = 'cancelled', finished_at = now(), worker_id = NULL"
    database.execute(f"{ends} WHERE run_id = 'fork2'")
    monkeypatch.setattr(service, "WORK_SECONDS", 10.0)
    second = await made(await tenants.ask("t", "POST", "/erasures", body))

    assert second["complete"] is True
    assert naming(dump(database), NEEDLE) == {}


@pytest.mark.parametrize(
    ("scopes", "body", "status"),
    [
        (["admin"], {"tenant": "other"}, 403),
        (["admin"], {"tenant": "t"}, 403),
        (["admin"], {"tenant": "other", "metadata": {"a": 1}}, 403),
        (["run"], {"metadata": {"a": 1}}, 403),
        (["admin"], {"tenant": "t", "metadata": {"a": 1}}, 200),
        (["admin"], {}, 422),
        (["admin"], {"metadata": {}}, 422),
        (["admin"], {"metadata": {"a": {"b": 1}}}, 422),
        (["admin"], {"metadata": {"a": [1]}}, 422),
        (["admin"], {"customer": "7"}, 422),
    ],
)
async def test_only_the_operator_erases_tenants(
    tenants: Tenants, scopes: list[str], body: dict[str, Any], status: int
) -> None:
    """An admin of a tenant erases by metadata, in its own tenant."""
    created = {"name": "k", "scopes": scopes, "tenant": "t"}
    headers = {"Authorization": f"Bearer {OPERATOR_KEY}"}
    key = (await tenants.client.post("/keys", json=created, headers=headers)).json()["key"]

    answer = await tenants.client.post(
        "/erasures", json=body, headers={"Authorization": f"Bearer {key}"}
    )

    assert answer.status_code == status, answer.text


async def test_an_erasure_is_recorded_without_values(tenants: Tenants) -> None:
    """The audit log has the keys of the metadata, or a digest of the tenant."""
    for tenant in ("acme-corp", "other"):
        await tenants.ask(tenant, "GET", "/runs")
    await operator(tenants, {"tenant": "acme-corp"})
    await operator(tenants, {"tenant": "other", "metadata": CUSTOMER})
    headers = {"Authorization": f"Bearer {OPERATOR_KEY}"}

    audit = await tenants.client.get("/audit?action=data.erased", headers=headers)

    targets = [entry["target"] for entry in audit.json()["entries"]]
    assert targets[0] == "metadata.customer, metadata.name"
    assert targets[1].startswith("tenant sha256:")
    assert "acme-corp" not in audit.text
