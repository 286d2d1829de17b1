"""Quotas are enforced in the transactions that accept and claim runs, across all processes."""

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar

import pytest
from sqlalchemy import text

from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.platform.postgres.engines import transaction
from caseworker.platform.postgres.locks import LOCK_TENANT
from caseworker.runs.errors import QueueFullError, QuotaExceededError
from caseworker.runs.execute.postgres.runs import halt_overdue
from caseworker.runs.ports import LateResult, RunFilter
from caseworker.runs.quotas import Quota
from caseworker.runs.run import Run, RunKey, RunStatus
from tests.integration.postgres.quota_runs import USUAL, accepted, run_within, set_quota
from tests.support.limits import store_limits
from tests.support.stores import (
    Oracle,
    Stores,
    end_of,
    new_run,
    open_oracle,
    open_stores,
    recovery_of,
)

T = TypeVar("T")


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run everything concurrently."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in work]
    return [task.result() for task in tasks]


@pytest.mark.guarantee(20)
async def test_no_more_runs_begin_than_a_tenant_may_have(
    pair: tuple[Stores, Stores], oracle: Oracle
) -> None:
    """Two processes accept and claim in parallel; other runs wait until a slot is released."""
    await set_quota(pair[0], max_running=3)
    runs = [run_within(f"r{number:02}") for number in range(24)]
    await together(accepted(pair[n % 2], new) for n, new in enumerate(runs))
    await together(stores.runs.claim(None, "w9") for stores in pair for _ in range(8))

    running = "SELECT count(*) FROM runs WHERE status = 'running'"
    assert await oracle.value(running) == 3
    page = await pair[0].runs.find("default", RunFilter(status=RunStatus.RUNNING))
    for each in page.items:
        assert (await pair[0].journal.finish(end_of(each))).frees_capacity
    await together(stores.runs.claim(None, "w9") for stores in pair for _ in range(8))
    assert await oracle.value(running) == 3


@pytest.mark.guarantee(13)
async def test_more_queued_runs_are_refused(pair: tuple[Stores, Stores]) -> None:
    """The refusal gives the numbers, and a repeated request gets its first answer."""
    await set_quota(pair[0], max_running=1, max_queued=1)
    for number in range(2):
        await pair[0].runs.accept(run_within(f"r{number}"), worker_id="w1")

    with pytest.raises(QuotaExceededError) as refused:
        await pair[1].runs.accept(run_within("r2"), worker_id="w1")
    assert (refused.value.dimension, refused.value.limit) == ("queued", 1)
    assert await pair[0].runs.get(RunKey("default", "r2")) is None
    assert not (await pair[1].runs.accept(run_within("r1"), worker_id="w1")).created


async def test_a_full_queue_of_a_tenant_refuses_no_run_that_has_a_free_slot(
    pair: tuple[Stores, Stores],
) -> None:
    """The one queued run is delayed, and it takes no slot until its time."""
    await set_quota(pair[0], max_running=1, max_queued=1)
    later = run_within("later")
    request = replace(later.request, start_at=datetime.now(UTC) + timedelta(hours=1))
    await pair[0].runs.accept(replace(later, request=request), worker_id=None)

    begun = await accepted(pair[1], run_within("now"))
    assert isinstance(begun, Run)
    assert begun.status is RunStatus.RUNNING
    assert isinstance(await accepted(pair[0], run_within("queued")), QuotaExceededError)


async def test_a_rate_lets_as_many_through_at_once(pair: tuple[Stores, Stores]) -> None:
    """Concurrency makes no difference, and refused or repeated requests take nothing."""
    await set_quota(pair[0], max_runs_per_minute=5)

    found = await together(accepted(pair[n % 2], run_within(f"r{n}")) for n in range(20))
    refusals = [each for each in found if isinstance(each, QuotaExceededError)]

    assert len(refusals) == 15
    assert {each.dimension for each in refusals} == {"runs_per_minute"}
    assert all(1 <= each.retry_after_seconds <= 12 for each in refusals)


async def test_a_rate_says_what_is_left(pair: tuple[Stores, Stores]) -> None:
    """Every accepted run reports it, and the allowance refills steadily."""
    await set_quota(pair[0], max_runs_per_minute=6000)
    first = await pair[0].runs.accept(run_within("r1"), worker_id="w1")
    assert first.rate is not None
    assert first.rate.limit == 6000
    assert first.rate.remaining >= 5990


