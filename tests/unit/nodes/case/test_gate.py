"""The ACT gate as a table of standings and rulings."""

from typing import Any

import pytest

from app.control.budget import Dimension
from app.llm.gateway import Tier
from app.nodes.case.case import EscalateWhen, Mode
from app.nodes.case.gate import Reason, Ruling, Standing, TroubleKind, rule
from tests.support.limits import act_limits

HRM, FALLBACK = Mode.HRM_SMALL_THEN_ESCALATE, Mode.FALLBACK_ONLY


def ruling(mode: Mode = HRM, act: dict[str, Any] | None = None, **standing: Any) -> str:
    """The decision and its reason."""
    ruled = rule(Standing(**standing), mode, act_limits(**(act or {})))
    return f"{ruled.decision}: {ruled.reason}"


@pytest.mark.req("002/6.1", "002/6.2", "002/6.3", "002/11.2")
@pytest.mark.parametrize(
    ("standing", "expected"),
    [
        ({}, "continue: room_left"),
        ({"passed": True}, "stop: passed"),
        ({"passed": True, "act_steps": 3, "small_calls_left": 0}, "stop: passed"),
        ({"passed": True, "spent": Dimension.TOOL_CALLS}, "stop: passed"),
        ({"act_steps": 2}, "continue: room_left"),
        ({"act_steps": 3}, "escalate: act_max_steps"),
        ({"stalled_rounds": 1}, "continue: room_left"),
        ({"stalled_rounds": 2}, "escalate: no_progress"),
        ({"small_calls_left": 1}, "continue: room_left"),
        ({"small_calls_left": 0}, "escalate: max_llm_calls_small"),
        ({"trouble": TroubleKind.UNUSABLE_PLAN}, "escalate: unusable_plan"),
        ({"trouble": TroubleKind.CANNOT}, "escalate: planner_cannot"),
        ({"trouble": TroubleKind.PROVIDER_FAILED}, "escalate: provider_failed"),
        ({"trouble": TroubleKind.CALLS_USED}, "escalate: max_llm_calls_small"),
        ({"spent": Dimension.TOOL_CALLS}, "stop: run_limit"),
        ({"spent": Dimension.TOKENS, "stalled_rounds": 2}, "stop: run_limit"),
    ],
)
def test_the_small_tier_by_default(standing: dict[str, Any], expected: str) -> None:
    """Failures and limits of the tier escalate, limits of the run stop."""
    assert ruling(**standing) == expected


@pytest.mark.req("002/2.5", "002/11.3", "002/17.3")
@pytest.mark.parametrize(
    ("standing", "expected"),
    [
        ({"act_steps": 3}, "stop: act_max_steps"),
        ({"small_calls_left": 0}, "stop: max_llm_calls_small"),
        ({"trouble": TroubleKind.CALLS_USED}, "stop: max_llm_calls_small"),
        ({"stalled_rounds": 2}, "escalate: no_progress"),
        ({"stalled_rounds": 2, "act_steps": 3}, "escalate: no_progress"),
        ({"trouble": TroubleKind.UNUSABLE_PLAN}, "escalate: unusable_plan"),
        ({"trouble": TroubleKind.CANNOT}, "escalate: planner_cannot"),
        ({"trouble": TroubleKind.PROVIDER_FAILED}, "escalate: provider_failed"),
    ],
)
def test_the_small_tier_under_fail(standing: dict[str, Any], expected: str) -> None:
    """Limits of the tier stop, failures still escalate."""
    assert ruling(act={"escalate_when": EscalateWhen.FAIL}, **standing) == expected


@pytest.mark.parametrize(
    ("standing", "dimension"),
    [
        ({"stalled_rounds": 2}, "llm_calls_big"),
        ({"act_steps": 3}, "act_steps"),
        ({"small_calls_left": 0}, "llm_calls_small"),
        ({"spent": Dimension.COST_USD}, "cost_usd"),
    ],
)
def test_a_stop_names_the_limit_that_ends_the_run(standing: dict[str, Any], dimension: str) -> None:
    """Nothing escalates to a big tier that may not be asked."""
    ruled = rule(Standing(big_calls_left=0, **standing), HRM, act_limits())

    assert (ruled.decision, ruled.dimension) == ("stop", dimension)


@pytest.mark.req("002/24.1", "002/24.5")
@pytest.mark.parametrize(
    ("max_steps", "standing", "expected"),
    [
        (0, {}, "continue: room_left"),
        (1, {}, "continue: room_left"),
        (0, {"passes": 1}, "escalate: not_verified"),
        (1, {"passes": 1, "act_steps": 1}, "escalate: act_max_steps"),
        (1, {"small_calls_left": 0}, "escalate: max_llm_calls_small"),
    ],
)
def test_fallback_only(max_steps: int, standing: dict[str, Any], expected: str) -> None:
    """One pass always runs where a call is left for it."""
    act = {"max_steps_fallback_only": max_steps}

    assert ruling(FALLBACK, act, **standing) == expected


def test_no_act_steps_leave_everything_to_the_big_tier() -> None:
    """Zero allows nothing."""
    assert ruling(act={"max_steps": 0}) == "escalate: act_max_steps"


@pytest.mark.req("002/3.3", "002/3.4")
@pytest.mark.parametrize(
    ("standing", "expected"),
    [
        ({}, "continue: room_left"),
        ({"passes": 1, "big_calls": 1}, "continue: room_left"),
        ({"passes": 2, "big_calls": 2}, "stop: big_fail"),
        ({"passes": 1, "big_calls": 1, "big_calls_left": 0}, "stop: big_fail"),
        ({"passes": 1, "trouble": TroubleKind.UNUSABLE_PLAN}, "continue: room_left"),
        ({"passes": 1, "trouble": TroubleKind.PROVIDER_FAILED}, "continue: room_left"),
        ({"passes": 1, "big_calls": 1, "trouble": TroubleKind.CANNOT}, "stop: big_fail"),
        ({"passes": 1, "trouble": TroubleKind.CALLS_USED}, "stop: max_llm_calls_big"),
        ({"passes": 2, "big_calls": 1, "trouble": TroubleKind.CALLS_USED}, "stop: big_fail"),
        ({"passes": 1, "spent": Dimension.TOOL_CALLS}, "stop: run_limit"),
        ({"passes": 2, "spent": Dimension.TOOL_CALLS}, "stop: big_fail"),
        ({"passes": 1, "passed": True}, "stop: passed"),
        ({"stalled_rounds": 9, "act_steps": 9, "small_calls_left": 0}, "continue: room_left"),
    ],
)
def test_the_big_tier(standing: dict[str, Any], expected: str) -> None:
    """Two attempts, bound by its own calls and by the limits of the run."""
    assert ruling(tier=Tier.BIG, **standing) == expected


def test_patience_of_zero_bears_no_stalled_round() -> None:
    """More than patience, not as much."""
    assert ruling(act={"no_progress_patience": 0}, stalled_rounds=1) == "escalate: no_progress"
    assert rule(Standing(), HRM, act_limits()).reason is Reason.ROOM_LEFT
    assert isinstance(rule(Standing(), HRM, act_limits()), Ruling)
