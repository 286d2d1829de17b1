"""The database finds a run by its primary key, even when it is nearly empty.

Plans of prepared statements and of foreign keys are made once. A plan made for a small table may
scan a whole index, which is slow after the table has grown.
"""

import re
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from caseworker.platform.postgres.engines import transaction
from caseworker.runs.ports import RunFilter
from caseworker.runs.postgres.run_statements import FINISH, JOURNAL, RUN_STATES
from caseworker.runs.read.postgres.costs import Bounds
from caseworker.runs.read.postgres.run_reader import STATISTICS
from caseworker.runs.run import RunKind, RunStatus
from tests.support.stores import Oracle, Stores, end_of, new_run, statements_of

FOREIGN_KEY = """
SELECT 1 FROM ONLY runs x WHERE tenant_id = %s::text AND run_id = %s::text FOR KEY SHARE OF x
"""
"""The query that a foreign key uses to find the run of a row."""


NOTE_SETTING = """
CREATE TABLE noted (sequential_scans text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN INSERT INTO noted VALUES (current_setting('enable_seqscan')); RETURN NULL; END $$;
CREATE TRIGGER noting AFTER UPDATE ON runs EXECUTE FUNCTION note();
"""


async def asked_for(stores: Stores, wanted: RunFilter) -> tuple[str, Any]:
    """Return the statement and its parameters with which the store finds runs."""
    (found,) = await statements_of(stores.runs.find("default", wanted))
    return found


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(JOURNAL, id="journal"),
        pytest.param(FINISH, id="finish"),
        pytest.param(RUN_STATES, id="states"),
        pytest.param(FOREIGN_KEY, id="foreign key"),
    ],
)
@pytest.mark.parametrize("there", [0, 20])
async def test_a_run_is_found_by_its_primary_key_alone(
    stores: Stores, oracle: Oracle, statement: str, there: int
) -> None:
    """No other index may look as cheap, however few runs exist."""
    for number in range(there):
        await stores.runs.accept(new_run(f"r{number}"), worker_id="w1")
    await oracle.rows("SET enable_seqscan = off")
    numbers = count(1)
    generic = re.sub("%s", lambda _: f"${next(numbers)}", statement)
    cursor = await oracle.connection.execute(f"EXPLAIN (GENERIC_PLAN) {generic}".encode())
    plan = "\n".join(str(row["QUERY PLAN"]) for row in await cursor.fetchall())
    used = set(re.findall(r"using (\w+) on runs\b", plan))

    assert used == {"runs_pkey"}, plan


async def test_the_connection_of_owners_makes_no_plan_that_reads_a_whole_table(
    stores: Stores, oracle: Oracle
) -> None:
    """Prepared statements outlive the growth of tables, so sequential scans are disabled."""
    accepted = await stores.runs.accept(new_run("r"), worker_id="w1")
    await oracle.connection.execute(NOTE_SETTING)
    await stores.journal.finish(end_of(accepted.run))

    assert await oracle.rows("SELECT DISTINCT * FROM noted") == [{"sequential_scans": "off"}]


@pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.HALTED, RunStatus.FAILED])
async def test_a_list_of_runs_with_one_status_reads_no_others(
    stores: Stores, oracle: Oracle, status: RunStatus
) -> None:
    """Rows of any status, many or few, old or new, come from an index in the order of the list."""
    statement, parameters = await asked_for(stores, RunFilter(status=status, limit=20))
    await oracle.rows(
        """INSERT INTO runs (tenant_id, run_id, kind, status, request, metadata, request_hash,
               created_at, finished_at)
           SELECT 'default', 'old-' || n, 'case', CASE WHEN n %% 1000 = 0 THEN 'failed'
               WHEN n < 2000 THEN 'halted' ELSE 'completed' END, '{}', '{}', 'h',
               now() - make_interval(secs => 5000 - n), now()
           FROM generate_series(1, 5000) n"""
    )
    await oracle.rows("VACUUM ANALYZE runs")
    explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
    cursor = await oracle.connection.execute(explained.encode(), parameters)
    (row,) = await cursor.fetchall()
    plan = row["QUERY PLAN"][0]["Plan"]

    assert plan["Actual Rows"] == (5 if status is RunStatus.FAILED else 21)
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= 30, plan


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (RunFilter(kind=RunKind.AGENT), "runs_by_kind_and_status"),
        (RunFilter(agent="helper"), "runs_by_agent_and_status"),
        (RunFilter(agent="helper", status=RunStatus.FAILED), "runs_by_agent_not_completed"),
        (RunFilter(thread_id="talk"), "runs_by_thread"),
        (RunFilter(metadata={"ticket": "7"}), "runs_by_terms"),
    ],
    ids=["kind", "agent", "agent and status", "thread", "metadata"],
)
async def test_a_filtered_list_of_runs_has_an_index(
    stores: Stores, oracle: Oracle, wanted: RunFilter, index: str
) -> None:
    """The query of the store uses this index among many runs of other kinds."""
    await stores.runs.accept(new_run("first"), worker_id="w1")
    await oracle.rows(
        """INSERT INTO runs
           (tenant_id, run_id, kind, status, request, metadata, request_hash, finished_at)
           SELECT 'default', 'old-' || n, CASE n %% 1000 WHEN 0 THEN 'agent' ELSE 'graph' END,
           'completed', request || jsonb_build_object(
               'kind', CASE n %% 1000 WHEN 0 THEN 'agent' ELSE 'graph' END,
               'graph_ref', jsonb_build_object('name', 'a' || n, 'version', 1))
               || CASE WHEN n %% 1000 = 1 THEN jsonb_build_object('chat', jsonb_build_object(
                   'thread_id', 't' || n)) ELSE '{}' END,
           jsonb_build_object('ticket', n), 'h', now()
           FROM runs, generate_series(1, 5000) n"""
    )
    await oracle.rows("ANALYZE runs")
    statement, parameters = await asked_for(stores, wanted)
    cursor = await oracle.connection.execute(f"EXPLAIN {statement}".encode(), parameters)
    plan = "\n".join(str(row["QUERY PLAN"]) for row in await cursor.fetchall())

    assert index in plan, plan


async def test_lists_are_planned_for_their_values(stores: Stores) -> None:
    """However often a connection is asked, Postgres does not change to a plan for any values."""
    for number in range(20):
        wanted = RunFilter(metadata={"ticket": f"{number}"}, status=RunStatus.FAILED)
        await stores.runs.find("default", wanted)
        await stores.runs.stoppable("default", wanted)
    used = """SELECT sum(generic_plans) AS generic, sum(custom_plans) AS custom
        FROM pg_prepared_statements WHERE strpos(statement, 'metadata') > 0"""
    async with transaction(stores.engines.work) as connection:
        plans = (await connection.exec_driver_sql(used)).one()

    assert plans.generic == 0
    assert plans.custom > 20


async def test_statistics_read_the_runs_of_their_range_only(stores: Stores, oracle: Oracle) -> None:
    """The index of kept costs finds 50 of 5,000 runs."""
    await stores.runs.accept(new_run("first"), worker_id="w1")
    await oracle.rows(
        """INSERT INTO runs (tenant_id, run_id, kind, status, request, metadata, request_hash,
               created_at, finished_at)
           SELECT 'default', 'old-' || n, 'case', 'completed', request, '{}', 'h',
               now() - make_interval(mins => n), now()
           FROM runs, generate_series(1, 5000) n"""
    )
    await oracle.rows("VACUUM ANALYZE runs, run_costs")
    now = datetime.now(UTC)
    bounds = Bounds.of(now - timedelta(minutes=50), now, by_day=False)
    values = {"tenant": "default", "period": "hour", **bounds.values()}
    explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {STATISTICS}".encode()
    (row,) = await (await oracle.connection.execute(explained, values)).fetchall()
    plan = row["QUERY PLAN"][0]["Plan"]

    assert "run_costs_newest" in str(plan)
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= 40, plan
