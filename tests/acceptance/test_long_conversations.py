"""A long conversation in one run: what it stores, and that losses of its process cost little.

``LONG_CALLS`` and ``LONG_KILLS`` make it longer by hand: 1000 and 100 are what is documented.
"""

import os
from typing import Any

import psycopg

from app.adapters.postgres.connections import driver_url
from tests.support.archive_tool import page_text
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, finished, model_settings

CALLS = int(os.environ.get("LONG_CALLS", "60"))
KILLS = int(os.environ.get("LONG_KILLS", "3"))
SHARE = 1.3
"""Stored bytes for each byte that was said."""

TABLES = ("runs", "calls", "events", "snapshots")


def said(number: int) -> Step:
    """What the model says in a turn: a text, and a call that no other turn makes."""
    call = {"id": f"c{number}", "name": "archive", "arguments": f'{{"page": {number}}}'}
    return Step(text=page_text(-number), tool_calls=[call], chunk_chars=500)


def body(run_id: str, calls: int) -> dict[str, Any]:
    """A run of one agent that reads many pages."""
    agent = {
        "name": "reader",
        "prompt": {"system": "Read."},
        "tools": ["archive"],
        "limits": {"max_turns": calls + KILLS + 10},
    }
    budget = {
        "max_llm_calls_small": 2 * calls,
        "max_tool_calls": 2 * calls,
        "max_api_calls": 3 * calls,
    }
    return {
        "run_id": run_id,
        "kind": "agent",
        "agent": agent,
        "input": f"Read all pages ({run_id}).",
        "budget": budget,
    }


def stored_bytes(url: str, run_id: str) -> dict[str, int]:
    """Return how many bytes each column of each table holds of a run, as they are stored."""
    found = {}
    with psycopg.connect(driver_url(url)) as connection:
        for table in TABLES:
            names = connection.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_name = %s", [table]
            ).fetchall()
            sums = ", ".join(f'coalesce(sum(pg_column_size("{name}")), 0)' for (name,) in names)
            row = connection.execute(
                f"SELECT count(*), {sums} FROM {table} WHERE run_id = %s", [run_id]
            ).fetchone()
            assert row is not None
            found[f"{table}.rows"] = row[0]
            found |= {f"{table}.{name}": size for (name,), size in zip(names, row[1:], strict=True)}
    return found


def said_bytes(messages: list[dict[str, Any]]) -> int:
    """Return the bytes of everything that was said, each once."""
    return sum(
        len(message["content"].encode())
        + sum(len(call["name"] + call["arguments"]) for call in message.get("tool_calls", ()))
        for message in messages
    )


async def test_a_long_conversation_is_stored_once(
    database_url: str, provider: FakeProvider
) -> None:
    """X."""
    settings = {
        **model_settings(provider.openai_url),
        "TOOLS_PLUGINS": '["tests.support.archive_tool:ArchiveTool"]',
        "WORKER_MAX_ATTEMPTS": "1000",
        "LIMITS_MAX_RUN_MB": "1000",
        "BUDGET_MAX_SECONDS": "100000",
    }
    await provider.script("(long)", [*(said(n) for n in range(CALLS)), Step(text="All read.")])
    async with (
        ServiceProcess(database_url, settings=settings) as service,
        service.client() as client,
    ):
        await client.post_run(body("long", CALLS))
        run = await finished(client, "long", seconds=600)
    print(run["status"], run["stop"], run["usage"])
    assert run["status"] == "completed", run
    sizes = stored_bytes(database_url, "long")
    for name, size in sizes.items():
        print(f"{name:32}{size:12,}  {size / CALLS:10.1f}")
    total = sum(size for name, size in sizes.items() if not name.endswith(".rows"))
    unique = said_bytes(run["result"]["messages"])
    print(total, unique, total / unique, len(run["result"]["messages"]))
    with psycopg.connect(driver_url(database_url)) as c:
        for r in c.execute(
            "select seq,type,step_id,node_id,left(data::text,150),once_key from events where seq between 40 and 60 order by seq"
        ):
            print(r)
        for r in c.execute(
            "select seq,call_key,charge,outcome,node,left(request::text,400), left(value::text,100) from calls where seq between 20 and 26 order by seq"
        ):
            print(r)
