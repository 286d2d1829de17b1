"""Approvals on the database: races with a decision, and the constraints of a row."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import text

from caseworker.engine.waiting_calls import Question, Verdict, WaitingCall
from caseworker.features.waiting_calls.postgres import PostgresWaitingCalls
from caseworker.features.waiting_calls.waiting_calls import (
    ApprovalDecidedError,
    Deciding,
    RunWaitingCalls,
)
from caseworker.platform.postgres.engines import transaction
from caseworker.runs.errors import InvalidRunError
from caseworker.runs.postgres.rows import encode_cursor
from caseworker.runs.run import RunKey
from tests.support.stores import Oracle, Stores, new_run

KEY = RunKey("default", "case-1")


@pytest.fixture
async def approvals(stores: Stores) -> PostgresWaitingCalls:
    """Return the approvals of a running run that has asked a question."""
    approvals = PostgresWaitingCalls(stores.engines)
    await ask(stores, approvals, "Pay?")
    return approvals


async def ask(stores: Stores, approvals: PostgresWaitingCalls, message: str) -> Any:
    run = (await stores.runs.accept(new_run("case-1"), worker_id="w1")).run
    question = Question(
        subject="pay", message=message, arguments={}, schema=None, timeout_seconds=60.0
    )
    asked = WaitingCall(call_id=message[:3], node_id="n000002", call_key="step", question=question)
    return await approvals.ask(run, asked)


async def test_a_decision_that_comes_with_the_end_of_the_time_is_refused(
    stores: Stores, approvals: PostgresWaitingCalls, oracle: Oracle
) -> None:
    """The run reads a timeout while another transaction stores a decision."""
    deciding = Deciding(approval_id="Pay", verdict=Verdict.APPROVED, by="anna")
    async with transaction(stores.engines.work) as looking:
        late = "UPDATE approvals SET decision = 'timed_out', decided_at = now()"
        await looking.execute(text(late))
        decision = asyncio.create_task(RunWaitingCalls(approvals).decide(KEY, deciding))
        await oracle.until_waiting("transactionid")
    with pytest.raises(ApprovalDecidedError):
        await decision

    found = await approvals.decisions(KEY, ["Pay"])
    assert found["Pay"].verdict is Verdict.TIMED_OUT


async def test_a_question_may_hold_what_the_database_refuses(
    stores: Stores, approvals: PostgresWaitingCalls
) -> None:
    """NUL and lone surrogates, which a tool or a model may write, become U+FFFD."""
    asked = await ask(stores, approvals, "odd\x00\ud800!")

    assert asked.question.message == "odd\ufffd\ufffd!"


async def test_what_people_read_passes_by_the_wall_between_tenants(
    approvals: PostgresWaitingCalls, oracle: Oracle
) -> None:
    """A policy that shows no rows of the table hides every approval."""
    assert await approvals.get(KEY, "Pay") is not None
    await oracle.rows("ALTER POLICY own_tenant ON approvals USING (false)")

    assert await approvals.get(KEY, "Pay") is None
    assert await approvals.of_run(KEY) == []
    assert (await approvals.waiting("default", limit=5, cursor=None)).items == []


@pytest.mark.parametrize("ids", [["\x00", "a"], ["a", "\ud800"], ["é", "a"], [7, "a"], ["a"]])
async def test_a_cursor_that_is_none_of_ours_is_refused(
    approvals: PostgresWaitingCalls, ids: list[Any]
) -> None:
    """The cursor is refused before any query."""
    cursor = encode_cursor("approvals", ["2026-01-01T00:00:00+00:00", *ids])
    with pytest.raises(InvalidRunError):
        await approvals.waiting("default", limit=10, cursor=cursor)
