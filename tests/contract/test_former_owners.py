"""Writes of a process that does not own the run, or no longer owns it, change nothing."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg import sql

from caseworker.core.budget.accounts import TENANT, Hold
from caseworker.engine.waiting_calls import Question, WaitingCall
from caseworker.runs.ports import JournalWrite, LateResult
from caseworker.runs.quotas import Quota
from caseworker.runs.run import EventRecord, Run, RunKey
from tests.support.api import Api
from tests.support.artifacts import LIMITS, new_artifact
from tests.support.stores import end_of, graph_with_calls, new_run, records_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = RunKey("default", "case-1")
HOLD = Hold(node_id="n000002", attempt=1, cost_usd=Decimal("0.5"), tokens=10)
QUESTION = Question(subject="pay", message="Pay?", arguments={}, schema=None, timeout_seconds=60)
ASKED = WaitingCall(call_id="late", node_id="n000002", call_key="k", question=QUESTION)
CALLS = records_of(graph_with_calls("case-1"), call_key="k", charge={"tokens": 9}, outcome="result")
Write = Callable[[Api, Run], Coroutine[Any, Any, None]]


async def journals(api: Api, run: Run) -> None:
    event = EventRecord(seq=50, ts=datetime.now(UTC), type="step.started", step_id="s")
    write = JournalWrite(
        key=run.key,
        fence=run.fence,
        calls=CALLS,
        events=(event,),
        accounts=(TENANT,),
        holds=(HOLD,),
        settled=(replace(HOLD, attempt=2),),
    )
    assert not (await api.journal.write(write)).owned


async def finishes(api: Api, run: Run) -> None:
    assert not (await api.journal.finish(end_of(run, calls=CALLS))).done


async def releases(api: Api, run: Run) -> None:
    await api.store.release(run, active_seconds=9, calls=CALLS, counted=True, settled=(HOLD,))


async def suspends(api: Api, run: Run) -> None:
    await api.store.release(
        run, active_seconds=9, calls=CALLS, counted=False, waits_for=("open",), settled=(HOLD,)
    )


async def asks(api: Api, run: Run) -> None:
    assert await api.approval_store.ask(run, ASKED) is None


async def saves_a_file(api: Api, run: Run) -> None:
    await api.files.save(run.key, run.fence, new_artifact("late.png"), LIMITS)


async def adds_costs(api: Api, run: Run) -> None:
    await api.store.late(LateResult(key=run.key, fence=run.fence, calls=CALLS, usage={"tokens": 9}))


WRITES: Sequence[Write] = (
    journals,
    finishes,
    releases,
    suspends,
    asks,
    saves_a_file,
    adds_costs,
)


def rows_of(connection: psycopg.Connection[Any], tenant: str) -> dict[str, list[str]]:
    """Return the rows of a tenant."""
    return {
        table: [row for row in rows if row.startswith(f"({tenant},")]
        for table, rows in stored(connection).items()
    }


def stored(connection: psycopg.Connection[Any]) -> dict[str, list[str]]:
    """Return all rows of the tables that have runs."""
    found = connection.execute(
        "SELECT DISTINCT relname FROM pg_attribute JOIN pg_class ON attrelid = pg_class.oid"
        " WHERE relkind = 'r' AND attname = 'tenant_id'"
    ).fetchall()
    rows = {
        table: connection.execute(
            sql.SQL("SELECT {0}::text FROM {0} ORDER BY 1").format(sql.Identifier(table))
        ).fetchall()
        for (table,) in found
    }
    return {table: [text for (text,) in rows[table]] for table in rows}


@pytest.mark.parametrize("ahead", [-1, 1], ids=["former owner", "later owner"])
@pytest.mark.parametrize("write", WRITES)
async def test_only_the_fencing_token_of_the_owner_lets_a_write_through(
    api: Api, module_database: psycopg.Connection[Any], write: Write, ahead: int
) -> None:
    """Every write of a process with another token leaves all rows as they are."""
    await api.quotas.put("default", Quota(max_cost_usd_per_day=Decimal(100)))
    first = (await api.store.accept(new_run("case-1"), worker_id="w1")).run
    await api.store.release(first, active_seconds=1, calls=(), counted=True)
    owner = await api.store.claim(KEY, "w2")
    assert owner is not None
    question = replace(ASKED, call_id="open")
    assert await api.approval_store.ask(owner, question) is not None
    before = stored(module_database)

    await write(api, replace(owner, fence=owner.fence + ahead))

    assert stored(module_database) == before


@pytest.mark.parametrize("write", [each for each in WRITES if each is not adds_costs])
async def test_a_run_that_was_released_has_no_owner(
    api: Api, module_database: psycopg.Connection[Any], write: Write
) -> None:
    """The token is still that of the last owner, whose later writes change nothing."""
    run = (await api.store.accept(new_run("case-1"), worker_id="w1")).run
    await api.store.release(run, active_seconds=1, calls=(), counted=True)
    before = stored(module_database)

    await write(api, run)

    assert stored(module_database) == before


@pytest.mark.parametrize("write", [journals, finishes])
async def test_an_owner_in_the_same_batch_does_not_lend_its_ownership(
    api: Api, module_database: psycopg.Connection[Any], write: Write
) -> None:
    """The runs of two tenants have the same ID and token, and only one of them has an owner."""
    owned, lost, first = [
        (await api.store.accept(new_run("case-1", tenant=tenant), worker_id="w1")).run
        for tenant in ("a", "b", "c")
    ]
    await api.store.release(lost, active_seconds=1, calls=(), counted=True)
    before = rows_of(module_database, "b")
    assert before["runs"]

    async with asyncio.TaskGroup() as group:  # the first write fills the time, the others wait
        group.create_task(api.journal.write(JournalWrite(key=first.key, fence=first.fence)))
        await asyncio.sleep(0)
        group.create_task(write(api, lost))
        wrote = group.create_task(api.journal.finish(end_of(owned, calls=CALLS)))

    assert wrote.result().done
    assert rows_of(module_database, "b") == before
