"""The data of a case's step."""

from typing import Any

import pytest

from app.nodes.case.case import (
    ActLimits,
    Case,
    CaseDataError,
    CaseDefaults,
    EscalateWhen,
    FinishReason,
    Mode,
)

DATA: dict[str, Any] = {"input": "What is 2 + 2?", "now": "2025-09-08T10:00:00+02:00"}
DEFAULTS = CaseDefaults(timezone="Europe/Berlin")


@pytest.mark.req("002/9.1", "002/17.4")
def test_what_the_data_leaves_out_takes_its_default() -> None:
    """Also what it says is null."""
    short = Case.from_dict(DATA, DEFAULTS)

    assert short == Case.from_dict({**DATA, "mode": None, "gold_answer": None}, DEFAULTS)
    assert (short.timezone, short.mode, short.expected_tools) == (
        "Europe/Berlin",
        Mode.HRM_SMALL_THEN_ESCALATE,
        (),
    )
    assert short.act == ActLimits(
        max_steps=3,
        max_steps_fallback_only=1,
        no_progress_patience=1,
        min_improvement=0.01,
        escalate_when=EscalateWhen.FAIL_OR_BUDGET,
    )


def test_a_stored_case_is_read_again_as_it_was_whatever_the_defaults() -> None:
    """A configuration that changed meanwhile does not change it."""
    case = Case.from_dict(
        {**DATA, "expected_tools": ["calculator"], "seed": 3, "act": {"max_steps": 2}}, DEFAULTS
    )
    others = CaseDefaults(timezone="UTC", act=ActLimits(max_steps=9), pass_metric=0.5)

    assert case.act.max_steps == 2
    assert Case.from_dict(case.to_dict(), others) == case


@pytest.mark.req("002/17.2", "002/17.3", "002/24.1")
@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"input": ""}, "input"),
        ({"input": None}, "input"),
        ({"now": "yesterday"}, "now"),
        ({"now": "2025-09-08T10:00:00"}, "offset"),
        ({"mode": "big_first"}, "mode"),
        ({"timezone": "Atlantis/City"}, "timezone"),
        ({"timezone": "../etc/passwd"}, "timezone"),
        ({"seed": "7"}, "seed"),
        ({"golden": "4"}, "golden"),
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
    """And never by its value."""
    with pytest.raises(CaseDataError, match=named):
        Case.from_dict({**DATA, **wrong}, DEFAULTS)


def test_a_refusal_repeats_nothing_of_the_data() -> None:
    """It may be shown to anybody."""
    with pytest.raises(CaseDataError) as refused:
        Case.from_dict({**DATA, "gold_answer": {"secret": "42"}}, DEFAULTS)

    assert "secret" not in str(refused.value)


@pytest.mark.req("002/24.2", "002/24.5")
def test_each_mode_has_its_own_limit_of_steps() -> None:
    """That of fallback_only is never above the other."""
    assert ActLimits().max_steps_in(Mode.HRM_SMALL_THEN_ESCALATE) == 3
    assert ActLimits().max_steps_in(Mode.FALLBACK_ONLY) == 1
    assert ActLimits(max_steps=0).max_steps_in(Mode.FALLBACK_ONLY) == 0


@pytest.mark.req("002/17.1")
def test_a_case_ends_for_one_of_three_reasons() -> None:
    """The seed's values and no others."""
    assert [reason.value for reason in FinishReason] == ["success", "budget", "big_fail"]
