"""Long conversations in one run: their storage, and the small cost of losing a process.

``LONG_CALLS`` and ``LONG_KILLS`` make the run longer; 1000 and 100 are documented.
``ARCHIVE_OF_PROSE=1`` uses the Python manual as text instead of incompressible text.
"""

import os
from statistics import median
from typing import Any

import psycopg
import pytest

from caseworker.platform.postgres.connections import driver_url
from tests.support.archive_tool import PROSE, page_text
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, finished, model_settings

CALLS = int(os.environ.get("LONG_CALLS", "60"))
KILLS = int(os.environ.get("LONG_KILLS", "2"))
SHARE = 1.15
"""The largest ratio of stored bytes to bytes of text."""
BESIDE = 1500
"""Stored bytes of a turn in addition to its texts: nodes, journal and about 12 events."""
PROSE_SHARE = 1.3
"""The largest ratio of stored bytes to bytes of prose."""
TEXTS = ("calls.value", "runs.result", "runs.request")

TABLES = ("runs", "calls", "events")


def said(number: int) -> Step:
    """Return the model's reply for a turn: a text, and a tool call that no other turn makes."""
    call = {"id": f"c{number}", "name": "archive", "arguments": f'{{"page": {number}}}'}
    return Step(text=page_text(-number), tool_calls=[call], chunk_chars=500)


def body(run_id: str, calls: int) -> dict[str, Any]:
    """Return a run of one agent that reads many pages."""
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
        "max_tokens": 2_000_000_000,
    }
    return {
        "run_id": run_id,
        "kind": "agent",
        "agent": agent,
        "input": f"Read all pages ({run_id}).",
        "budget": budget,
    }


def stored_bytes(url: str, run_id: str) -> dict[str, int]:
    """Return the stored bytes of a run in each column of each table."""
    found = {}
    with psycopg.connect(driver_url(url)) as connection:
        for table in TABLES:
            names = connection.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_name = %s", [table]
            ).fetchall()
            sums = ", ".join(f'coalesce(sum(pg_column_size("{name}")), 0)' for (name,) in names)
            row = connection.execute(
                f"SELECT count(*), {sums} FROM {table} WHERE run_id = %s",  # noqa: S608
                [run_id],
            ).fetchone()
            assert row is not None
            found[f"{table}.rows"] = row[0]
            found |= {f"{table}.{name}": size for (name,), size in zip(names, row[1:], strict=True)}
    return found


@pytest.mark.req("003/long", "003/resume")
@pytest.mark.proof
async def test_a_long_conversation_is_stored_once_whatever_its_process_suffers(
    database_url: str, provider: FakeProvider
) -> None:
    """No finished call is repeated, and a late call stores no more than an early one."""
    settings = {
        **model_settings(provider.openai_url),
        "TOOLS_PLUGINS": '["tests.support.archive_tool:ArchiveTool"]',
        "LIMITS_MAX_RUN_MB": "1000",
        "BUDGET_MAX_SECONDS": "3600",
        "ADMISSION_MAX_TOKENS": "2000000000",
        "ADMISSION_MAX_API_CALLS": "10000",
        "ADMISSION_MAX_TOOL_CALLS": "10000",
    }
    steps = [*(said(number) for number in range(CALLS)), Step(text="All read.")]
    await provider.script("(long)", steps)
    async with ServiceProcess(database_url, settings=settings) as service:
        async with service.client() as client:
            await client.post_run(body("long", CALLS))
        for kill in range(1, KILLS + 1):
            before = kill * CALLS // (KILLS + 1)
            await provider.count("(long)", at_least=before, timeout_seconds=150)
            service.child.kill()
            await service.start()
        async with service.client() as client:
            run = await finished(client, "long", seconds=60 + CALLS)

    assert run["status"] == "completed", run
    made = await provider.count("(long)")
    assert made <= CALLS + 1
    turns = run["result"]["turn_count"]
    assert CALLS + 1 - KILLS <= turns <= made, "at most what was in flight is made again"
    sizes = stored_bytes(database_url, "long")
    unique, texts = _said_bytes(database_url), sum(sizes[name] for name in TEXTS)
    total = sum(size for name, size in sizes.items() if not name.endswith(".rows"))
    written = _written_by_turn(database_url)
    _report(sizes, unique=unique, total=total, turns=turns, times=_own_ms(database_url))
    print(f"calls {made}, made again {made - turns}, kills {KILLS}", _on_disk(database_url))  # noqa: T201
    assert texts <= SHARE * unique
    assert total <= SHARE * unique + BESIDE * turns
    assert total <= PROSE_SHARE * unique or not os.environ.get(PROSE)
    early, late = median(written[5:15]), median(written[-15:-5])
    assert late <= 1.1 * early  # its numbers have more digits


def _on_disk(url: str) -> dict[str, int]:
    """Return the bytes of each table on disk, including its indexes and out-of-line storage."""
    with psycopg.connect(driver_url(url)) as connection:
        rows = connection.execute(
            "SELECT name, pg_total_relation_size(name::regclass) FROM unnest(%s::text[]) AS name",
            [list(TABLES)],
        )
        return dict(rows.fetchall())


def _said_bytes(url: str) -> int:
    """Return the bytes of all texts of completed calls, each counted once."""
    with psycopg.connect(driver_url(url)) as connection:
        rows = connection.execute("SELECT node, value FROM journal WHERE outcome = 'result'")
        return sum(
            len(value["text"].encode())  # of the tool as well
            + sum(len(call["name"] + call["arguments"]) for call in value.get("tool_calls", ()))
            for node, value in rows.fetchall()
            if node["kind"] in ("llm", "tool")
        )


def _written_by_turn(url: str) -> list[int]:
    """Return the bytes of the journal row of each model call in order, without its reply."""
    with psycopg.connect(driver_url(url)) as connection:
        rows = connection.execute(
            """SELECT octet_length(request::text) + octet_length(brief::text) FROM calls
            WHERE outcome = 'result' AND brief ->> 0 = 'llm' ORDER BY seq"""
        )
        return [size for (size,) in rows.fetchall()]


def _own_ms(url: str) -> list[float]:
    """Return the milliseconds between the end of each tool call and the next model call.

    Only the service works in these intervals.
    """
    with psycopg.connect(driver_url(url)) as connection:
        rows = connection.execute(
            """SELECT 1000 * extract(epoch FROM ts - before)::float8 FROM (
                SELECT type, data, ts, lag(ts) OVER (ORDER BY seq) AS before, seq,
                    lag(type) OVER (ORDER BY seq) AS type_before
                FROM events WHERE type IN ('~c', '~e')
            ) AS each WHERE type = '~c' AND type_before = '~e' ORDER BY seq"""
        )
        return [spent for (spent,) in rows.fetchall()]


def _report(
    sizes: dict[str, int], *, unique: int, total: int, turns: int, times: list[float]
) -> None:
    lines = [
        f"{name:24}{size:14,}{size / turns:12.1f} a turn"
        for name, size in sizes.items()
        if size > 100 * turns or name.endswith(".rows")
    ]
    texts = sum(sizes[name] for name in TEXTS)
    lines.append(
        f"said {unique:,}, texts {texts / unique:.3f} times, all {total / unique:.3f} times"
    )
    late, early = median(times[-20:]), median(times[5:25])
    lines.append(f"turns {turns}, own ms a turn: {early:.2f} early, {late:.2f} late")
    print("\n".join(lines))  # noqa: T201 - for the run by hand, with -s
