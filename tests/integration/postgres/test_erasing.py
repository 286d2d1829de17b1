"""A run is erased together with every row that refers to it in any table."""

from dataclasses import replace

import pytest

from caseworker.main.features import FEATURES
from caseworker.runs.errors import RunNotEndedError, RunNotFoundError
from caseworker.runs.postgres.erasure import tables_of_runs
from caseworker.runs.run import RunKey, RunSource
from tests.support.stores import (
    Oracle,
    end_of,
    graph_with_calls,
    new_run,
    open_oracle,
    open_stores,
    records_of,
)

KEY = RunKey("default", "a")
NAMES_RUNS = """
SELECT table_name FROM information_schema.columns JOIN information_schema.tables
    USING (table_schema, table_name)
WHERE table_schema = 'public' AND column_name = 'run_id' AND table_type = 'BASE TABLE' ORDER BY 1
"""
TABLES = """
SELECT table_name FROM information_schema.tables
WHERE table_schema = 'public' AND table_type = 'BASE TABLE'
    AND table_name NOT LIKE 'procrastinate%%' AND table_name <> 'alembic_version' ORDER BY 1
"""

FILES = """
INSERT INTO artifacts (tenant_id, run_id, name, slot, media_type, size_bytes, sha256, data)
VALUES ('default', 'a', 'a.txt', 'slot', 'text/plain', 1, repeat('0', 64), 'x')
"""
EVENTS = """
INSERT INTO events (tenant_id, run_id, seq, type) SELECT 'default', run_id, 1, 'run.started'
FROM runs ON CONFLICT DO NOTHING
"""


async def rows_of(oracle: Oracle, run_id: str) -> dict[str, int]:
    """Count the rows that name a run, by table."""
    tables = [row["table_name"] for row in await oracle.rows(NAMES_RUNS)]
    count = "SELECT count(*) FROM {table} WHERE run_id = %s"
    return {table: await oracle.value(count.format(table=table), run_id) for table in tables}


async def test_of_an_erased_run_its_id_is_left_for_a_day(database_url: str) -> None:
    """The remaining row has only its fence, and its ID and key can make a new run."""
    async with open_stores(database_url) as stores, open_oracle(database_url) as oracle:
        for run_id in ("a", "b"):
            accepted = await stores.runs.accept(new_run(run_id, key=run_id), worker_id="w1")
            calls = records_of(graph_with_calls(run_id), call_key="k", value="v")
            await stores.journal.finish(end_of(accepted.run, calls=calls))
        await oracle.rows(FILES)
        await oracle.rows(EVENTS)
        before = {run_id: await rows_of(oracle, run_id) for run_id in ("a", "b")}
        filled = {table for table, count in before["a"].items() if count}
        assert {"runs", "calls", "events", "artifacts"} <= filled

        await stores.runs.erase(KEY)

        assert await rows_of(oracle, "a") == {table: int(table == "runs") for table in before["a"]}
        kept = await oracle.value(
            "SELECT jsonb_strip_nulls(to_jsonb(runs)) FROM runs WHERE run_id = 'a'"
        )
        empty = {"attempts": 0, "losses": 0, "ended_calls": 0, "active_seconds": 0}
        assert kept.pop("created_at")
        assert kept == {"tenant_id": "default", "run_id": "a", "fence": 1, "priority": 0} | empty
        assert await rows_of(oracle, "b") == before["b"]
        again = await stores.runs.accept(new_run("a", text="other", key="a"), worker_id=None)
        assert (again.created, again.run.attempts) == (True, 0)
        with pytest.raises(RunNotEndedError):
            await stores.runs.erase(KEY)
        with pytest.raises(RunNotFoundError):
            await stores.runs.erase(RunKey("other", "b"))


async def test_rows_of_runs_that_an_operator_deletes_go_with_them(database_url: str) -> None:
    """Deleting runs with SQL deletes their rows, but not rows of another tenant with that ID."""
    async with open_stores(database_url) as stores, open_oracle(database_url) as oracle:
        for tenant in ("default", "other"):
            accepted = await stores.runs.accept(new_run("a", tenant=tenant), worker_id="w1")
            await stores.journal.finish(
                end_of(accepted.run, calls=records_of(graph_with_calls("a")))
            )
        await oracle.rows(EVENTS.replace("'default', run_id", "tenant_id, run_id"))
        before = await rows_of(oracle, "a")
        await oracle.rows("DELETE FROM runs WHERE tenant_id = 'default'")

        left = await rows_of(oracle, "a")
        assert left == {table: count // 2 for table, count in before.items()}
        assert {"runs": 1, "calls": 2, "events": 1}.items() <= left.items()


async def test_every_table_that_names_runs_is_known_to_the_code(database_url: str) -> None:
    """Erasing uses the tables in the code, so an unknown table would be forgotten."""
    async with open_oracle(database_url) as oracle:
        stored = {row["table_name"] for row in await oracle.rows(NAMES_RUNS)}
    assert stored == {table.name for table in tables_of_runs()}


async def test_every_table_belongs_to_one_feature(database_url: str) -> None:
    """A feature lists its tables in its folder; the tables of libraries are not listed."""
    async with open_oracle(database_url) as oracle:
        stored = [row["table_name"] for row in await oracle.rows(TABLES)]
    assert sorted(table for feature in FEATURES for table in feature.tables) == stored


async def test_a_run_that_went_on_from_an_erased_one_keeps_what_it_took_over(
    database_url: str,
) -> None:
    """The resumed run has its own copies."""
    async with open_stores(database_url) as stores, open_oracle(database_url) as oracle:
        accepted = await stores.runs.accept(new_run("a"), worker_id="w1")
        calls = records_of(graph_with_calls("a"), call_key="k", value="v", outcome="result")
        await stores.journal.finish(end_of(accepted.run, calls=calls))
        later = new_run("b")
        source = replace(later.request, source=RunSource("a", None))
        await stores.runs.accept(replace(later, request=source), worker_id="w1")
        kept = await rows_of(oracle, "b")
        assert kept["calls"] >= 2

        await stores.runs.erase(KEY)

        assert await rows_of(oracle, "b") == kept
