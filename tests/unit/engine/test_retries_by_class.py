"""Error policies select the failures that are retried, by error class."""

from typing import Any

import pytest

from caseworker.core.budget.retry import ErrorPolicy
from caseworker.engine.ports import CallOutcome
from tests.unit.engine.driving import Failing, GraphRun, OurError, drive, graph

ONE = graph("A")


def policed(**rules: Any) -> dict[str, dict[str, Any]]:
    return {"A": {"policy": ErrorPolicy(**rules)}}


class _FinalError(OurError):
    """A failure that is declared as not retryable."""

    retryable = False


class _CodedError(OurError):
    """A failure with an error class other than its exception's name."""

    error_class = "busy"


@pytest.mark.req("cw/13.retry")
@pytest.mark.parametrize(
    ("rules", "error", "attempts"),
    [
        ({}, OurError("x"), 3),
        ({"retry_on": ["OurError"]}, OurError("x"), 3),
        ({"retry_on": ["Exception"]}, OurError("x"), 3),
        ({"retry_on": ["busy"]}, _CodedError("x"), 3),
        ({"retry_on": ["TimeoutError"]}, OurError("x"), 1),
        ({"retry_on": []}, OurError("x"), 1),
        ({"no_retry_on": ["OurError"]}, OurError("x"), 1),
        ({"no_retry_on": ["busy"]}, _CodedError("x"), 1),
        ({"no_retry_on": ["TimeoutError"]}, OurError("x"), 3),
        ({"retry_on": ["OurError"], "no_retry_on": ["busy"]}, _CodedError("x"), 1),
        ({}, _FinalError("x"), 1),
        ({"retry_on": ["OurError"]}, _FinalError("x"), 1),
    ],
)
def test_the_class_of_a_failure_decides_whether_it_is_retried(
    rules: dict[str, Any], error: Exception, attempts: int
) -> None:
    """Rules match base classes and error codes; after the last attempt the policy still skips."""
    node = Failing(9, error)

    outcome, _ = drive(
        ONE, node, limits=policed(on_error="skip", retry_count=2, fallback_value=7, **rules)
    )

    assert len(node.began) == attempts
    assert outcome.steps["A"].outputs == {"default": 7}


@pytest.mark.parametrize(("final", "attempts"), [(True, 0), (False, 1)])
def test_another_process_does_not_judge_a_noted_failure_again(final: bool, attempts: int) -> None:
    """A recovered run takes from the journal whether a failure was final."""

    def noted(world: GraphRun) -> None:
        about = {"error_class": "ToolFailedError", "message": "x", "failed_attempts": 1}
        value = {**about, "final": True} if final else about
        world.gateway.journal.remember("step:A", CallOutcome.UNKNOWN, value, hashed="")

    node = Failing(0)

    outcome, _ = drive(ONE, node, limits=policed(retry_count=2, retry_on=["busy"]), before=noted)

    assert len(node.began) == attempts
    assert (outcome.error is not None) is final
