"""The outcome of a trial, judged independently of the run's own verdict."""

from typing import Any

import pytest

from caseworker_cases.evaluation.results import Counters, Outcome, Tokens
from tests.unit.cases.evaluation.recorded import a_case, a_result, a_run, a_trace

REFUSED: dict[str, Any] = {
    "status": "failed",
    "finish_reason": "big_fail",
    "verified": False,
    "answer": None,
}


def test_a_verified_right_answer_is_a_success() -> None:
    """A verified, correct answer is a success with all its figures."""
    result = a_result()

    assert result.succeeded
    used = result.counters
    assert (used.llm_calls_small, used.tool_calls, used.act_steps) == (1, 1, 1)
    assert used.tokens["small"] == Tokens(input=100, output=10)
    assert result.models == {"small": "offline:offline"}
    assert (result.client_seconds, result.service_seconds) == (0.5, 1.0)


@pytest.mark.req("002/16.2")
@pytest.mark.parametrize(
    ("case", "trial", "outcome"),
    [
        ({"gold_answer": "43"}, {}, Outcome.WRONG_ANSWER),
        ({"gold_answer": "42"}, {"run": a_run(None)}, Outcome.WRONG_ANSWER),
        ({"gold_answer": "42"}, {"run": a_run(verified=False)}, Outcome.NOT_VERIFIED),
        ({"gold_answer": "42"}, {"run": a_run(status="failed")}, Outcome.NOT_VERIFIED),
        (
            {"gold_answer": "42"},
            {"run": a_run(status="halted", finish_reason="budget", verified=False)},
            Outcome.HALTED,
        ),
        (
            {"gold_answer": "42"},
            {"run": a_run(status="cancelled", finish_reason=None)},
            Outcome.ERROR,
        ),
        ({"gold_answer": "42", "expected_tools": ["calendar"]}, {}, Outcome.TOOLS_NOT_USED),
        (
            {"gold_answer": "42", "expected_tools": ["calculator"]},
            {"trace": a_trace("calculator", status="fail")},
            Outcome.TOOLS_NOT_USED,
        ),
        ({"gold_answer": "42"}, {"run": None, "refusal": "422"}, Outcome.INPUT_REFUSED),
        ({"gold_answer": "42"}, {"run": None, "error": "no answer"}, Outcome.ERROR),
        ({}, {}, Outcome.SUCCESS),
        ({}, {"run": a_run(verified=False)}, Outcome.NOT_VERIFIED),
    ],
)
def test_an_answer_is_right_only_if_everything_holds(
    case: dict[str, Any], trial: dict[str, Any], outcome: Outcome
) -> None:
    """Success requires a completed, verified, correct run that used the expected tools."""
    assert a_result(a_case(**case), **trial).outcome is outcome


@pytest.mark.parametrize(
    ("trial", "outcome"),
    [
        ({"run": a_run()}, Outcome.CLAIMED),
        ({"run": a_run(**REFUSED)}, Outcome.SUCCESS),
        (
            {"run": a_run(status="halted", finish_reason="budget", verified=False)},
            Outcome.SUCCESS,
        ),
        ({"run": None, "refusal": "422: too long"}, Outcome.SUCCESS),
        ({"run": a_run(**{**REFUSED, "finish_reason": None})}, Outcome.ERROR),
        ({"run": None, "error": "500"}, Outcome.ERROR),
    ],
)
def test_what_should_be_refused_is_right_if_nothing_is_claimed(
    trial: dict[str, Any], outcome: Outcome
) -> None:
    """A case that should be refused succeeds without a verified answer, but not on an error."""
    assert a_result(a_case(expect="refused"), **trial).outcome is outcome


def test_a_run_without_a_result_has_no_figures() -> None:
    """A run that ended before it began has an outcome but no figures."""
    run = {**a_run(status="halted", finish_reason="budget"), "result": None}
    result = a_result(run=run)

    assert result.outcome is Outcome.HALTED
    assert (result.counters, result.answer) == (Counters(), None)


def test_a_failure_says_what_stopped_the_run() -> None:
    """The detail of a failure is the typed stop, else the last tool error."""
    stop = {"kind": "budget", "dimension": "seconds", "reason": None}
    stopped = a_run(status="halted", finish_reason="budget", verified=False, stop=stop)
    failed = a_run(**REFUSED)
    failed["result"]["evidence"] = [{"tool": "calendar", "result": {"error": "no such day"}}]

    assert a_result(run=stopped).detail == "budget, seconds"
    assert a_result(run=failed).detail == "calendar: no such day"


def test_a_case_without_an_answer_says_why_the_last_model_did_not_reply() -> None:
    """Without an answer, the detail is the error of the last model call."""
    trace = a_trace()
    failed = {"status": "fail", "stop_reason": "openai: too many requests (HTTP 429)"}
    trace["snapshot"]["nodes"]["n000002"].update(failed)

    result = a_result(run=a_run(None, verified=False), trace=trace)

    assert (result.outcome, result.detail) == (Outcome.NOT_VERIFIED, failed["stop_reason"])
