"""Rows survive a downgrade to the oldest schema and the upgrade back."""

import asyncio

import httpx
import psycopg
import pytest

from caseworker.platform.postgres.schema_version import downgrade, upgrade
from tests.support.database import TestServer
from tests.support.json_client import JsonClient
from tests.support.schema import revisions
from tests.support.service import ServiceProcess, finished

CALCULATION = {"tool": "calculator", "args": {"expression": "6 * 7"}}
ANSWERS = {"steps": [{"id": "s", "type": "tool", "data": CALCULATION}], "edges": []}
ASKS = {"steps": [{"id": "s", "type": "approval", "data": {"message": "Pay?"}}], "edges": []}
COUNTS = """
SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM calls), (SELECT count(*) FROM events)
"""


async def told_of(client: JsonClient, run_id: str) -> list[object]:
    """Return the status, result, usage, nodes and events of a finished run."""
    run, trace = await client.get_run(run_id), await client.trace(run_id)
    events = [event async for event in client.events(run_id)]
    return [run["status"], run["result"], run["usage"], trace["snapshot"]["nodes"], events]


async def waiting(client: JsonClient, run_id: str) -> None:
    """Return a run once it waits."""
    async with asyncio.timeout(150):
        while (await client.get_run(run_id))["status"] != "waiting":  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def counted(url: str) -> list[tuple[int, ...]]:
    """Return the row counts of tables that exist in every schema."""
    with psycopg.connect(url) as connection:
        return connection.execute(COUNTS).fetchall()


@pytest.mark.req("004/lifecycle")
@pytest.mark.proof
async def test_what_was_stored_is_there_after_every_migration_was_undone_and_done_again(
    postgres: TestServer,
) -> None:
    """The rows are a finished run, an answer in a thread, and a run that waits for an approval.

    The oldest schema stores no approvals, so the last run asks again.
    """
    with postgres.empty_database() as url:
        upgrade(url)
        async with ServiceProcess(url) as service, service.client() as client:
            await client.post_run({"run_id": "ended", "input": "6 * 7?"}, wait_seconds=60)
            await client.run_graph(ASKS, run_id="asks")
            async with httpx.AsyncClient(base_url=service.url, trust_env=False) as http:
                await http.post("/threads", json={"thread_id": "talk", "graph": ANSWERS})
                said = await http.post("/threads/talk/messages", json={"content": "6 * 7?"})
            answer = said.json()["run"]["run_id"]
            await finished(client, answer)
            await waiting(client, "asks")
            before = [await told_of(client, name) for name in ("ended", answer)]
        rows = counted(url)
        for base in reversed(revisions()[:-1]):
            downgrade(url, base)
            assert counted(url) == rows, base
        upgrade(url)
        assert counted(url) == rows
        async with ServiceProcess(url) as service, service.client() as client:
            after = [await told_of(client, name) for name in ("ended", answer)]
            await waiting(client, "asks")
            await client.cancel_run("asks")
            stopped = await finished(client, "asks")

    assert after == before
    assert stopped["status"] == "cancelled"
