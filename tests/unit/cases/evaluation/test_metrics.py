"""The metrics of an evaluation."""

from typing import Any

import pytest

from caseworker_cases.evaluation.metrics import Metrics, metrics_of, percentile
from caseworker_cases.evaluation.results import JudgedTrial
from tests.unit.cases.evaluation.recorded import a_case, a_result, a_run

ABOUT = {"id": "eval-1"}


def measured(*results: JudgedTrial) -> Metrics:
    return metrics_of(results, ABOUT)


def easy(seconds: float, **fields: Any) -> JudgedTrial:
    case = a_case(id=f"c{seconds:g}", difficulty="easy", gold_answer="42", **fields)
    return a_result(case, seconds=seconds)


@pytest.mark.req("002/7.5", "002/12.2", "002/12.3", "002/16.2", "002/16.4")
def test_success_calls_and_cost_are_means() -> None:
    """Success, calls, tokens and cost are means; a refused case has no calls or cost."""
    metrics = measured(
        a_result(a_case(id="right", gold_answer="42"), run=a_run(cost_usd=0.01)),
        a_result(a_case(id="wrong", gold_answer="41"), run=a_run(cost_usd=0.02)),
        a_result(a_case(id="big", gold_answer="42"), run=a_run(big_calls=2)),
        a_result(a_case(id="blank", input="", expect="refused"), run=None, refusal="422"),
    )

    assert metrics["success@1"] == 0.75
    assert metrics["escalation_rate"] == pytest.approx(1 / 3, abs=1e-6)
    assert metrics["avg_llm_small"] == 1
    assert metrics["avg_llm_big"] == pytest.approx(2 / 3, abs=1e-6)
    assert metrics["tokens"]["total"] == {"input": 300, "output": 30, "cost_usd": 0.03}
    assert metrics["tokens"]["big"] == {"input": 0, "output": 0, "cost_usd": 0}
    assert metrics["mean_tokens_per_case"] == 110
    assert metrics["mean_cost_usd_per_case"] == 0.01
    assert metrics["models"] == {"small": ["offline:offline"], "big": []}
    assert metrics["counts"] == {
        "cases": 4,
        "trials": 4,
        "ran": 3,
        "succeeded": 3,
        "verified": 3,
        "falsely_verified": 1,
        "right_unverified": 0,
        "escalated": 1,
        "errors": 0,
        "without_gold_answer": 0,
    }
    assert metrics["outcomes"] == {"success": 3, "wrong_answer": 1}


@pytest.mark.req("002/12.1", "002/16.4")
def test_the_latency_of_easy_questions_is_that_of_nothing_else() -> None:
    """The easy latency excludes harder questions and those that should be refused."""
    metrics = measured(
        *(easy(seconds) for seconds in range(1, 21)),
        easy(99, expect="refused"),
        a_result(a_case(id="hard", difficulty="hard", gold_answer="42"), seconds=99),
    )

    assert metrics["p95_latency_easy"] == 19
    assert metrics["latency_seconds"]["client"]["max"] == 99
    assert metrics["latency_seconds"]["service"] == {"p50": 1, "p95": 1, "max": 1}


def test_a_figure_that_cannot_be_measured_is_null() -> None:
    """Without an easy case and without a run, their figures are null."""
    metrics = measured(a_result(run=None, error="no answer"))

    assert metrics["p95_latency_easy"] is None
    assert metrics["escalation_rate"] is None
    assert metrics["success@1"] == 0
    assert metrics["counts"]["errors"] == 1


def test_families_and_difficulties_are_told_apart() -> None:
    """Success is measured separately per family and per difficulty."""
    metrics = measured(
        a_result(a_case(id="a", family="math", gold_answer="42")),
        a_result(a_case(id="b", family="calendar", gold_answer="1")),
        a_result(a_case(id="c", family="math", gold_answer="1", difficulty="hard")),
    )

    assert metrics["by_family"]["math"]["success@1"] == 0.5
    assert metrics["by_family"]["calendar"]["succeeded"] == 0
    assert metrics["by_difficulty"]["hard"]["trials"] == 1


@pytest.mark.req("002/22.4", "002/22.5")
def test_a_case_whose_repeats_differ_is_not_stable() -> None:
    """A case is unstable if its repeats differ in success or answer."""
    case, other = a_case(id="a", gold_answer="42"), a_case(id="b", gold_answer="42")
    free = a_case(id="free")
    metrics = measured(
        a_result(case, run_id="r1"),
        a_result(case, run_id="r2", repeat=2, run=a_run("41")),
        a_result(other, run_id="r3"),
        a_result(other, run_id="r4", repeat=2),
        a_result(free, run_id="r5"),
        a_result(free, run_id="r6", repeat=2, run=a_run("43")),
    )

    first, second, third = metrics["cases"]
    assert (first["stable"], first["succeeded"], first["run_ids"]) == (False, 1, ["r1", "r2"])
    assert (second["stable"], second["succeeded"]) == (True, 2)
    assert (third["stable"], third["succeeded"]) == (False, 2)
    assert metrics["counts"]["cases"] == 3


@pytest.mark.req("002/26.4")
def test_the_keys_are_those_of_the_format() -> None:
    """The keys match format 1; a change needs a new format number."""
    metrics = measured(a_result())

    assert metrics["format"] == 1
    assert list(metrics) == [
        *("format", "evaluation", "success@1", "escalation_rate", "avg_llm_small", "avg_llm_big"),
        *("avg_tool_calls", "avg_act_steps", "p95_latency_easy", "latency_seconds", "tokens"),
        *("mean_tokens_per_case", "mean_cost_usd_per_case", "counts", "outcomes"),
        *("finish_reasons", "models", "by_family", "by_difficulty", "cases"),
    ]


def test_a_percentile_is_a_value_that_was_measured() -> None:
    """The p-th percentile is the smallest measured value that p percent do not exceed."""
    assert percentile([], 95) is None
    assert percentile([3.0], 95) == 3
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2
    assert percentile(list(range(1, 101)), 95) == 95
    assert percentile([1.0, 2.0], 95) == 2


def test_a_cost_that_is_not_known_makes_the_sum_unknown_and_not_zero() -> None:
    """An unknown cost makes the sum null, not zero."""
    metrics = measured(
        a_result(run=a_run(cost_usd=None)),
        a_result(a_case(id="b"), run=a_run(cost_usd=0.02)),
    )

    assert metrics["tokens"]["total"]["cost_usd"] is None
    assert metrics["mean_cost_usd_per_case"] is None
    assert metrics["tokens"]["big"]["cost_usd"] == 0
