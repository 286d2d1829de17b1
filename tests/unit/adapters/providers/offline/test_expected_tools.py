"""Plans for askers who expect certain tools, and second plans."""

from typing import Any

import pytest

from tests.unit.adapters.providers.offline.desk import Desk

RETURN = "What was the total return of AAPL in 2012?"
YEAR = {"symbol": "AAPL", "start": "2012-01-01", "end": "2012-12-31"}
ANALYSIS = {"tool": "numeric_analysis", "args": {"metric": "total_return", **YEAR}}


@pytest.mark.req("002/5.3", "002/9.1")
async def test_expected_tools_that_show_more_of_the_same_are_used(desk: Desk) -> None:
    """In the order in which they follow one another, whatever the order of the wish."""
    expected = ["plotter", "data_fetch_stock", "numeric_analysis"]
    actions = await desk.actions(RETURN, expected_tools=expected)

    assert actions == [
        {"tool": "data_fetch_stock", "args": YEAR},
        ANALYSIS,
        {"tool": "plotter", "args": {"kind": "line", **YEAR}},
    ]


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (RETURN, ["calendar"]),
        (RETURN, ["nonsense", 5, None]),
        (RETURN, "plotter"),
        ("What was the close of AAPL on 2012-09-19?", ["plotter", "numeric_analysis"]),
        ("What is 2 + 2?", ["plotter", "calendar"]),
    ],
)
async def test_expected_tools_that_have_nothing_to_do_with_it_are_not_used(
    desk: Desk, question: str, expected: Any
) -> None:
    """An action without a meaning would only look like a use."""
    assert await desk.actions(question, expected_tools=expected) == await desk.actions(question)


async def test_the_figure_stays_the_answer_beside_a_picture(desk: Desk) -> None:
    """Expected tools add evidence, no answer."""
    expected = ["plotter", "data_fetch_stock"]

    assert await desk.composed(RETURN, expected_tools=expected) == "30.5797"


async def test_a_plan_never_has_more_than_three_actions(desk: Desk) -> None:
    """What is asked for comes before what is expected besides."""
    question = "On which day did AAPL reach its highest close in 2012?"
    actions = await desk.actions(question, expected_tools=["plotter"])

    assert [action["tool"] for action in actions] == ["numeric_analysis", "calendar", "respond"]


@pytest.mark.req("002/8.3")
async def test_an_expected_tool_that_may_not_be_used_is_named(desk: Desk) -> None:
    """Without it the wish cannot be met."""
    plan = await desk.plan(RETURN, expected_tools=["plotter"], tools=["numeric_analysis"])

    assert "plotter" in plan["cannot"]


async def second_plan(desk: Desk, question: str) -> dict[str, Any]:
    """Plan, carry out, and plan again with what that brought."""
    evidence = [found.to_dict() for found in await desk.evidence(question)]
    return await desk.plan(question, evidence=evidence, failure="There is no answer yet.")


@pytest.mark.req("002/8.4")
async def test_a_year_is_cut_to_the_days_from_the_first_price_on(desk: Desk) -> None:
    """The source says since when there are prices; the first plan asked for all of the year."""
    plan = await second_plan(desk, "What was the total return of FB in 2012?")

    assert plan["actions"][0]["args"] == {
        "metric": "total_return",
        "symbol": "FB",
        "start": "2012-05-18",
        "end": "2012-12-31",
    }


async def test_only_the_stock_with_late_prices_is_asked_again_for_fewer_days(desk: Desk) -> None:
    """A comparison begins where both have prices."""
    plan = await second_plan(desk, "What was the correlation of FB and AAPL in 2012?")

    assert plan["actions"][0]["args"]["start"] == "2012-05-18"


@pytest.mark.parametrize(
    "question",
    [
        "What was the total return of FB from 2012-01-03 to 2012-12-31?",
        "What was the total return of AAPL in 2013?",
        "What was the total return of FB in 2010?",
        "What was the closing price of TSLA on 2012-01-03?",
    ],
)
async def test_days_that_were_given_or_end_too_late_are_never_changed(
    desk: Desk, question: str
) -> None:
    """The failure stands."""
    plan = await second_plan(desk, question)

    assert plan["cannot"].startswith("My plan failed")


async def test_another_failure_keeps_the_days_as_they_are(desk: Desk) -> None:
    """Cutting the days would not mend it."""
    question = "What was the total return of FB in 2012?"
    broken = {"tool": "plotter", "args": {}, "result": {"error": "no room", "code": "x"}}
    evidence = [*(found.to_dict() for found in await desk.evidence(question)), broken]

    plan = await desk.plan(question, evidence=evidence)

    assert plan["cannot"].endswith("plotter: no room")
