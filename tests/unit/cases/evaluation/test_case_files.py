"""The committed cases and their gold answers."""

import pytest

from caseworker_cases.evaluation.comparison import same_answer
from caseworker_cases.evaluation.dataset import load_dataset
from tests.data.gold.answers import ANSWERS, FILES, load


@pytest.mark.req("002/16.1", "002/16.5")
@pytest.mark.parametrize("name", FILES)
def test_every_right_answer_is_worked_out_without_the_service(name: str) -> None:
    """The gold answers in the file equal those computed in plain Python, without gaps."""
    committed = {case["id"]: case["gold_answer"] for case in load(name) if "gold_answer" in case}

    assert committed == ANSWERS[name]


@pytest.mark.parametrize("name", FILES)
def test_every_case_has_a_right_answer_or_a_refusal_or_a_picture(name: str) -> None:
    """Each case has a gold answer, expects a refusal, or expects the plotter."""
    for case in load_dataset(FILES[name]).cases:
        wants_refusal = case.expect == "refused"
        assert (case.gold_answer is None) == (wants_refusal or "plotter" in case.expected_tools)


@pytest.mark.parametrize("name", FILES)
def test_every_right_answer_is_right_in_the_harness_own_eyes(name: str) -> None:
    """Each gold answer can be parsed by the comparison and differs from an inexact text."""
    for case in load_dataset(FILES[name]).cases:
        if case.gold_answer is not None:
            assert same_answer(case.gold_answer, case.gold_answer)
            assert not same_answer(f"{case.gold_answer} or so", case.gold_answer)


def test_there_are_enough_cases_of_every_kind() -> None:
    """There are at least 120 cases and 60 unseen ones, in all five families."""
    cases, unseen = (load_dataset(FILES[name]).cases for name in ("cases", "unseen"))
    families = {case.family for case in cases}

    assert len(cases) >= 120
    assert len(unseen) >= 60
    assert families == {"math", "calendar", "stocks", "mixed", "hostile"}
    assert {case.family for case in unseen} == families


def test_the_two_files_share_no_question() -> None:
    """The prepared and the unseen file share no question."""
    cases, unseen = (
        {" ".join(case["input"].casefold().split()) for case in load(name)} - {""}
        for name in ("cases", "unseen")
    )

    assert cases & unseen == set()
