"""The data of a case's step."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from caseworker.nodes.node_type import RunFacts
from caseworker_cases.agent.case import (
    Case,
    CaseData,
    CaseDataError,
    CaseDefaults,
    EscalateWhen,
    FinishReason,
    Mode,
)
from tests.support.limits import act_limits, case_defaults

DATA: dict[str, Any] = {"input": "What is 2 + 2?", "now": "2025-09-08T10:00:00+02:00"}
ACCEPTED = datetime(2025, 9, 8, 12, tzinfo=UTC)
DEFAULTS = case_defaults(timezone="Europe/Berlin")


def case(data: dict[str, Any], defaults: CaseDefaults = DEFAULTS, **facts: Any) -> Case:
    """Read the data of a step, in a run with these facts."""
    read = CaseData.model_validate(data)
    return read.case({}, RunFacts(**{"now": ACCEPTED, **facts}), defaults)


@pytest.mark.req("002/9.1", "002/17.4")
def test_what_the_data_leaves_out_takes_its_default() -> None:
    """A field that is missing or null takes its default."""
    short = case(DATA)

    assert short == case({**DATA, "mode": None, "gold_answer": None})
    assert (short.timezone, short.mode, short.expected_tools) == (
        "Europe/Berlin",
        Mode.HRM_SMALL_THEN_ESCALATE,
        (),
    )
    assert short.act == act_limits(
        max_steps=3,
        max_steps_fallback_only=1,
        no_progress_patience=1,
        min_improvement=0.01,
        escalate_when=EscalateWhen.FAIL_OR_BUDGET,
    )


def test_what_the_data_says_comes_before_the_run_and_the_run_before_the_defaults() -> None:
    """Step data overrides the run, and the run overrides the defaults, limit by limit."""
    others = case_defaults(timezone="UTC", act=act_limits(max_steps=9), pass_metric=0.5)
    said = {"timezone": "Asia/Tokyo", "seed": 3, "pass_metric": 0, "mode": "fallback_only"}
    act = {"min_improvement": 1, "escalate_when": "fail"}
    asked = {"timezone": "Europe/Paris", "seed": 4}

    usual, own = case({"input": "?"}, others, **asked), case({**DATA, **said, "act": act}, others)

    assert (usual.timezone, usual.seed, usual.now) == ("Europe/Paris", 4, ACCEPTED)
    assert (usual.act, usual.pass_metric) == (others.act, 0.5)
    assert (own.timezone, own.seed, own.pass_metric) == ("Asia/Tokyo", 3, 0)
    assert own.now == datetime.fromisoformat(DATA["now"])
    assert own.mode is Mode.FALLBACK_ONLY
    assert own.act == act_limits(max_steps=9, min_improvement=1.0, escalate_when=EscalateWhen.FAIL)


def test_the_default_mode_has_a_short_name() -> None:
    """The short mode ``escalate`` selects the default mode."""
    assert case({**DATA, "mode": "escalate"}).mode is Mode.HRM_SMALL_THEN_ESCALATE


@pytest.mark.req("002/17.2", "002/17.3", "002/24.1")
@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"input": None}, "input"),
        ({"now": "yesterday"}, "now"),
        ({"now": "2025-09-08T10:00:00"}, "now"),
        ({"mode": "big_first"}, "mode"),
        ({"timezone": "Atlantis/City"}, "timezone"),
        ({"timezone": "../etc/passwd"}, "timezone"),
        ({"seed": "7"}, "seed"),
        ({"golden": "4"}, "golden"),
        ({"gold_answer": {"secret": "42"}}, "gold_answer"),
        ({"expected_tools": "calculator"}, "expected_tools"),
        ({"act": {"max_steps": -1}}, "max_steps"),
        ({"act": {"max_steps_fallback_only": 2}}, "max_steps_fallback_only"),
        ({"act": {"no_progress_patience": -1}}, "no_progress_patience"),
        ({"act": {"min_improvement": -0.1}}, "min_improvement"),
        ({"act": {"escalate_when": "never"}}, "escalate_when"),
        ({"act": {"steps": 1}}, "steps"),
        ({"act": 3}, "act"),
        ({"pass_metric": 1.5}, "pass_metric"),
    ],
)
def test_data_that_is_no_case_is_refused_by_the_name_of_its_field(
    wrong: dict[str, Any], named: str
) -> None:
    """Invalid data is rejected with the name of the field, which becomes the problem's place."""
    with pytest.raises(ValidationError) as refused:
        case({**DATA, **wrong})

    assert refused.value.errors()[0]["loc"][-1] == named


def test_an_empty_question_is_refused_once_it_is_known() -> None:
    """A question that its template leaves empty is rejected by field name."""
    with pytest.raises(CaseDataError, match="input"):
        case({**DATA, "input": ""})


@pytest.mark.req("002/24.2", "002/24.5")
def test_each_mode_has_its_own_limit_of_steps() -> None:
    """The step limit of ``fallback_only`` never exceeds the general limit."""
    assert act_limits().max_steps_in(Mode.HRM_SMALL_THEN_ESCALATE) == 3
    assert act_limits().max_steps_in(Mode.FALLBACK_ONLY) == 1
    assert act_limits(max_steps=0).max_steps_in(Mode.FALLBACK_ONLY) == 0


@pytest.mark.req("002/17.1")
def test_a_case_ends_for_one_of_three_reasons() -> None:
    """The finish reasons are exactly those of the seed."""
    assert [reason.value for reason in FinishReason] == ["success", "budget", "big_fail"]