async def test_whatever_quota_is_used_up_its_refusal_says_what_is_left_of_the_rate(
    pair: tuple[Stores, Stores],
) -> None:
    """A refused request takes nothing of the rate."""
    await set_quota(
        pair[0],
        max_running=0,
        max_queued=1,
        max_runs_per_minute=10,
        max_cost_usd_per_day=Decimal(5),
    )
    await pair[0].runs.accept(run_within("r0", cost="1"), worker_id="w1")

    for _ in range(2):
        with pytest.raises(QuotaExceededError) as refused:
            await pair[1].runs.accept(run_within("r1", cost="1"), worker_id="w1")
        assert refused.value.dimension == "queued"
        assert refused.value.rate is not None
        assert (refused.value.rate.limit, refused.value.rate.remaining) == (10, 9)
    await set_quota(pair[0], max_runs_per_minute=10, max_cost_usd_per_day=Decimal(0))
    with pytest.raises(QuotaExceededError) as refused:
        await pair[1].runs.accept(run_within("r1", cost="9"), worker_id="w1")
    assert refused.value.dimension == "cost_usd_today"
    assert refused.value.rate is not None


async def test_a_full_queue_and_repeated_requests_tell_what_is_left_of_the_rate(
    database_url: str,
) -> None:
    """Both leave the rate unchanged; a tenant without a rate limit gets no rate."""
    async with open_stores(database_url, store_limits(max_queued=1)) as stores:
        await set_quota(stores, max_running=0, max_runs_per_minute=10)
        first = replace(run_within("r0"), idempotency_key="k")
        await stores.runs.accept(first, worker_id=None)

        with pytest.raises(QueueFullError) as refused:
            await stores.runs.accept(run_within("r1"), worker_id=None)
        repeated = [
            await stores.runs.accept(replace(first, idempotency_key=key), worker_id=None)
            for key in ("k", None)
        ]
        await set_quota(stores, max_running=0)
        with pytest.raises(QueueFullError) as free:
            await stores.runs.accept(run_within("r1"), worker_id=None)

    assert [each.created for each in repeated] == [False, False]
    for rate in (refused.value.rate, *(each.rate for each in repeated)):
        assert rate is not None
        assert (rate.limit, rate.remaining) == (10, 9)
        assert 0 < rate.reset_seconds <= 6
    assert free.value.rate is None


async def test_runs_that_were_accepted_before_there_was_a_limit_of_cost_count(
    pair: tuple[Stores, Stores], oracle: Oracle
) -> None:
    """Their cost counts once they have ended, on any process, but they reserve nothing."""
    runs = [await accepted(pair[0], run_within(f"r{number}", cost="0.30")) for number in range(4)]
    begun = [each for each in runs if isinstance(each, Run)]
    await pair[0].journal.finish(end_of(begun[0], usage={"cost_usd": 0.40}))
    await set_quota(pair[0], max_cost_usd_per_day=Decimal("0.75"))

    assert isinstance(await accepted(pair[1], run_within("limited")), Run)
    usages: list[dict[str, Any]] = [{"cost_usd": 0.35}, {"cost_usd": None}, {"tokens": 5}]
    await together(
        pair[n % 2].journal.finish(end_of(each, usage=usage))
        for n, (each, usage) in enumerate(zip(begun[1:], usages, strict=True))
    )
    refused = await accepted(pair[1], run_within("refused", cost="0.05"))
    assert isinstance(refused, QuotaExceededError)
    assert refused.amounts == {
        "used": Decimal("0.75"),
        "reserved": 0,
        "requested": 0,
        "limit": Decimal("0.75"),
    }
    late = LateResult(key=begun[3].key, fence=1, calls=(), usage={"cost_usd": 0.04})
    await pair[1].runs.late(late)
    assert await oracle.value("SELECT used_cost_usd FROM accounts") == Decimal("0.79")


