"""Lists read few rows, also if many rows match some of their filters.

The tests count the blocks that a statement reads. Time would depend on the machine.
"""

from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from caseworker.features.audit.postgres import PostgresAudit
from caseworker.features.erasure.postgres import PostgresErasure, Subject
from caseworker.features.waiting_calls.postgres import PostgresWaitingCalls
from caseworker.features.webhooks.delivery import DeliveryStatus
from caseworker.features.webhooks.postgres import PostgresWebhooks
from caseworker.runs.ports import RunFilter
from caseworker.runs.run import RunKind, RunStatus
from tests.support.stores import Oracle, Stores, blocks_read, new_run, statements_of

FILL = """
INSERT INTO runs (tenant_id, run_id, kind, status, request, metadata, request_hash, created_at,
    finished_at, worker_id)
SELECT tenant, 'old-' || n, of.kind, CASE n %% 100 WHEN 4 THEN 'waiting' ELSE of.status END,
    request || jsonb_build_object('kind', kind, 'graph_ref', jsonb_build_object(
        'name', agent, 'version', 1), 'input', repeat('x', 1500)),
    jsonb_build_object('source', source, 'release', CASE WHEN n > 3000 THEN '1' ELSE '2' END)
        || CASE WHEN tenant = 'large' OR n %% 3000 = 2998 THEN '{"ticket": "7"}'::jsonb
            ELSE '{}' END,
    'h', now() - make_interval(mins => 5 * n),
    CASE n %% 100 WHEN 4 THEN NULL ELSE now() END, NULL
FROM (SELECT request FROM runs WHERE run_id = 'first') AS first,
    (VALUES ('default'), ('large')) AS tenants(tenant), generate_series(1, 6000) n,
    LATERAL (SELECT CASE n %% 2 WHEN 0 THEN 'completed' ELSE 'failed' END AS status,
        CASE n %% 2 WHEN 0 THEN 'agent' ELSE 'graph' END AS kind,
        CASE WHEN n %% 4 = 0 THEN 'clerk' WHEN n %% 2 = 0 THEN 'helper' END AS agent,
        CASE n %% 2 WHEN 0 THEN 'web' ELSE 'app' END AS source) of
"""
"""6,000 runs of each of two tenants in 20 days. All agent runs have completed and come from the
web, and all graphs have failed."""

MOST_BLOCKS = 700
"""The runs of a tenant fill 1,500 blocks."""


@pytest.fixture
async def filled(stores: Stores, oracle: Oracle) -> Stores:
    await stores.runs.accept(new_run("first"), worker_id="w1")
    await oracle.rows(FILL)
    await oracle.rows("VACUUM ANALYZE runs")
    return stores


async def most_blocks(oracle: Oracle, call: Awaitable[Any]) -> int:
    """Return the blocks that the largest statement of an operation reads, and check its plan."""
    asked = await statements_of(call)
    assert asked
    return max([await blocks_read(oracle, *one) for one in asked])


FEW: dict[str, tuple[RunFilter, int]] = {
    "status and agent": (RunFilter(status=RunStatus.FAILED, agent="clerk"), 0),
    "kind and agent": (RunFilter(kind=RunKind.EXTERNAL, agent="clerk"), 0),
    "status and kind": (RunFilter(status=RunStatus.FAILED, kind=RunKind.AGENT), 0),
    "cases": (RunFilter(kind=RunKind.CASE), 1),
    "rare metadata": (RunFilter(metadata={"ticket": "7"}), 2),
    "two values of metadata": (RunFilter(metadata={"source": "web", "ticket": "7"}), 2),
    "metadata and status": (RunFilter(metadata={"source": "web"}, status=RunStatus.FAILED), 0),
    "metadata and kind": (RunFilter(metadata={"source": "app"}, kind=RunKind.AGENT), 0),
    "metadata and agent": (RunFilter(metadata={"source": "app"}, agent="clerk"), 0),
    "metadata of old runs": (RunFilter(metadata={"release": "1"}, limit=20), 20),
    "frequent metadata": (RunFilter(metadata={"source": "web"}, limit=20), 20),
    "metadata and time": (
        RunFilter(metadata={"ticket": "7"}, created_after=datetime.now(UTC) - timedelta(days=11)),
        1,
    ),
}


@pytest.mark.parametrize(("wanted", "matching"), FEW.values(), ids=FEW.keys())
async def test_filters_with_few_common_runs_are_decided_by_an_index(
    filled: Stores, oracle: Oracle, wanted: RunFilter, matching: int
) -> None:
    """Thousands of runs match each filter alone, or runs of another tenant do."""
    page = await filled.runs.find("default", wanted)

    assert len(page.items) == matching
    assert await most_blocks(oracle, filled.runs.find("default", wanted)) <= MOST_BLOCKS


@pytest.mark.parametrize(
    ("wanted", "matching"),
    [
        (RunFilter(metadata={"source": "app"}), 0),
        (RunFilter(metadata={"release": "1"}, limit=10), 10),
        (RunFilter(agent="helper"), 0),
        (RunFilter(status=RunStatus.WAITING, kind=RunKind.GRAPH), 0),
        (RunFilter(created_before=datetime.now(UTC) - timedelta(days=1000)), 0),
    ],
    ids=["metadata", "some", "agent", "status and kind", "time"],
)
async def test_the_runs_to_cancel_are_read_without_those_that_have_ended(
    filled: Stores, oracle: Oracle, wanted: RunFilter, matching: int
) -> None:
    """One in a hundred runs has not ended."""
    keys = await filled.runs.stoppable("default", wanted)

    assert len(keys) == matching
    assert await most_blocks(oracle, filled.runs.stoppable("default", wanted)) <= MOST_BLOCKS


