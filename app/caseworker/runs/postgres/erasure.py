"""Erases runs.

Erasing a run deletes every row that refers to it, in all tables. Only the messages of a thread
stay, marked as erased.
"""

from collections.abc import Sequence

from sqlalchemy import Table, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.runs.errors import RunNotEndedError, RunNotFoundError
from caseworker.runs.postgres.tables import metadata, of_run, runs
from caseworker.runs.run import TERMINAL, RunKey

ERASED_AT = "run_erased_at"
"""Column of tables whose rows stay when their run is erased; it is set to the time of erasure."""

DROP_JOBS = """
DELETE FROM procrastinate_jobs WHERE status = 'todo' AND queueing_lock = ANY(%s)
"""

KEEP_FENCE = "INSERT INTO runs (tenant_id, run_id, fence) VALUES (%s, %s, %s)"
"""Keep the ID and the fencing token of an erased run.

A new run with the same ID continues above that token, so late writes of a former owner are
rejected.
"""


async def erase_in(connection: AsyncConnection, key: RunKey) -> None:
    """Erase a finished run in this transaction; its ID and fencing token are kept for a day.

    Raises:
        RunNotFoundError: the run does not exist.
        RunNotEndedError: the run has not ended.
    """
    query = select(runs.c.status, runs.c.fence).where(
        of_run(runs, key), runs.c.request.is_not(None)
    )
    run = (await connection.execute(query.with_for_update())).one_or_none()
    if run is None:
        raise RunNotFoundError(key.run_id)
    if run.status not in TERMINAL:
        raise RunNotEndedError(key.run_id)
    await delete_runs(connection, key.tenant, [key.run_id])
    await connection.exec_driver_sql(KEEP_FENCE, (key.tenant, key.run_id, run.fence))


def tables_of_runs() -> Sequence[Table]:
    """Return the tables whose rows belong to a run, with or without a foreign key; runs last."""
    tables = metadata.tables.values()
    of_runs = [table for table in tables if {"tenant_id", "run_id"} <= set(table.c.keys())]
    # Messages first: an answer that an unfinished run needs may have to be read from the calls.
    return sorted(of_runs, key=lambda table: (table is runs, ERASED_AT not in table.c))


async def delete_runs(connection: AsyncConnection, tenant: str, run_ids: Sequence[str]) -> None:
    """Delete runs whose rows are locked, with all their data."""
    if not run_ids:
        return
    for table in tables_of_runs():
        theirs = (table.c.tenant_id == tenant) & table.c.run_id.in_(run_ids)
        if ERASED_AT in table.c:
            erased = update(table).values({ERASED_AT: func.clock_timestamp()})
            await connection.execute(erased.where(theirs))
        else:
            await connection.execute(delete(table).where(theirs))
    jobs = [f"{tenant}/{run_id}" for run_id in run_ids]
    await connection.exec_driver_sql(DROP_JOBS, (jobs,))
