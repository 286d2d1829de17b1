"""Calls reserve in the accounts above their runs, by the statement of their barrier."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from caseworker.core.budget.accounts import TENANT, Hold, HoldAnswer
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.platform.postgres.connections import driver_url
from caseworker.platform.postgres.engines import transaction
from caseworker.runs.execute.postgres.runs import halt_overdue, stopped_started
from caseworker.runs.ports import JournalWrite, LateResult
from caseworker.runs.postgres.listener import ACCOUNT_CHANNEL
from caseworker.runs.quotas import Quota, QuotaExceededError
from caseworker.runs.run import CallRecord, Run, RunKey, RunStatus
from tests.support.limits import store_limits
from tests.support.stores import (
    CANCEL_REQUEST,
    Oracle,
    Stores,
    end_of,
    new_run,
    open_stores,
    records_of,
)

DOLLAR = Decimal(1)
AMOUNTS = """SELECT used_cost_usd, reserved_cost_usd, used_tokens, reserved_tokens FROM accounts
    WHERE tenant_id = 'default' AND account = 'tenant' ORDER BY period"""


async def give(stores: Stores, **limits: Any) -> None:
    """Set the quota of the tenant."""
    await PostgresQuotas(stores.engines.work, Quota()).put("default", Quota(**limits))


async def begun(stores: Stores, run_id: str = "r1", worker_id: str = "w1") -> Run:
    """Return a run that a worker executes."""
    return (await stores.runs.accept(new_run(run_id), worker_id=worker_id)).run


def hold(seq: int, cost: str, *, tokens: int = 10, attempt: int = 1) -> Hold:
    return Hold(node_id=f"n{seq:06d}", attempt=attempt, cost_usd=Decimal(cost), tokens=tokens)


async def write(
    stores: Stores,
    run: Run,
    holds: Sequence[Hold] = (),
    settled: Sequence[Hold] = (),
    *,
    calls: tuple[CallRecord, ...] = (),
) -> Sequence[HoldAnswer]:
    """Pass a barrier; return the answers to the holds."""
    written = JournalWrite(
        key=run.key,
        fence=run.fence,
        calls=calls,
        accounts=run.accounts,
        holds=tuple(holds),
        settled=tuple(settled),
    )
    permission = await stores.journal.write(written)
    assert permission.owned
    return [permission.holds[each.key] for each in holds]


async def amounts(oracle: Oracle) -> tuple[Decimal | int, Decimal | int]:
    """Return the used and the reserved dollars of the only day."""
    (row,) = await oracle.rows(AMOUNTS)
    return row["used_cost_usd"], row["reserved_cost_usd"]


@pytest.mark.req("cw/3.accounts")
@pytest.mark.parametrize("period", ["day", "month"])
async def test_parallel_calls_of_two_processes_never_exceed_a_quota(
    pair: tuple[Stores, Stores], oracle: Oracle, period: str
) -> None:
    """Of 40 calls of 0.30 each, three fit into one dollar, whichever process asks."""
    await give(pair[0], **{f"max_cost_usd_per_{period}": DOLLAR})
    runs = [await begun(pair[n % 2], f"r{n}") for n in range(40)]

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(write(pair[n % 2], run, [hold(2, "0.30")]))
            for n, run in enumerate(runs)
        ]
    granted = [task.result()[0].granted for task in tasks]

    assert granted.count(True) == 3
    assert await amounts(oracle) == (0, Decimal("0.90"))


@pytest.mark.req("cw/3.accounts")
async def test_a_run_reserves_nothing_until_it_makes_a_call(stores: Stores, oracle: Oracle) -> None:
    """Runs with any budget are accepted while the quota is not used up."""
    await give(stores, max_cost_usd_per_day=DOLLAR)
    runs = [await begun(stores, f"r{n}") for n in range(9)]

    assert {run.accounts for run in runs} == {(TENANT,)}
    assert all([(await stores.runs.get(run.key)) == run for run in runs])
    assert await oracle.rows(AMOUNTS) == []


async def test_a_settled_call_counts_with_its_actual_amounts(
    stores: Stores, oracle: Oracle
) -> None:
    """The write that stores the result releases the rest for other calls."""
    await give(stores, max_cost_usd_per_day=DOLLAR)
    run = await begun(stores)

    await write(stores, run, [hold(2, "0.80", tokens=100)])
    (refused,) = await write(stores, run, [hold(3, "0.30")])
    (granted,) = await write(stores, run, [hold(3, "0.30")], [hold(2, "0.10", tokens=7)])

    assert (refused.granted, granted.granted) == (False, True)
    (limit,) = refused.limits
    assert (limit.reserved, limit.limit) == (Decimal("0.80"), DOLLAR)
    assert limit.used == 0
    assert (limit.account, limit.period) == (TENANT, "day")
    today = datetime.now(UTC).date()
    assert limit.until == today + timedelta(days=1)
    assert await oracle.rows(AMOUNTS) == [
        {
            "used_cost_usd": Decimal("0.10"),
            "reserved_cost_usd": Decimal("0.30"),
            "used_tokens": 7,
            "reserved_tokens": 10,
        }
    ]


async def test_calls_of_one_write_are_granted_in_order(stores: Stores, oracle: Oracle) -> None:
    """A call that does not fit takes nothing from the ones after it."""
    await give(stores, max_cost_usd_per_day=DOLLAR)
    run = await begun(stores)

    costs = ("0.40", "0.70", "0.60", "0.01")
    answers = await write(stores, run, [hold(n, cost) for n, cost in enumerate(costs, 2)])

    assert [each.granted for each in answers] == [True, False, True, False]
    assert await amounts(oracle) == (0, DOLLAR)


async def test_a_repeated_write_reserves_and_settles_once(stores: Stores, oracle: Oracle) -> None:
    """The answer to a write may be lost after its commit, so every write may be repeated."""
    await give(stores, max_cost_usd_per_day=DOLLAR)
    run = await begun(stores)

    for _ in range(3):
        (answer,) = await write(stores, run, [hold(2, "0.80")])
        assert answer.granted
    assert await amounts(oracle) == (0, Decimal("0.80"))
    for _ in range(3):
        await write(stores, run, settled=[hold(2, "0.50")])
    assert await amounts(oracle) == (Decimal("0.50"), 0)
    ended = end_of(run, settled=(hold(2, "0.50"),), usage={"cost_usd": 0.5})
    for _ in range(2):
        assert (await stores.journal.finish(ended)).done
    assert await amounts(oracle) == (Decimal("0.50"), 0)


async def test_attempts_of_a_call_are_reserved_one_after_the_other(
    stores: Stores, oracle: Oracle
) -> None:
    """One write may settle an attempt and reserve the next one."""
    await give(stores, max_cost_usd_per_day=DOLLAR)
    run = await begun(stores)

    await write(stores, run, [hold(2, "0.60")])
    (answer,) = await write(stores, run, [hold(2, "0.60", attempt=2)], [hold(2, "0.20")])

    assert answer.granted
    assert await amounts(oracle) == (Decimal("0.20"), Decimal("0.60"))


@pytest.mark.req("cw/3.accounts")
async def test_the_next_owner_settles_the_calls_of_a_lost_one(
    pair: tuple[Stores, Stores], oracle: Oracle
) -> None:
    """They count with their maximum, as in the journal; the late write of the old owner fails."""
    await give(pair[0], max_cost_usd_per_day=DOLLAR)
    run = await begun(pair[0])
    await write(pair[0], run, [hold(2, "0.30"), hold(3, "0.20")])
    await oracle.rows("UPDATE runs SET status = 'queued', worker_id = NULL, queued_at = now()")
    assert await amounts(oracle) == (0, Decimal("0.50"))

    claimed = await pair[1].runs.claim(run.key, "w2")

    assert claimed is not None
    assert claimed.accounts == (TENANT,)
    assert await amounts(oracle) == (Decimal("0.50"), 0)
    late = JournalWrite(key=run.key, fence=run.fence, settled=(hold(2, "0.01"),))
    assert not (await pair[0].journal.write(late)).owned
    await pair[1].journal.finish(end_of(claimed, usage={"cost_usd": 0.5}))
    assert await amounts(oracle) == (Decimal("0.50"), 0)


@pytest.mark.req("cw/3.accounts")
async def test_a_run_that_ends_settles_all_its_calls(stores: Stores, oracle: Oracle) -> None:
    """Abandoned calls count with their maximum; late costs replace the estimate."""
    await give(stores, max_cost_usd_per_day=DOLLAR)
    run = await begun(stores)
    await write(stores, run, [hold(2, "0.30"), hold(3, "0.20")])

    ended = end_of(run, settled=(hold(2, "0.10"),), usage={"cost_usd": 0.30})
    await stores.journal.finish(ended)

    assert await amounts(oracle) == (Decimal("0.30"), 0)
    assert await oracle.rows("SELECT * FROM account_holds") == []
    await stores.runs.late(LateResult(key=run.key, fence=1, calls=(), usage={"cost_usd": 0.12}))
    assert await amounts(oracle) == (Decimal("0.12"), 0)


@pytest.mark.parametrize("end", ["cancel", "deadline"])
async def test_a_run_without_an_owner_counts_once_when_it_ends(
    stores: Stores, oracle: Oracle, end: str
) -> None:
    """Its calls are counted when it is lost or ends; the process that ends it adds nothing."""
    await give(stores, max_cost_usd_per_day=DOLLAR)
    run = await begun(stores)
    graph = ExecutionGraph("r1")
    graph.mark_running(graph.begin_node(graph.create_root("case"), "llm", "plan", "small-model"))
    charged = records_of(graph, call_key="k", charge={"cost_usd": "0.30"})
    await write(stores, run, [hold(2, "0.30")], calls=charged)
    await oracle.rows(
        """UPDATE runs SET status = 'queued', worker_id = NULL, queued_at = now(),
        deadline = CASE WHEN %s THEN now() - interval '1 s' END""",
        end == "deadline",
    )
    if end == "cancel":
        await stores.runs.cancel(run.key, CANCEL_REQUEST)
    async with transaction(stores.engines.work) as connection:
        assert await halt_overdue(connection, 1) == []
        assert await stopped_started(connection, 1) == [run.key]
    claimed = await stores.runs.claim_stopped(run.key, "w2")
    assert claimed is not None
    status = RunStatus.CANCELLED if end == "cancel" else RunStatus.HALTED
    finished = await stores.journal.finish(end_of(claimed, status, usage={"cost_usd": 0.3}))

    assert finished.done
    assert await amounts(oracle) == (Decimal("0.30"), 0)
    assert await oracle.rows("SELECT * FROM account_holds") == []


@pytest.mark.req("cw/3.accounts")
async def test_a_call_counts_on_the_day_on_which_it_was_reserved(
    stores: Stores, oracle: Oracle
) -> None:
    """A call that ends after midnight counts yesterday; today its reservation takes nothing."""
    await give(stores, max_cost_usd_per_day=DOLLAR)
    run = await begun(stores)
    await write(stores, run, [hold(2, "0.80")])
    for table in ("accounts", "account_holds"):
        await oracle.rows(f"UPDATE {table} SET period = period - 1")  # noqa: S608

    (granted,) = await write(stores, run, [hold(3, "0.90")])
    assert granted.granted
    await write(stores, run, settled=[hold(2, "0.70")])

    rows = await oracle.rows(AMOUNTS)
    assert [(row["used_cost_usd"], row["reserved_cost_usd"]) for row in rows] == [
        (Decimal("0.70"), 0),
        (0, Decimal("0.90")),
    ]


async def test_the_month_is_the_sum_of_its_days(stores: Stores, oracle: Oracle) -> None:
    """Used and reserved amounts of earlier days of the month count."""
    await give(stores, max_cost_usd_per_month=Decimal(2))
    run = await begun(stores)
    first = datetime.now(UTC).date().replace(day=1)
    await oracle.rows(
        """INSERT INTO accounts (tenant_id, account, period, used_cost_usd, reserved_cost_usd)
        VALUES ('default', 'tenant', %s, 1.2, 0.3), ('default', 'tenant', %s, 9, 9)""",
        first,
        first - timedelta(days=1),
    )

    refused, granted = await write(stores, run, [hold(2, "0.60"), hold(3, "0.50")])

    assert (refused.granted, granted.granted) == (False, True)
    (month,) = refused.limits
    assert (month.period, month.used, month.reserved) == ("month", Decimal("1.2"), Decimal("0.3"))


async def test_a_used_up_quota_accepts_no_more_runs(stores: Stores, oracle: Oracle) -> None:
    """What calls have reserved does not count, because they may use less."""
    await give(stores, max_cost_usd_per_day=DOLLAR)
    run = await begun(stores)
    await write(stores, run, [hold(2, "1.00")])
    await begun(stores, "r2")
    await write(stores, run, settled=[hold(2, "1.00")])

    with pytest.raises(QuotaExceededError) as refused:
        await begun(stores, "r3")
    assert refused.value.dimension == "cost_usd_today"
    assert refused.value.amounts == {"used": 1, "reserved": 0, "requested": 0, "limit": 1}
    assert 0 < refused.value.retry_after_seconds <= 86_400


async def test_a_tenant_without_a_quota_has_the_limit_of_the_configuration(
    database_url: str, oracle: Oracle
) -> None:
    """The process passes it with each write."""
    usual = Quota(max_cost_usd_per_day=DOLLAR)
    async with open_stores(database_url, store_limits(quota=usual)) as stores:
        run = await begun(stores)
        answers = await write(stores, run, [hold(2, "0.60"), hold(3, "0.60")])
        assert [each.granted for each in answers] == [True, False]
        await PostgresQuotas(stores.engines.work, usual).put("default", Quota(max_running=9))
        (answer,) = await write(stores, run, [hold(3, "0.60")])
        assert answer.granted


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    connection = await psycopg.AsyncConnection.connect(driver_url(url), autocommit=True)
    async with connection:
        await connection.execute(f"LISTEN {ACCOUNT_CHANNEL}")
        yield connection


async def test_a_settlement_is_notified_only_while_calls_wait(
    stores: Stores, database_url: str
) -> None:
    """A notification serialises commits, so only a refused call asks for it."""
    await give(stores, max_cost_usd_per_day=DOLLAR)
    run = await begun(stores)
    async with listening(database_url) as connection:
        await write(stores, run, [hold(2, "0.80")])
        await write(stores, run, settled=[hold(2, "0.10")])
        await write(stores, run, [hold(3, "0.80")])
        (refused,) = await write(stores, run, [hold(4, "0.80")])
        await write(stores, run, settled=[hold(3, "0.10")])
        await connection.execute("NOTIFY caseworker_accounts, 'end'")
        payloads = list[str]()
        async for notice in connection.notifies():
            payloads.append(notice.payload)
            if notice.payload == "end":
                break

    assert not refused.granted
    assert [json.loads(each) for each in payloads[:-1]] == [
        {"tenant": "default", "account": TENANT}
    ]


@pytest.mark.req("cw/3.accounts")
async def test_the_table_of_the_previous_release_shows_the_same_amounts(
    stores: Stores, oracle: Oracle
) -> None:
    """Additions of the previous release count for calls, and the reverse."""
    await give(stores, max_cost_usd_per_day=Decimal(10))
    run = await begun(stores)
    await write(stores, run, [hold(2, "1.00"), hold(3, "2.00")])
    await write(stores, run, settled=[hold(2, "0.50")])
    day = "SELECT cost_usd, reserved_usd FROM quota_days"
    assert await oracle.rows(day) == [{"cost_usd": Decimal("0.50"), "reserved_usd": Decimal(2)}]

    added = """INSERT INTO quota_days AS d (tenant_id, day, cost_usd, reserved_usd)
        SELECT 'default', (now() AT TIME ZONE 'UTC')::date, cost, reserved
        FROM (VALUES ({})) AS more(cost, reserved)
        ON CONFLICT (tenant_id, day) DO UPDATE SET cost_usd = d.cost_usd + excluded.cost_usd,
            reserved_usd = d.reserved_usd + excluded.reserved_usd"""
    await oracle.rows(added.format("0, 6"))
    (refused,) = await write(stores, run, [hold(4, "2.00")])
    assert not refused.granted
    await oracle.rows(added.format("1, -6"))
    (granted,) = await write(stores, run, [hold(4, "2.00")])

    assert granted.granted
    assert await amounts(oracle) == (Decimal("1.50"), Decimal(4))
    assert await oracle.rows(day) == [{"cost_usd": Decimal("1.50"), "reserved_usd": Decimal(4)}]


@pytest.mark.req("cw/3.accounts")
@pytest.mark.parametrize("parameters", ["", ", '{}'::text[]"])
async def test_the_previous_release_claims_no_run_whose_calls_must_reserve(
    stores: Stores, oracle: Oracle, parameters: str
) -> None:
    """It would not reserve them; runs that it accepted itself reserve as a whole."""
    await give(stores, max_cost_usd_per_day=DOLLAR)
    await stores.runs.accept(new_run("r1"), worker_id=None)
    claim = f"SELECT run_id FROM caseworker_claim('w1', NULL, NULL, NULL{parameters})"  # noqa: S608

    assert await oracle.rows(claim) == []
    await stores.runs.accept(new_run("r2"), worker_id=None)
    await oracle.rows("UPDATE runs SET reserved_cost_usd = 0.5 WHERE run_id = 'r2'")
    assert await oracle.rows(claim) == [{"run_id": "r2"}]
    claimed = await stores.runs.claim(None, "w2")
    assert claimed is not None
    assert claimed.key == RunKey("default", "r1")


async def test_a_run_that_the_previous_release_accepted_keeps_its_reservation(
    stores: Stores, oracle: Oracle
) -> None:
    """Its calls reserve nothing, because the whole run did, and its cost counts at its end."""
    run = await begun(stores)
    await oracle.rows("UPDATE runs SET reserved_cost_usd = 0.5")
    await oracle.rows(
        """INSERT INTO quota_days (tenant_id, day, reserved_usd)
        SELECT tenant_id, (created_at AT TIME ZONE 'UTC')::date, 0.5 FROM runs"""
    )
    stored = await stores.runs.get(run.key)
    assert stored is not None
    assert stored.accounts == ()

    await stores.journal.finish(end_of(run, usage={"cost_usd": 0.2}))

    assert await amounts(oracle) == (Decimal("0.2"), 0)
    assert (await stores.runs.get(run.key) or run).status is RunStatus.COMPLETED


async def test_a_released_run_keeps_the_actual_amounts_of_its_calls(
    stores: Stores, oracle: Oracle
) -> None:
    """The next owner settles only the calls that the release does not."""
    await give(stores, max_cost_usd_per_day=DOLLAR)
    run = await begun(stores)
    await write(stores, run, [hold(2, "0.40"), hold(3, "0.30")])

    await stores.runs.release(
        run, active_seconds=1, calls=(), counted=False, settled=(hold(2, "0.05"),)
    )

    assert await amounts(oracle) == (Decimal("0.05"), Decimal("0.30"))
    assert await stores.runs.claim(run.key, "w2") is not None
    assert await amounts(oracle) == (Decimal("0.35"), 0)


async def test_a_run_without_a_quota_touches_no_account(stores: Stores, oracle: Oracle) -> None:
    """Its cost is added when it ends."""
    run = await begun(stores)
    assert run.accounts == ()
    await write(stores, run)
    assert await oracle.rows(AMOUNTS) == []

    await stores.journal.finish(replace(end_of(run), usage={"cost_usd": 0.25}))

    assert await amounts(oracle) == (Decimal("0.25"), 0)