async def test_erasing_reads_no_runs_but_those_with_the_metadata(
    filled: Stores, oracle: Oracle
) -> None:
    """The runs to erase and their forks are read by indexes."""
    await oracle.rows(
        """INSERT INTO runs (tenant_id, run_id, kind, status, request, metadata, request_hash,
               finished_at)
           SELECT tenant_id, 'fork', kind, status, request || jsonb_build_object('source',
               jsonb_build_object('run_id', run_id)), '{}', 'h', finished_at
           FROM runs WHERE tenant_id = 'default' AND run_id = 'old-2998'"""
    )
    await oracle.rows("VACUUM ANALYZE runs")
    erasure = PostgresErasure(filled.engines.work)
    subject = Subject("default", {"ticket": "7"})

    def runs_of() -> Awaitable[Any]:
        return erasure.runs_of(subject, limit=100, excluding=[])

    found = await runs_of()
    copies = await erasure.descendants("default", found)

    assert set(found) == {"old-2998", "old-5998"}
    assert copies == {"old-2998": ["fork"], "old-5998": [], "fork": []}
    assert await most_blocks(oracle, runs_of()) <= MOST_BLOCKS
    assert await most_blocks(oracle, erasure.descendants("default", found)) <= MOST_BLOCKS


async def test_open_approvals_are_read_in_order_without_those_of_ended_runs(
    filled: Stores, oracle: Oracle
) -> None:
    """Thousands of older questions were never answered, because their runs have ended."""
    await oracle.rows(
        """INSERT INTO approvals (tenant_id, run_id, approval_id, node_id, call_key, subject,
               message, arguments, requested_at, expires_at, run_ended)
           SELECT tenant_id, run_id, 'a', 'n', 'k', 's', repeat('m', 200), '{}', created_at,
               now() + interval '1 day', CASE WHEN finished_at IS NOT NULL THEN true END
           FROM runs WHERE run_id <> 'first'"""
    )
    await oracle.rows("VACUUM ANALYZE approvals")
    approvals = PostgresWaitingCalls(filled.engines)
    page = await approvals.waiting("default", limit=20, cursor=None)

    assert [each.key.run_id for each in page.items[:2]] == ["old-5904", "old-5804"]
    assert len(page.items) == 20
    listed = approvals.waiting("default", limit=20, cursor=None)
    assert await most_blocks(oracle, listed) <= MOST_BLOCKS


@pytest.mark.parametrize("tenant", ["default", None], ids=["of a tenant", "of all"])
@pytest.mark.parametrize(
    ("filters", "matching"),
    [
        ({"action": "quota.set"}, 3),
        ({"after": timedelta(minutes=3.5)}, 3),
        ({"before": timedelta(minutes=19_990.5)}, 10),
        ({}, 20),
    ],
    ids=["action", "after", "before", "all"],
)
async def test_the_audit_log_is_read_by_action_and_time(
    stores: Stores, oracle: Oracle, tenant: str | None, filters: dict[str, Any], matching: int
) -> None:
    """Of 20,000 acts, one a minute, only those on the page are read."""
    await oracle.rows(
        """INSERT INTO audit (tenant_id, at, action, target, actor, actor_tenant)
           SELECT 'default', now() - make_interval(mins => 20001 - n), CASE n %% 6000 WHEN 7
               THEN 'quota.set' ELSE 'run.cancelled' END, 'run', 'anna', 'default'
           FROM generate_series(1, 20000) n WHERE n %% 6000 <> 7 OR n < 15000"""
    )
    await oracle.rows("VACUUM ANALYZE audit")
    audit = PostgresAudit(stores.engines.work)
    now = datetime.now(UTC)
    times = {key: now - ago for key, ago in filters.items() if isinstance(ago, timedelta)}
    asked = {"action": None, "after": None, "before": None} | filters | times

    def find() -> Awaitable[Any]:
        return audit.find(tenant, limit=20, cursor=None, **asked)

    assert len((await find()).items) == matching
    assert await most_blocks(oracle, find()) <= 60


@pytest.mark.parametrize("status", list(DeliveryStatus))
async def test_webhook_deliveries_of_a_status_are_read_alone(
    filled: Stores, oracle: Oracle, status: DeliveryStatus
) -> None:
    """A few of thousands of deliveries are pending or dead."""
    await oracle.rows(
        """INSERT INTO webhook_deliveries
               (tenant_id, run_id, type, url, status, created_at, due_at)
           SELECT tenant_id, run_id, 't', 'https://example.org', of.status, created_at,
               CASE of.status WHEN 'pending' THEN now() END
           FROM (SELECT *, row_number() OVER (ORDER BY created_at) AS n FROM runs
               WHERE tenant_id = 'default') numbered, LATERAL (SELECT CASE n %% 2000
                   WHEN 5 THEN 'pending' WHEN 6 THEN 'dead' ELSE 'delivered' END) AS of(status)"""
    )
    await oracle.rows("VACUUM ANALYZE webhook_deliveries")
    webhooks = PostgresWebhooks(filled.engines, cast("Any", None))

    def find() -> Awaitable[Any]:
        return webhooks.find("default", status=status, run_id=None, limit=20, cursor=None)

    expected = 20 if status is DeliveryStatus.DELIVERED else 4
    assert len((await find()).items) in (expected, expected - 1)
    assert await most_blocks(oracle, find()) <= 60
