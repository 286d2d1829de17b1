"""Constraints of the database, independent of the code that uses it."""

import itertools
from collections.abc import Awaitable

import psycopg
import pytest

from caseworker.runs.run import NEXT, TERMINAL, RunStatus
from tests.support.stores import Oracle

PENDING_CANCEL = "pending cancel"
AFTER_PENDING_CANCEL = {RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.CANCELLED}
STATUSES = [PENDING_CANCEL, *RunStatus]
MOVES = list(itertools.permutations(STATUSES, 2))
LAWFUL = {(PENDING_CANCEL, status) for status in AFTER_PENDING_CANCEL} | {
    (before, after) for before, afters in NEXT.items() for after in afters
}


async def insert(oracle: Oracle, status: str, run_id: str = "r") -> None:
    """Insert a row with ``status``."""
    is_run = status != PENDING_CANCEL
    await oracle.rows(
        """INSERT INTO runs (tenant_id, run_id, status, request, fence, worker_id, finished_at,
               cancel_requested_at)
           VALUES ('t', %s, %s, %s, 1, %s, %s, %s)""",
        run_id,
        status if is_run else None,
        "{}" if is_run else None,
        None if status == RunStatus.WAITING else "w",
        "2026-01-01" if status in TERMINAL else None,
        None if is_run else "2026-01-01",
    )


async def move(oracle: Oracle, status: str, run_id: str = "r", *, fence: int = 2) -> None:
    """Update a row to ``status``, with all columns that depend on it."""
    await oracle.rows(
        """UPDATE runs SET status = %s, request = %s, fence = %s, finished_at = %s,
               worker_id = %s WHERE run_id = %s""",
        None if status == PENDING_CANCEL else status,
        None if status == PENDING_CANCEL else "{}",
        fence,
        "2026-01-01" if status in TERMINAL else None,
        None if status == RunStatus.WAITING else "w",
        run_id,
    )


async def refusal(statement: Awaitable[object]) -> str | None:
    """Return the name of the constraint that refuses a statement; None if it was accepted."""
    try:
        await statement
    except psycopg.errors.CheckViolation as error:
        return error.diag.constraint_name
    return None


def violated(refused: pytest.ExceptionInfo[psycopg.Error]) -> str | None:
    return refused.value.diag.constraint_name


@pytest.mark.req("card/persist")
@pytest.mark.guarantee(4)
async def test_only_lawful_transitions_of_a_run_are_accepted(oracle: Oracle) -> None:
    """The database allows exactly the transitions of the domain, for every pair of statuses."""
    accepted = set()
    for number, (before, after) in enumerate(MOVES):
        run_id = f"r{number}"
        await insert(oracle, before, run_id)
        refused = await refusal(move(oracle, after, run_id))
        assert refused in (None, "runs_lawful_transition"), (before, after)
        if refused is None:
            accepted.add((before, after))

    assert accepted == LAWFUL
    assert len(MOVES) == 56


@pytest.mark.parametrize("status", sorted(TERMINAL))
@pytest.mark.guarantee(4)
async def test_a_run_that_has_ended_stays_as_it_is(oracle: Oracle, status: RunStatus) -> None:
    """A second end is refused, even the same one under another fence."""
    await insert(oracle, status)
    for other in RunStatus:
        if other is not status:
            with pytest.raises(psycopg.errors.CheckViolation):
                await move(oracle, other)

    assert await oracle.value("SELECT status FROM runs") == status


@pytest.mark.parametrize(
    ("column", "value", "constraint"),
    [
        ("status", "'paused'", "runs_status_known"),
        ("finished_at", "now()", "runs_end_has_time"),
        ("worker_id", "NULL", "runs_running_has_worker"),
        ("request", "NULL", "runs_pending_cancel_or_run"),
        ("fence", "0", "runs_fence_rises"),
        ("status", "'waiting'", "runs_waiting_has_no_worker"),
    ],
)
async def test_a_row_that_contradicts_itself_is_refused(
    oracle: Oracle, column: str, value: str, constraint: str
) -> None:
    """A running run has a worker and a request but no end, and its fence never decreases."""
    await insert(oracle, "running")

    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        await oracle.rows(f"UPDATE runs SET {column} = {value}")  # noqa: S608
    lawful = {constraint, "runs_lawful_transition"} if column == "status" else {constraint}
    assert violated(refused) in lawful


