"""Ten thousand runs that wait for approvals cost a process nothing."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.noting_tool import NOTES, noted
from tests.support.service import ServiceProcess
from tests.support.stores import open_oracle

WAITING = 10_000
APPROVED = 100
IDLE_SECONDS = 4.0
GROWTH_BYTES = 16 << 20

GRAPH = {
    "steps": [{"id": "write", "type": "tool", "data": {"tool": "note", "args": {"text": "hi"}}}],
    "edges": [],
}

CLONES = "(SELECT 'w' || n AS new_id FROM generate_series(1, %s) n) AS clones"
COLUMNS = """
SELECT string_agg(column_name, ', ' ORDER BY ordinal_position) AS names
FROM information_schema.columns WHERE table_name = %s AND table_schema = current_schema()
"""
ID_OF_CLONE = """left(encode(sha256(convert_to(
    format('["%%s", "%%s", "%%s"]', new_id, call_key, {asked}), 'UTF8')), 'hex'), 32)"""


async def clone_everything(url: str) -> None:
    """Copy the waiting run with all its rows to ten thousand other IDs.

    The ID of each approval is derived from the ID of its run, as in the engine.
    """
    async with open_oracle(url) as oracle:
        hashed = await oracle.value(
            "SELECT DISTINCT request_hash FROM calls WHERE call_key LIKE '%%/approval'"
        )
        for table in ("runs", "calls", "events", "approvals"):
            names = str(await oracle.value(COLUMNS, table)).split(", ")
            made = {
                "run_id": "new_id",
                "approval_id": ID_OF_CLONE.format(asked=f"'{hashed}'"),
            }
            chosen = ", ".join(made.get(name, f"one.{name}") for name in names)
            await oracle.rows(
                f"INSERT INTO {table} ({', '.join(names)})"  # noqa: S608 - our own words
                f" SELECT {chosen} FROM {table} one, {CLONES} WHERE one.run_id = 'first'",
                WAITING,
            )
        await oracle.rows("ANALYZE")


async def cost(process: psutil.Process) -> tuple[float, int]:
    """Return the share of a core that an idle process uses, and its memory in bytes."""
    before = process.cpu_times()
    await asyncio.sleep(IDLE_SECONDS)
    after = process.cpu_times()
    used = after.user + after.system - before.user - before.system
    return used / IDLE_SECONDS, process.memory_info().rss


async def until_waiting(http: httpx.AsyncClient, run_id: str) -> None:
    async with asyncio.timeout(150):
        while True:
            if (await http.get(f"/runs/{run_id}")).json()["status"] == "waiting":
                return
            await asyncio.sleep(0.02)


async def decide(http: httpx.AsyncClient, asked: dict[str, Any]) -> int:
    path = f"/runs/{asked['run_id']}/approvals/{asked['approval_id']}"
    return (await http.post(path, content=json.dumps({"decision": "approve"}))).status_code


@pytest.mark.proof
async def test_ten_thousand_runs_that_wait_cost_a_process_nothing(
    database_url: str, tmp_path: Path
) -> None:
    """Memory and idle CPU stay the same, and a hundred decisions take effect as usual."""
    notes = tmp_path / "notes"
    settings = {"TOOLS_PLUGINS": '["tests.support.noting_tool:NotingTool"]', NOTES: str(notes)}
    json_body = {"Content-Type": "application/json"}
    async with (
        ServiceProcess(database_url, settings=settings) as service,
        httpx.AsyncClient(
            base_url=service.url, trust_env=False, timeout=600, headers=json_body
        ) as http,
    ):
        body = {"kind": "graph", "run_id": "first", "graph": GRAPH}
        assert (await http.post("/runs", json=body)).status_code == 202
        await until_waiting(http, "first")
        process = psutil.Process(service.child.worker_pid)
        cpu_alone, memory_alone = await cost(process)

        await clone_everything(database_url)
        cpu, memory = await cost(process)
        assert memory - memory_alone < GROWTH_BYTES, (memory_alone, memory)
        assert cpu < 2 * cpu_alone + 0.1, (cpu_alone, cpu)

        page = (await http.get("/approvals", params={"limit": APPROVED})).json()["approvals"]
        assert len(page) == APPROVED
        assert {await decide(http, each) for each in page} == {202}
        async with asyncio.timeout(150):
            while True:
                if len(noted(notes)) >= APPROVED:
                    break
                await asyncio.sleep(0.05)
        async with open_oracle(database_url) as oracle:
            count = "SELECT count(*) FROM runs WHERE status = 'waiting'"
            assert await oracle.value(count) == WAITING + 1 - APPROVED
        assert len(set(noted(notes))) == APPROVED
