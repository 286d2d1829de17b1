"""A claim among waiting tenants, of which none or all are at their limit of active runs."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from bench.figures import Check, Figure, Samples, Target
from bench.harness import Effort, Row
from bench.servers import database
from caseworker.runs.postgres.run_statements import CLAIM

TENANTS: Final = (1, 200, 5_000)
CLAIM_MS: Final = Target(must=1, stretch=0.5, unit="ms")
FILL: Final = """
INSERT INTO runs (tenant_id, run_id, kind, request, request_hash, metadata, status, queued_at)
SELECT 't' || t, 'r' || n, 'graph', '{"kind": "graph"}', '', '{}', 'queued', clock_timestamp()
FROM generate_series(1, %s::integer) n, generate_series(1, %s::integer) t
"""
AT_LIMIT: Final = """
WITH limited AS (
    INSERT INTO quotas (tenant_id, max_running)
    SELECT 't' || t, 1 FROM generate_series(1, %s::integer) t
)
INSERT INTO runs (tenant_id, run_id, kind, request, request_hash, metadata, status, worker_id,
    fence, started_at, claimed_at)
SELECT 't' || t, 'active', 'graph', '{"kind": "graph"}', '', '{}', 'running', 'w', 1, now(), now()
FROM generate_series(1, %s::integer) t
"""
NEXT: Final[tuple[Any, ...]] = ("bench", None, None, None, [], False)


async def measure(effort: Effort) -> Sequence[Figure]:
    """Claim runs one after another, each as the statement of the service without a transaction."""
    claims = effort.choose(500, 100)
    sides: dict[str, Samples] = {}
    for tenants in TENANTS:
        with _filled(tenants, runs=max(2, 2 * claims // tenants)) as connection:
            sides[f"{tenants:,} tenants"] = _claim(connection, claims)
    with _filled(TENANTS[-1], runs=2) as connection:
        connection.execute(AT_LIMIT, (TENANTS[-1], TENANTS[-1]))
        sides[f"{TENANTS[-1]:,} tenants at their limit"] = _claim(connection, claims)
    checks = [
        Check(what=name, value=samples.median, target=CLAIM_MS) for name, samples in sides.items()
    ]
    return [Figure(title=f"Claim, {claims:,} times", unit="ms", sides=sides, checks=checks)]


@contextmanager
def _filled(tenants: int, *, runs: int) -> Iterator[psycopg.Connection[Any]]:
    """Open a database in which each tenant has this number of queued runs."""
    with database() as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute(FILL, (runs, tenants))
        connection.execute("VACUUM ANALYZE")
        yield connection


def _claim(connection: psycopg.Connection[Any], claims: int) -> Samples:
    """Claim once to make the plans and to remove tenants at their limit, and then measure."""
    connection.execute(CLAIM, NEXT, prepare=True)
    took = []
    for _ in range(claims):
        began = time.perf_counter()
        connection.execute(CLAIM, NEXT, prepare=True)
        took.append(1_000 * (time.perf_counter() - began))
    return Samples(tuple(took))


ROW: Final = Row(title="Claims among waiting tenants", peers=(), measure=measure)