@pytest.mark.parametrize("before", ["queued", PENDING_CANCEL])
async def test_nobody_claims_a_run_under_an_old_fence(oracle: Oracle, before: str) -> None:
    """Otherwise late writes of an earlier owner would be accepted."""
    await insert(oracle, before)

    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        await move(oracle, "running", fence=1)
    assert violated(refused) == "runs_fence_rises"


@pytest.mark.req("card/delete")
@pytest.mark.parametrize("value", ["NULL", "now()"])
async def test_a_cancel_request_is_not_taken_back(oracle: Oracle, value: str) -> None:
    """A cancel request is kept until the run has ended, and afterwards."""
    await insert(oracle, "running")
    await oracle.rows("UPDATE runs SET cancel_requested_at = '2026-01-01'")

    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        await oracle.rows(f"UPDATE runs SET cancel_requested_at = {value}")  # noqa: S608
    assert violated(refused) == "runs_cancel_request_stays"


CALL_STATUSES = ["created", "running", "success", "fail", "halt"]


@pytest.mark.req("001/inv3")
async def test_a_call_that_has_ended_is_not_opened_and_does_not_end_again(oracle: Oracle) -> None:
    """A cost that becomes known later can still be added."""
    await insert(oracle, "running")
    accepted = set()
    pairs = itertools.permutations(CALL_STATUSES, 2)
    for seq, (before, after) in enumerate(pairs):
        await oracle.rows(
            "INSERT INTO calls (tenant_id, run_id, seq, status, node) VALUES ('t','r',%s,%s,'{}')",
            seq,
            before,
        )
        update = oracle.rows("UPDATE calls SET status = %s WHERE seq = %s", after, seq)
        refused = await refusal(update)
        assert refused in (None, "calls_terminal_is_final"), (before, after)
        if refused is None:
            accepted.add((before, after))
    await oracle.rows("UPDATE calls SET charge = '{\"tokens\": 1}' WHERE status = 'success'")

    assert {before for before, _ in accepted} == {"created", "running"}
    assert len(accepted) == 8


@pytest.mark.req("card/persist")
async def test_a_run_has_one_snapshot(oracle: Oracle) -> None:
    """The snapshot is stored with the end, and a run ends once."""
    await insert(oracle, "running")
    statement = "INSERT INTO snapshots VALUES ('t', 'r', '{}')"
    await oracle.rows(statement)

    with pytest.raises(psycopg.errors.UniqueViolation) as refused:
        await oracle.rows(statement)
    assert violated(refused) == "snapshots_pkey"


@pytest.mark.req("card/s2s")
async def test_an_idempotency_key_belongs_to_one_run_of_a_tenant(oracle: Oracle) -> None:
    """Runs without a key do not conflict."""
    for run_id in ("a", "b", "c"):
        await insert(oracle, "queued", run_id)
    await oracle.rows("UPDATE runs SET idempotency_key = 'k' WHERE run_id = 'a'")

    with pytest.raises(psycopg.errors.UniqueViolation) as refused:
        await oracle.rows("UPDATE runs SET idempotency_key = 'k' WHERE run_id = 'b'")
    assert violated(refused) == "runs_idempotency_key"


@pytest.mark.req("004/lifecycle")
@pytest.mark.parametrize(
    ("first", "second", "guard"),
    [
        (("step.started", "a", "n2"), ("step.started", "a", "n3"), "events_one_start"),
        (("step.completed", "a", "n2"), ("step.error", "a", "n2"), "events_one_end"),
        (("step.cancelled", "a", "n2"), ("step.cancelled", "a", "n2"), "events_one_end"),
        (("run.completed", None, None), ("run.failed", None, None), "events_one_run_end"),
    ],
)
@pytest.mark.guarantee(5)
async def test_a_step_starts_once_and_what_has_ended_does_not_end_again(
    oracle: Oracle, first: tuple[str, ...], second: tuple[str, ...], guard: str
) -> None:
    """The guard applies to each run separately."""
    statement = """INSERT INTO events (tenant_id, run_id, seq, type, step_id, node_id)
        VALUES ('t', %s, %s, %s, %s, %s)"""
    for run_id in ("r", "other"):
        await insert(oracle, "running", run_id)
        await oracle.rows(statement, run_id, 1, *first)

    with pytest.raises(psycopg.errors.UniqueViolation) as refused:
        await oracle.rows(statement, "r", 2, *second)
    assert violated(refused) == guard
