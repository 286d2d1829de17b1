"""Stops, which no error policy overrides."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from caseworker.core.budget import stops
from caseworker.core.budget.budget import Budget
from caseworker.core.budget.stops import (
    CancelledError,
    DeadlineExceededError,
    HandOver,
    Stop,
    StopCause,
    StopKind,
)
from caseworker.core.budget.usage import BudgetExceededError, ResourceUsage

AT = datetime(2025, 9, 8, 12, tzinfo=UTC)

EVERY_STOP = [
    CancelledError("enough"),
    DeadlineExceededError(AT),
    HandOver("going"),
    BudgetExceededError(ResourceUsage(), Budget(), "spent"),
]


@pytest.mark.req("000/C2")
@pytest.mark.parametrize("stop", EVERY_STOP, ids=lambda stop: type(stop).__name__)
def test_an_except_exception_does_not_swallow_a_stop(stop: Stop) -> None:
    """A stop passes through ``except Exception`` in nodes and libraries."""

    def swallows() -> None:
        try:
            raise stop
        except Exception:
            return

    with pytest.raises(type(stop)):
        swallows()


@pytest.mark.req("000/C2")
def test_our_cancelled_error_is_not_asyncios() -> None:
    """Our CancelledError and asyncio's are unrelated classes."""
    assert not issubclass(stops.CancelledError, asyncio.CancelledError)
    assert not issubclass(asyncio.CancelledError, stops.CancelledError)
    assert issubclass(stops.CancelledError, BaseException)


@pytest.mark.req("000/C2")
def test_a_cancel_says_who_wanted_it_and_why() -> None:
    """A cancel carries its requester and reason; the default reason is ``cancelled``."""
    assert str(CancelledError()) == "cancelled"
    assert CancelledError("late", requested_by="ops").cause == StopCause(
        kind=StopKind.CANCELLED, reason="late", requested_by="ops"
    )


def test_a_cause_is_shown_without_what_is_not_known() -> None:
    """The JSON form of a cause omits unknown fields and has numbers and ISO times."""
    cause = StopCause(
        kind=StopKind.BUDGET,
        dimension="cost_usd",
        limit=Decimal("0.5"),
        used=Decimal("0.75"),
        at=AT,
    )

    assert cause.to_dict() == {
        "kind": "budget",
        "dimension": "cost_usd",
        "limit": 0.5,
        "used": 0.75,
        "at": "2025-09-08T12:00:00Z",
    }


def test_a_deadline_names_its_instant() -> None:
    """The message of a deadline error contains the deadline."""
    cause = DeadlineExceededError(AT).cause

    assert cause.kind is StopKind.DEADLINE
    assert cause.reason == "The deadline 2025-09-08T12:00:00Z has passed."