async def test_a_call_of_unknown_price_does_not_make_the_others_free(
    pair: tuple[Stores, Stores], oracle: Oracle
) -> None:
    """The known cost of the others counts at the end of the run and with a late result."""
    mixed, priced = [await accepted(pair[0], run_within(f"r{n}", cost="10")) for n in range(2)]
    assert isinstance(mixed, Run)
    assert isinstance(priced, Run)

    await pair[0].journal.finish(end_of(mixed, usage={"cost_usd": None, "cost_usd_known": 9.0}))
    await pair[0].journal.finish(end_of(priced, usage={"cost_usd": 2.0}))
    usage = {"cost_usd": None, "cost_usd_known": 2.0}
    await pair[0].runs.late(LateResult(key=priced.key, fence=1, calls=(), usage=usage))

    assert await oracle.value("SELECT used_cost_usd FROM accounts") == 11


async def test_runs_without_a_cost_are_not_counted(
    pair: tuple[Stores, Stores], oracle: Oracle
) -> None:
    """No row is locked for a tenant without a limit."""
    begun = await accepted(pair[0], run_within("free"))
    assert isinstance(begun, Run)
    await pair[0].journal.finish(end_of(begun, usage={"cost_usd": 0}))

    assert await oracle.rows("SELECT * FROM accounts") == []


async def test_who_waits_for_a_tenant_holds_no_run(
    pair: tuple[Stores, Stores], oracle: Oracle
) -> None:
    """Accepting locks the tenant before it locks the same run."""
    await set_quota(pair[0], max_running=1)
    await pair[0].runs.accept(run_within("r1"), worker_id=None)
    async with asyncio.TaskGroup() as group, transaction(pair[0].engines.work) as accepting:
        await accepting.exec_driver_sql(LOCK_TENANT, ("default",))
        claiming = group.create_task(pair[1].runs.claim(None, "w1"))
        await oracle.until_waiting("advisory")
        await accepting.execute(text("SELECT FROM runs FOR UPDATE NOWAIT"))
    assert claiming.result() is not None


@pytest.mark.parametrize("more", ["", ", '{}'", ", '{}', true"])
async def test_a_claim_finds_a_run_that_is_queued_after_its_start(
    pair: tuple[Stores, Stores], oracle: Oracle, database_url: str, more: str
) -> None:
    """The run's own claim may have taken the older run; nothing else would claim it soon."""
    claim = f"SELECT run_id FROM caseworker_claim('w1', NULL, NULL, NULL{more})"  # noqa: S608
    meanwhile = """WITH taken AS (
            UPDATE runs SET status = 'running', worker_id = 'w2', fence = fence + 1
        )
        INSERT INTO runs (tenant_id, run_id, kind, request, request_hash, metadata, status,
            queued_at)
        SELECT tenant_id, 'r2', kind, request, '', '{}', 'queued', clock_timestamp() FROM runs"""
    await set_quota(pair[0], max_running=5)
    await pair[0].runs.accept(run_within("r1"), worker_id=None)
    async with open_oracle(database_url) as claims, asyncio.TaskGroup() as group:
        async with transaction(pair[0].engines.work) as others:
            await others.exec_driver_sql(LOCK_TENANT, ("default",))
            claiming = group.create_task(claims.value(claim))
            await oracle.until_waiting("advisory")
            await others.exec_driver_sql(meanwhile)
        assert await claiming == "r2"


async def test_who_keeps_one_tenant_waits_for_no_other(
    pair: tuple[Stores, Stores], oracle: Oracle
) -> None:
    """Two processes that each hold one tenant could deadlock, so the run is skipped this time."""
    for tenant in ("a", "b"):
        await PostgresQuotas(pair[0].engines.work, USUAL).put(tenant, Quota(max_running=1))
        await pair[0].runs.accept(new_run("r1", tenant=tenant), worker_id=None)
    full = """INSERT INTO runs (tenant_id, run_id, kind, request, request_hash, metadata, status,
            worker_id)
        SELECT tenant_id, 'r2', kind, request, '', '{}', 'running', 'w2' FROM runs"""
    async with transaction(pair[0].engines.work) as other:
        await other.exec_driver_sql(LOCK_TENANT, ("b",))
        async with transaction(pair[0].engines.work) as accepting:
            await accepting.exec_driver_sql(LOCK_TENANT, ("a",))
            claiming = asyncio.create_task(pair[1].runs.claim(None, "w1"))
            await oracle.until_waiting("advisory")
            await accepting.exec_driver_sql(f"{full} WHERE tenant_id = 'a'")
        assert await claiming is None
    claimed = await pair[1].runs.claim(None, "w1")
    assert claimed is not None
    assert claimed.key.tenant == "b"


