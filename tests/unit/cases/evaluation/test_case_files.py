"""The committed cases, and their right answers."""

import pytest

from caseworker_cases.evaluation.comparison import same_answer
from caseworker_cases.evaluation.dataset import load_dataset
from tests.data.gold.answers import ANSWERS, FILES, load


@pytest.mark.req("002/16.1", "002/16.5")
@pytest.mark.parametrize("name", FILES)
def test_every_right_answer_is_worked_out_without_the_service(name: str) -> None:
    """What stands in the file is what plain Python finds; nothing is missing and nothing left."""
    committed = {case["id"]: case["gold_answer"] for case in load(name) if "gold_answer" in case}

    assert committed == ANSWERS[name]


@pytest.mark.parametrize("name", FILES)
def test_every_case_has_a_right_answer_or_a_refusal_or_a_picture(name: str) -> None:
    """Pictures have no text to compare; their tool is expected instead."""
    for case in load_dataset(FILES[name]).cases:
        wants_refusal = case.expect == "refused"
        assert (case.gold_answer is None) == (wants_refusal or "plotter" in case.expected_tools)


@pytest.mark.parametrize("name", FILES)
def test_every_right_answer_is_right_in_the_harness_own_eyes(name: str) -> None:
    """No gold answer is written in a way that the comparison cannot read."""
    for case in load_dataset(FILES[name]).cases:
        if case.gold_answer is not None:
            assert same_answer(case.gold_answer, case.gold_answer)
            assert not same_answer(f"{case.gold_answer} or so", case.gold_answer)


def test_there_are_enough_cases_of_every_kind() -> None:
    """At least 120, and at least 60 that nobody prepared for; few of them to be refused."""
    cases, unseen = (load_dataset(FILES[name]).cases for name in ("cases", "unseen"))
    families = {case.family for case in cases}

    assert len(cases) >= 120
    assert len(unseen) >= 60
    assert families == {"math", "calendar", "stocks", "mixed", "hostile"}
    assert {case.family for case in unseen} == families


def test_the_two_files_share_no_question() -> None:
    """What was prepared for says nothing about what was not."""
    cases, unseen = (
        {" ".join(case["input"].casefold().split()) for case in load(name)} - {""}
        for name in ("cases", "unseen")
    )

    assert cases & unseen == set()
