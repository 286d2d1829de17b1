"""Paths: what they are shown as, and what is inside of what."""

import pytest

from caseworker.engine.step_path import StepPath, check_step_id

STEP = StepPath("a")


def test_a_path_is_shown_as_events_and_traces_have_it() -> None:
    """Nested steps, attempts, fallbacks, links and calls."""
    inner = STEP.attempt(2).step("b")

    assert (inner.text, inner.step_id) == ("a~2/b", "b")
    assert STEP.fallback().text == "a~fallback"
    assert STEP.linked("tools").text == "a>tools"
    assert inner.call("plan", 1).text == "a~2/b/plan/1"


def test_a_key_of_the_journal_is_read_back() -> None:
    """Steps are told from calls by their keys, and both have paths."""
    assert StepPath.of_record(STEP.record_key) == STEP
    assert StepPath.of_record(STEP.call("plan").text) == STEP.call("plan")


def test_a_step_holds_what_happens_in_all_of_its_attempts() -> None:
    """It does not hold itself, nor a step whose name only begins like its own."""
    inside = STEP.inside()

    for path in (STEP.step("b"), STEP.attempt(2), STEP.fallback().call("x"), STEP.linked("l")):
        assert path in inside
    for path in (STEP, StepPath("ab"), StepPath("b").step("a")):
        assert path not in inside


def test_an_attempt_holds_nothing_of_another_one() -> None:
    """What the first attempt left behind is cut off, and the second one works."""
    assert STEP.call("x") in STEP.inside_attempt()
    assert STEP.linked("l") in STEP.inside_attempt()
    assert STEP.attempt(2) not in STEP.inside_attempt()
    assert STEP.attempt(2).call("x") not in STEP.inside_attempt()
    assert STEP.attempt(2).call("x") in STEP.attempt(2).inside_attempt()


@pytest.mark.parametrize("step_id", ["", "a/b", "a>b", "a~2"])
def test_an_id_that_would_be_read_as_a_path_is_refused(step_id: str) -> None:
    """Two different things would have one name otherwise."""
    with pytest.raises(ValueError, match="id of a step"):
        check_step_id(step_id)
