"""Step paths: their text and their containment."""

import pytest

from caseworker.engine.step_path import StepPath, check_step_id

STEP = StepPath("a")


def test_a_path_is_shown_as_events_and_traces_have_it() -> None:
    """The text of a path covers nested steps, attempts, fallbacks, links and calls."""
    inner = STEP.attempt(2).step("b")

    assert (inner.text, inner.step_id) == ("a~2/b", "b")
    assert STEP.fallback().text == "a~fallback"
    assert STEP.linked("tools").text == "a>tools"
    assert inner.call("plan", 1).text == "a~2/b/plan/1"


def test_a_key_of_the_journal_is_read_back() -> None:
    """Journal keys of steps and of calls parse back to the same paths."""
    assert StepPath.of_record(STEP.record_key) == STEP
    assert StepPath.of_record(STEP.call("plan").text) == STEP.call("plan")


def test_a_step_holds_what_happens_in_all_of_its_attempts() -> None:
    """A step's path contains its attempts, fallback and links, but not itself or similar names."""
    inside = STEP.inside()

    for path in (STEP.step("b"), STEP.attempt(2), STEP.fallback().call("x"), STEP.linked("l")):
        assert path in inside
    for path in (STEP, StepPath("ab"), StepPath("b").step("a")):
        assert path not in inside


def test_an_attempt_holds_nothing_of_another_one() -> None:
    """An attempt's path contains its own calls and links, and nothing of later attempts."""
    assert STEP.call("x") in STEP.inside_attempt()
    assert STEP.linked("l") in STEP.inside_attempt()
    assert STEP.attempt(2) not in STEP.inside_attempt()
    assert STEP.attempt(2).call("x") not in STEP.inside_attempt()
    assert STEP.attempt(2).call("x") in STEP.attempt(2).inside_attempt()


@pytest.mark.parametrize("step_id", ["", "a/b", "a>b", "a~2"])
def test_an_id_that_would_be_read_as_a_path_is_refused(step_id: str) -> None:
    """A step ID with a path separator is rejected, because paths would become ambiguous."""
    with pytest.raises(ValueError, match="step id"):
        check_step_id(step_id)
