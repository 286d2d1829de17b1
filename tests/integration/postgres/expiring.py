"""Finished runs that retention deletes once they are old enough."""

from dataclasses import dataclass

from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.features.retention.postgres import PostgresRetention
from caseworker.features.retention.sweep import Retention
from caseworker.main.features import DROPS
from caseworker.runs.quotas import Quota
from tests.support.stores import Oracle, Stores, end_of, graph_with_calls, new_run, records_of

_PARTS = {
    "artifacts": """
        INSERT INTO artifacts (tenant_id, run_id, name, slot, media_type, size_bytes, sha256, data)
        VALUES (%s, %s, 'a.txt', 'slot', 'text/plain', 1, repeat('0', 64), 'x')""",
    "events": "INSERT INTO events (tenant_id, run_id, seq, type) VALUES (%s, %s, 1, 'run.started')",
    "snapshots": "INSERT INTO snapshots VALUES (%s, %s, '{}')",  # as an earlier release stored it
}
RECORDS = {
    "runs": "SELECT count(*) FROM runs",
    "requests": "SELECT count(*) FROM calls WHERE request IS NOT NULL",
    **{table: f"SELECT count(*) FROM {table}" for table in _PARTS},  # noqa: S608 - our own words
}
"""Categories of records with a number of days of their own; each statement counts one."""


@dataclass(frozen=True)
class ExpiringRuns:
    """Finished runs, their age, and the sweeps that delete them."""

    stores: Stores
    oracle: Oracle

    async def add(self, run_id: str, tenant: str = "default") -> None:
        """Store a finished run with a record of every category."""
        new = new_run(run_id, tenant=tenant)
        accepted = await self.stores.runs.accept(new, worker_id="w1")
        graph = graph_with_calls(run_id)
        calls = records_of(graph, call_key="k", value="v", request={"prompt": "p"})
        await self.stores.journal.finish(end_of(accepted.run, calls=calls))
        for table in _PARTS:
            await self.add_part(table, run_id, tenant)

    async def add_part(self, table: str, run_id: str, tenant: str = "default") -> None:
        """Store an artifact, an event or a snapshot of a run."""
        await self.oracle.rows(_PARTS[table], tenant, run_id)

    async def age(self, days: int, pattern: str) -> None:
        """Let the runs whose IDs match a pattern have ended ``days`` days earlier."""
        await self.oracle.rows(
            "UPDATE runs SET finished_at = finished_at - make_interval(days => %s)"
            " WHERE run_id LIKE %s",
            days,
            pattern,
        )

    async def sweep(self, **days: int) -> None:
        """Delete the records that are older than their days; a category without days stays."""
        pool = self.stores.engines.work
        retention = Retention(
            store=PostgresRetention(pool, DROPS),
            nearly_full=PostgresQuotas(pool, Quota()).nearly_full,
            days={**dict.fromkeys(DROPS), **days},
            unlimited=[],
            sweep_seconds=600,
        )
        await retention.sweep()

    async def counts(self) -> dict[str, int]:
        """Return the number of records of each category."""
        return {record: await self.oracle.value(query) for record, query in RECORDS.items()}

    async def run_ids(self) -> list[str]:
        """Return the IDs of all stored runs, sorted."""
        rows = await self.oracle.rows("SELECT run_id FROM runs ORDER BY run_id")
        return [row["run_id"] for row in rows]
