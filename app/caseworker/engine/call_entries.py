"""What the journal keeps of calls as JSON, and what becomes of a call that is replayed."""

from collections.abc import Mapping
from typing import Any

from caseworker.engine.call import Answered, AttemptError, CallFailedError, SpentSum
from caseworker.engine.ports import IF_LOST, CallOutcome, Recorded
from caseworker.trace.node import ESTIMATED


def failure_entry(failure: AttemptError, attempts: int) -> dict[str, Any]:
    """Return the failure of a call after its last attempt."""
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
    """Return the failure that the entry of a CallNode describes."""
    return CallFailedError(
        entry["message"],
        error_class=entry["error_class"],
        attempts=entry["attempts"],
        retry_after_seconds=retry_after_seconds,
        node_id=node_id,
        told=entry.get("told"),
    )


def replayed(recorded: Recorded) -> Answered:
    """Return the recorded result of a call, or raise CallFailedError: it had failed."""
    if recorded.outcome is CallOutcome.RESULT:
        return Answered(recorded.value, recorded.node_id)
    raise failed_call(recorded.value, recorded.node_id)


def if_lost(usage: SpentSum) -> Mapping[str, Any] | None:
    """Return what a call that has not ended has used if it never does; None if nothing."""
    if usage == SpentSum():
        return None
    cost = None if usage.cost_usd is None else str(usage.cost_usd)
    return {IF_LOST: {**usage.usage(), "cost_usd": cost, ESTIMATED: usage.estimated}}
