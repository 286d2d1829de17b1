"""Questions which of several stocks comes first, carried out on the packaged prices."""

import pytest

from tests.unit.adapters.providers.offline.comparison_phrases import BEYOND, UNCLEAR, WINNERS
from tests.unit.adapters.providers.offline.desk import Desk


@pytest.mark.req("002/5.3", "002/8.1", "002/10.1")
@pytest.mark.parametrize(("question", "winner"), WINNERS)
async def test_the_stock_that_is_asked_for_is_the_answer(
    desk: Desk, question: str, winner: str
) -> None:
    """By its symbol."""
    assert await desk.composed(question) == winner


@pytest.mark.parametrize(("question", "reason"), UNCLEAR)
async def test_what_a_comparison_leaves_open_is_named(
    desk: Desk, question: str, reason: str
) -> None:
    """Never filled in."""
    assert reason in await desk.refusal(question)


@pytest.mark.parametrize("question", BEYOND)
async def test_a_comparison_beyond_the_planner_is_refused(desk: Desk, question: str) -> None:
    """A word that is not understood may change everything."""
    assert await desk.refusal(question)


@pytest.mark.req("002/8.3")
async def test_a_comparison_with_a_late_beginner_is_planned_again_from_its_first_day(
    desk: Desk,
) -> None:
    """In 2012 means the trading days of 2012 that both have; Facebook's begin in May."""
    question = "Which did worse in 2012, AAPL or FB?"
    (action,) = await desk.actions(question)
    (failed,) = await desk.results(question)

    evidence = [action | {"result": dict(failed)}]
    (again,) = await desk.actions(question, evidence=evidence)

    assert failed["code"] == "out_of_range"
    assert again["args"] == action["args"] | {"start": "2012-05-18"}


async def test_a_picture_that_is_expected_shows_the_same_stocks(desk: Desk) -> None:
    """On the same days."""
    actions = await desk.actions(
        "Which did better in 2011, IBM or MSFT?", expected_tools=["plotter"]
    )

    days = {"start": "2011-01-01", "end": "2011-12-31"}
    assert actions[1] == {
        "tool": "plotter",
        "args": {"kind": "line", "symbols": ["IBM", "MSFT"], **days},
    }
