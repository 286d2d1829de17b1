"""The ACT gate as a table of inputs and decisions."""

from typing import Any

import pytest

from caseworker.core.budget.budget import Dimension
from caseworker.models.gateway import Tier
from caseworker_cases.agent.case import EscalateWhen, Mode
from caseworker_cases.agent.gate import GateDecision, GateInput, PlanFailureKind, Reason, decide
from tests.support.limits import act_limits

FAILED = PlanFailureKind
HRM, FALLBACK = Mode.HRM_SMALL_THEN_ESCALATE, Mode.FALLBACK_ONLY


def decided(mode: Mode = HRM, act: dict[str, Any] | None = None, **given: Any) -> str:
    """Return the decision and its reason."""
    made = decide(GateInput(**given), mode, act_limits(**(act or {})))
    return f"{made.decision}: {made.reason}"


@pytest.mark.req("002/6.1", "002/6.2", "002/6.3", "002/11.2")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "continue: within_limits"),
        ({"passed": True}, "stop: passed"),
        ({"passed": True, "act_steps": 3, "small_calls_left": 0}, "stop: passed"),
        ({"passed": True, "exhausted": Dimension.TOOL_CALLS}, "stop: passed"),
        ({"act_steps": 2}, "continue: within_limits"),
        ({"act_steps": 3}, "escalate: act_max_steps"),
        ({"stalled_rounds": 1}, "continue: within_limits"),
        ({"stalled_rounds": 2}, "escalate: no_progress"),
        ({"small_calls_left": 1}, "continue: within_limits"),
        ({"small_calls_left": 0}, "escalate: max_llm_calls_small"),
        ({"plan_failure": FAILED.UNUSABLE_PLAN}, "escalate: unusable_plan"),
        ({"plan_failure": FAILED.CANNOT}, "escalate: planner_cannot"),
        ({"plan_failure": FAILED.PROVIDER_FAILED}, "escalate: provider_failed"),
        ({"plan_failure": FAILED.CALLS_USED}, "escalate: max_llm_calls_small"),
        ({"exhausted": Dimension.TOOL_CALLS}, "stop: run_limit"),
        ({"exhausted": Dimension.TOKENS, "stalled_rounds": 2}, "stop: run_limit"),
    ],
)
def test_the_small_tier_by_default(given: dict[str, Any], expected: str) -> None:
    """By default, the small tier's failures and limits escalate, and the run's limits stop."""
    assert decided(**given) == expected


@pytest.mark.req("002/2.5", "002/11.3", "002/17.3")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"act_steps": 3}, "stop: act_max_steps"),
        ({"small_calls_left": 0}, "stop: max_llm_calls_small"),
        ({"plan_failure": FAILED.CALLS_USED}, "stop: max_llm_calls_small"),
        ({"stalled_rounds": 2}, "escalate: no_progress"),
        ({"stalled_rounds": 2, "act_steps": 3}, "escalate: no_progress"),
        ({"plan_failure": FAILED.UNUSABLE_PLAN}, "escalate: unusable_plan"),
        ({"plan_failure": FAILED.CANNOT}, "escalate: planner_cannot"),
        ({"plan_failure": FAILED.PROVIDER_FAILED}, "escalate: provider_failed"),
    ],
)
def test_the_small_tier_under_fail(given: dict[str, Any], expected: str) -> None:
    """With escalate_when=fail, the small tier's limits stop and its failures escalate."""
    assert decided(act={"escalate_when": EscalateWhen.FAIL}, **given) == expected


@pytest.mark.parametrize(
    ("given", "dimension"),
    [
        ({"stalled_rounds": 2}, "llm_calls_big"),
        ({"act_steps": 3}, "act_steps"),
        ({"small_calls_left": 0}, "llm_calls_small"),
        ({"exhausted": Dimension.COST_USD}, "cost_usd"),
    ],
)
def test_a_stop_names_the_limit_that_ends_the_run(given: dict[str, Any], dimension: str) -> None:
    """Without big calls left, the gate stops the case and names the exhausted limit."""
    made = decide(GateInput(big_calls_left=0, **given), HRM, act_limits())

    assert (made.decision, made.dimension) == ("stop", dimension)


@pytest.mark.req("002/24.1", "002/24.5")
@pytest.mark.parametrize(
    ("max_steps", "given", "expected"),
    [
        (0, {}, "continue: within_limits"),
        (1, {}, "continue: within_limits"),
        (0, {"passes": 1}, "escalate: not_verified"),
        (1, {"passes": 1, "act_steps": 1}, "escalate: act_max_steps"),
        (1, {"small_calls_left": 0}, "escalate: max_llm_calls_small"),
    ],
)
def test_fallback_only(max_steps: int, given: dict[str, Any], expected: str) -> None:
    """In mode fallback_only, one small pass runs if a call is left for it."""
    act = {"max_steps_fallback_only": max_steps}

    assert decided(FALLBACK, act, **given) == expected


def test_no_act_steps_leave_everything_to_the_big_tier() -> None:
    """With max_steps 0, the small tier makes no ACT step."""
    assert decided(act={"max_steps": 0}) == "escalate: act_max_steps"


@pytest.mark.req("002/3.3", "002/3.4")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "continue: within_limits"),
        ({"passes": 1, "big_calls": 1}, "continue: within_limits"),
        ({"passes": 2, "big_calls": 2}, "stop: big_fail"),
        ({"passes": 1, "big_calls": 1, "big_calls_left": 0}, "stop: big_fail"),
        ({"passes": 1, "plan_failure": FAILED.UNUSABLE_PLAN}, "continue: within_limits"),
        ({"passes": 1, "plan_failure": FAILED.PROVIDER_FAILED}, "continue: within_limits"),
        ({"passes": 1, "big_calls": 1, "plan_failure": FAILED.CANNOT}, "stop: big_fail"),
        ({"passes": 1, "plan_failure": FAILED.CALLS_USED}, "stop: max_llm_calls_big"),
        (
            {"passes": 2, "big_calls": 1, "plan_failure": FAILED.CALLS_USED},
            "stop: big_fail",
        ),
        ({"passes": 1, "exhausted": Dimension.TOOL_CALLS}, "stop: run_limit"),
        ({"passes": 2, "exhausted": Dimension.TOOL_CALLS}, "stop: big_fail"),
        ({"passes": 1, "passed": True}, "stop: passed"),
        ({"stalled_rounds": 9, "act_steps": 9, "small_calls_left": 0}, "continue: within_limits"),
    ],
)
def test_the_big_tier(given: dict[str, Any], expected: str) -> None:
    """The big tier has two attempts, within its own calls and the run's limits."""
    assert decided(tier=Tier.BIG, **given) == expected


def test_patience_of_zero_bears_no_stalled_round() -> None:
    """With patience 0, the first stalled round escalates."""
    assert decided(act={"no_progress_patience": 0}, stalled_rounds=1) == "escalate: no_progress"
    assert decide(GateInput(), HRM, act_limits()).reason is Reason.WITHIN_LIMITS
    assert isinstance(decide(GateInput(), HRM, act_limits()), GateDecision)