async def test_overdue_runs_are_ended_in_the_order_of_their_tenants(
    pair: tuple[Stores, Stores], oracle: Oracle
) -> None:
    """A fixed order prevents deadlocks between two processes that do this."""
    later = datetime.now(UTC) + timedelta(hours=1)
    for tenant, deadline in (("b", later), ("a", later + timedelta(milliseconds=1))):
        quota = Quota(max_cost_usd_per_day=Decimal(5))
        await PostgresQuotas(pair[0].engines.work, USUAL).put(tenant, quota)
        new = replace(run_within("late", cost="1", deadline=deadline), key=RunKey(tenant, "late"))
        await pair[0].runs.accept(new, worker_id=None)
    # As the previous release accepted them:
    await oracle.rows(
        """UPDATE runs SET deadline = deadline - interval '2 hours', reserved_cost_usd = 1"""
    )
    await oracle.rows(
        """INSERT INTO accounts (tenant_id, account, period, reserved_cost_usd)
        SELECT tenant_id, 'tenant', (created_at AT TIME ZONE 'UTC')::date, 1 FROM runs"""
    )
    async with asyncio.TaskGroup() as group, transaction(pair[0].engines.work) as charging:
        mine = text("SELECT FROM accounts WHERE tenant_id = 'a' FOR UPDATE")
        await charging.execute(mine)
        group.create_task(halted(pair[1]))
        await oracle.until_waiting("transactionid")
        others = text("SELECT FROM accounts WHERE tenant_id = 'b' FOR UPDATE NOWAIT")
        await charging.execute(others)

    assert await oracle.value("SELECT sum(reserved_cost_usd) FROM accounts") == 0


async def halted(stores: Stores) -> None:
    async with transaction(stores.engines.work) as connection:
        assert len(await halt_overdue(connection, 10)) == 2


async def test_runs_that_wait_for_others_of_their_tenant_are_given_no_jobs(
    pair: tuple[Stores, Stores], oracle: Oracle
) -> None:
    """Such runs need no jobs, so recovery does not recreate thousands of them."""
    await set_quota(pair[0], max_running=0)
    await pair[0].runs.accept(run_within("waits"), worker_id="w1")
    await pair[0].runs.accept(new_run("lost", tenant="other"), worker_id=None)
    await oracle.rows("DELETE FROM procrastinate_jobs")
    await oracle.rows("UPDATE runs SET queued_at = queued_at - interval '1 minute'")

    assert await recovery_of(pair[0]).recover() == [RunKey("other", "lost")]
    await oracle.rows("DELETE FROM procrastinate_jobs")
    assert await recovery_of(pair[0], usual_max_running=0).recover() == []


async def test_a_tenant_without_a_quota_has_that_of_the_configuration(database_url: str) -> None:
    """A limit of zero allows nothing."""
    limits = store_limits(quota=Quota(max_running=0))
    async with open_stores(database_url, limits) as stores:
        accepted = await stores.runs.accept(run_within("r1"), worker_id="w1")
        assert accepted.run.status is RunStatus.QUEUED
        assert await stores.runs.claim(None, "w1") is None
        await set_quota(stores, max_running=1)
        assert await stores.runs.claim(None, "w1") is not None


async def test_a_tenant_whose_lock_is_held_is_passed_over_with_all_its_runs(
    pair: tuple[Stores, Stores], oracle: Oracle
) -> None:
    """The claim finds a run of another tenant behind any number of skipped ones."""
    quotas = PostgresQuotas(pair[0].engines.work, USUAL)
    for tenant in ("a", "b"):
        await quotas.put(tenant, Quota(max_running=9))
    for tenant, count in (("a", 1), ("b", 60), ("c", 1)):
        runs = [
            replace(run_within(f"r{n:02}"), key=RunKey(tenant, f"r{n:02}")) for n in range(count)
        ]
        for each in runs:
            await pair[0].runs.accept(each, worker_id=None)

    async with oracle.connection.transaction():
        await oracle.rows("SELECT FROM runs WHERE tenant_id = 'a' FOR UPDATE")
        await oracle.rows("SELECT pg_advisory_xact_lock(hashtextextended('b', 2))")
        claimed = await pair[1].runs.claim(None, "w1")

    assert claimed is not None
    assert claimed.key.tenant == "c"
