"""Refusals of the gateway: their texts and their statuses."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from caseworker.core.budget.accounts import TENANT, AccountLimit
from caseworker.core.budget.budget import Budget, Dimension, field_name
from caseworker.core.budget.ledger import Scope
from caseworker.core.budget.stops import (
    CancelledError,
    DeadlineExceededError,
    HandOver,
    Stop,
    StopCause,
    StopKind,
)
from caseworker.features.external.session import NAMED_ONLY
from caseworker.gateway.dialects.chat_completions import CHAT_COMPLETIONS
from caseworker.gateway.dialects.mcp import MCP
from caseworker.gateway.dialects.messages import MESSAGES
from caseworker.gateway.dialects.responses import RESPONSES
from caseworker.gateway.refusals import FINISHED, SUPERSEDED, of_problem, refusal_of
from caseworker.nodes.agent.limits import RoomForTurns
from caseworker.platform.http.problems import ProblemError, ProblemType
from caseworker.runs.journal import RunTooLargeError
from tests.support.overflow_patterns import mistaken

pytestmark = pytest.mark.req("cw/15.refusals")

LIMITED = [each for each in Dimension if hasattr(Budget(), field_name(f"max_{each}"))]


def limit_of(dimension: Dimension, amount: int) -> Budget:
    fields: dict[str, Any] = {field_name(f"max_{dimension}"): amount}
    return Budget(**fields)


def stops_of(dimension: Dimension) -> Iterator[Stop]:
    """Yield the stops for an exhausted limit, and for one that the next call would exceed."""
    run = Scope("run", limit_of(dimension, 10))
    step = run.child("answer", limit_of(dimension, 5))
    if dimension is not Dimension.SECONDS:
        step.add({dimension: Decimal(3) if dimension is Dimension.COST_USD else 3})
        step.reserve({dimension: 1})
    for scope in (run, step):
        yield scope.stop(dimension)
        yield scope.stop(dimension, 20)
        yield scope.stop(dimension, 1, kept_for_answer=1)
    for period in ("day", "month"):
        if dimension in (Dimension.TOKENS, Dimension.COST_USD):
            yield quota(dimension, period).exceeded_by({dimension: 9})


def quota(dimension: Dimension, period: str) -> AccountLimit:
    return AccountLimit(
        account=TENANT,
        period=period,
        until=date(2026, 12, 1),
        dimension=dimension,
        used=Decimal(3),
        reserved=Decimal(2),
        limit=Decimal(10),
    )


OTHERS = [
    CancelledError("enough", requested_by="operator"),
    CancelledError(),
    DeadlineExceededError(datetime(2026, 12, 1, tzinfo=UTC)),
    RunTooLargeError(5_000_000, 4_000_000),
    Stop(StopCause(kind=StopKind.BUDGET, reason=f"The limit is reached. {NAMED_ONLY}")),
    HandOver("This process does not own the run."),
]


def turn_limit() -> Stop:
    room = RoomForTurns(scope=Scope("run", None), calls=(), max_turns=1, wrap_up_reserve=0)
    stop = room.stop_before(2)
    assert stop is not None
    return stop


def test_no_stop_is_taken_for_a_full_context_window() -> None:
    """An agent that takes it for one compresses its conversation and asks again."""
    found = [*OTHERS, turn_limit(), *(stop for each in LIMITED for stop in stops_of(each))]
    messages = [refusal_of(stop).message for stop in found]
    messages += [FINISHED.message, SUPERSEDED.message]

    assert {message: agents for message in messages if (agents := mistaken(message))} == {}
    assert len(LIMITED) == 10
    assert mistaken("The run was halted: Token limit exceeded: 1 used, limit 1")


@pytest.mark.parametrize("dimension", LIMITED)
def test_a_refusal_says_that_the_run_was_halted_and_by_which_limit(dimension: Dimension) -> None:
    """The status makes no client repeat the request, and the stop's kind is the code."""
    for stop in stops_of(dimension):
        refusal = refusal_of(stop)

        assert refusal.message == f"The run was halted: {stop.cause.reason}"
        assert (refusal.status, refusal.code) == (400, "budget")
        assert refusal.headers == {"x-should-retry": "false"}


def test_a_spent_token_budget_has_words_of_its_own() -> None:
    """The message names whose tokens are spent."""
    of_run, *_, of_tenant = stops_of(Dimension.TOKENS)

    assert str(of_run).startswith("The run's token budget is spent: 3 used, limit 10")
    assert str(of_tenant).startswith("The tenant's token budget is spent: 3 used, 2 reserved, ")


@pytest.mark.parametrize("dialect", [CHAT_COMPLETIONS, RESPONSES, MESSAGES, MCP])
def test_a_refusal_by_a_quota_says_when_its_period_ends(dialect: Any) -> None:
    """Message and document have the time; the status is final, because it is hours away."""
    refusal = refusal_of(quota(Dimension.COST_USD, "day").exceeded_by({Dimension.COST_USD: 9}))
    error = dialect.error(refusal)["error"]

    assert refusal.status == 400
    assert "the period ends at 2026-12-01T00:00:00Z" in error["message"]
    assert error.get("data", error)["resets_at"] == "2026-12-01T00:00:00Z"


@pytest.mark.parametrize(
    ("status", "seconds", "asked", "shown"),
    [
        (429, 5, None, (429, {"retry-after": "5"})),
        (429, None, "60", (429, {"retry-after": "60"})),
        (429, 5, "61", (400, {"x-should-retry": "false"})),
        (429, None, None, (400, {"x-should-retry": "false"})),
        (422, None, None, (400, {"x-should-retry": "false"})),
        (413, None, None, (413, {"x-should-retry": "false"})),
        (503, 2, None, (503, {"retry-after": "2"})),
    ],
)
def test_only_what_a_repetition_can_pass_soon_may_be_repeated(
    status: int, seconds: int | None, asked: str | None, shown: tuple[int, dict[str, str]]
) -> None:
    """A 429 whose Retry-After is absent or longer than a minute becomes 400."""
    kind = ProblemType(
        slug="full", status=status, title="Full", detail="Full.", retry_after_seconds=seconds
    )
    problem = ProblemError(kind)
    problem.headers = None if asked is None else {"Retry-After": asked}

    refusal = of_problem(problem)

    assert (refusal.status, refusal.headers) == shown
