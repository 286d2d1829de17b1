"""Converts calls to values for the journal, and recorded values back to results."""

from collections.abc import Mapping
from typing import Any

from caseworker.core.trace.node import ESTIMATED
from caseworker.engine.call import Answered, AttemptError, CallFailedError, SpentSum
from caseworker.engine.ports import IF_LOST, CallOutcome, Recorded


def failure_entry(failure: AttemptError, attempts: int) -> dict[str, Any]:
    """Return the journal value for a call that failed in its last attempt."""
    optional = {"told": failure.told, "raw_reply": failure.raw_reply}
    return {
        "error_class": failure.error_class,
        "message": str(failure),
        "attempts": attempts,
        **{name: value for name, value in optional.items() if value is not None},
    }


def failed_call(
    entry: Mapping[str, Any], node_id: str, *, retry_after_seconds: float | None = None
) -> CallFailedError:
    """Build the error for a failed call from its journal value."""
    return CallFailedError(
        entry["message"],
        error_class=entry["error_class"],
        attempts=entry["attempts"],
        retry_after_seconds=retry_after_seconds,
        node_id=node_id,
        told=entry.get("told"),
    )


def replayed(recorded: Recorded) -> Answered:
    """Build the result of a call from its journal record.

    Raises:
        CallFailedError: the recorded call failed.
    """
    if recorded.outcome is CallOutcome.RESULT:
        return Answered(recorded.value, recorded.node_id)
    raise failed_call(recorded.value, recorded.node_id)


def if_lost(usage: SpentSum) -> Mapping[str, Any] | None:
    """Return the journal value for a call in flight: the usage to charge if its worker is lost.

    Returns None if ``usage`` is empty.
    """
    if usage == SpentSum():
        return None
    cost = None if usage.cost_usd is None else str(usage.cost_usd)
    return {IF_LOST: {**usage.usage(), "cost_usd": cost, ESTIMATED: usage.estimated}}
