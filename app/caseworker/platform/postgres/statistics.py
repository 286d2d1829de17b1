"""Finds tables that Postgres has no statistics of, as after a restore.

The planner then guesses, and some statements read many more rows than necessary.
"""

from collections.abc import Sequence
from typing import Final

from caseworker.platform.postgres.engines import Pool, transaction

ADVICE: Final = 'run: psql "$DATABASE_URL" --command=ANALYZE'

WITHOUT_STATISTICS: Final = """
SELECT pg_class.relname::text FROM pg_stat_user_tables JOIN pg_class ON pg_class.oid = relid
WHERE schemaname = current_schema() AND (relpages > 1000 OR n_live_tup >= 10000)
    AND last_analyze IS NULL AND last_autoanalyze IS NULL
    AND (reltuples < 0 OR n_mod_since_analyze > reltuples / 2)
ORDER BY 1
"""
"""Return the tables with more than 8 MB or 10,000 rows that were never analysed.

It reads only the catalogue and counters, because the size of a table waits for locks on it.

A crash of the server also loses the time of the last analysis, but then the table has few changes
since. ``reltuples`` does not prove an analysis: building an index sets it too. Row security hides
``pg_stats`` from the owner of the tables.
"""


async def tables_without_statistics(pool: Pool) -> Sequence[str]:
    """Return the names of the tables that should be analysed.

    Raises:
        StoreUnavailableError: the database does not respond.
    """
    async with transaction(pool) as connection:
        return list((await connection.exec_driver_sql(WITHOUT_STATISTICS)).scalars())
