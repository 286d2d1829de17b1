"""A database whose tables were never analysed, as after a restore, is reported."""

import asyncio

import pytest
from structlog.testing import capture_logs

from caseworker.main.doctor import _database_findings
from caseworker.platform.postgres.statistics import ADVICE, tables_without_statistics
from caseworker.settings.schema import Settings
from tests.support.stores import Oracle, Stores
from tests.support.tenants import open_tenants

LARGE = """
INSERT INTO audit (tenant_id, actor, action, target, actor_tenant)
SELECT 'default', repeat('x', 1000), 'key.created', n, 'default' FROM generate_series(1, 10000) n
"""
FLUSH = "SELECT pg_stat_force_next_flush()"
CRASHED = "SELECT pg_stat_reset_single_table_counters('audit'::regclass)"


@pytest.mark.parametrize("reindexed", [True, False])
async def test_a_large_table_that_was_never_analysed_is_named(
    stores: Stores, oracle: Oracle, reindexed: bool
) -> None:
    """A restore builds indexes last, which sets the number of rows, but no other statistics."""
    assert await tables_without_statistics(stores.engines.work) == []

    await oracle.rows(LARGE)
    await oracle.rows(FLUSH)
    if reindexed:
        await oracle.rows("REINDEX TABLE audit")
    assert await tables_without_statistics(stores.engines.work) == ["audit"]

    await oracle.rows("ANALYZE audit")
    assert await tables_without_statistics(stores.engines.work) == []

    await oracle.rows(CRASHED)
    assert await tables_without_statistics(stores.engines.work) == []


async def test_the_doctor_and_the_start_of_a_process_say_how_to_analyse(
    database_url: str, oracle: Oracle
) -> None:
    """Both name the tables and the command."""
    await oracle.rows(LARGE)
    await oracle.rows(FLUSH)
    findings = await _database_findings(Settings(), database_url)
    with capture_logs() as lines:
        async with open_tenants(database_url, executes=True):
            await asyncio.sleep(0)

    [finding] = [each for each in findings if each.check == "statistics"]
    assert (finding.ok, finding.detail) == (False, f"none of the tables audit: {ADVICE}")
    [line] = [each for each in lines if each["event"] == "statistics.missing"]
    assert line["records"] == ["audit"]
    assert line["advice"] == ADVICE

    await oracle.rows("ANALYZE audit")
    findings = await _database_findings(Settings(), database_url)
    assert [each.ok for each in findings if each.check == "statistics"] == [True]
