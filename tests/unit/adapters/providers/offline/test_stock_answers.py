"""Questions about stocks, planned and carried out by the real tools on the packaged prices."""

from typing import Any

import pytest

from tests.unit.adapters.providers.offline.desk import Desk
from tests.unit.adapters.providers.offline.stock_phrases import (
    BEYOND,
    FIGURES,
    PICTURES,
    PRICES,
    REFUSED_BY_THE_TOOL,
    SEVERAL,
    UNCLEAR,
)


@pytest.mark.req("002/5.3", "002/8.1", "002/10.1")
@pytest.mark.parametrize(("question", "answer"), PRICES)
async def test_a_price_is_looked_up(desk: Desk, question: str, answer: str) -> None:
    """Of one stock on one day, and worked on where the question says so."""
    assert await desk.composed(question) == answer


@pytest.mark.req("002/5.3", "002/8.1", "002/10.1")
@pytest.mark.parametrize(("question", "answer"), FIGURES)
async def test_a_figure_is_worked_out(desk: Desk, question: str, answer: str) -> None:
    """Over the period that the question names, in its words."""
    assert await desk.composed(question) == answer


@pytest.mark.req("002/5.3", "002/8.1")
@pytest.mark.parametrize(("question", "args"), PICTURES)
async def test_a_picture_is_planned(desk: Desk, question: str, args: dict[str, Any]) -> None:
    """With the kind, the stocks and the days that were asked for."""
    assert await desk.actions(question) == [{"tool": "plotter", "args": args}]


@pytest.mark.req("002/5.3", "002/8.1", "002/8.2")
@pytest.mark.parametrize(("question", "tools"), SEVERAL)
async def test_a_question_may_take_several_actions(
    desk: Desk, question: str, tools: list[str]
) -> None:
    """Prices come first, then figures, then pictures."""
    evidence = await desk.evidence(question)

    assert [found.tool for found in evidence] == tools


@pytest.mark.req("002/5.3")
async def test_the_figure_of_an_analysis_is_its_answer(desk: Desk) -> None:
    """The rows that were fetched beside it stay evidence."""
    assert await desk.composed("Analyse Apple in 2012.") == "30.5797"


@pytest.mark.parametrize(("question", "reason"), UNCLEAR)
async def test_what_a_question_leaves_open_is_named(desk: Desk, question: str, reason: str) -> None:
    """Never filled in."""
    plan = await desk.plan(question)

    assert list(plan) == ["cannot"], plan
    assert reason in plan["cannot"]


@pytest.mark.parametrize("question", BEYOND)
async def test_a_question_beyond_the_planner_is_refused(desk: Desk, question: str) -> None:
    """A word that is not understood may change everything."""
    plan = await desk.plan(question)

    assert list(plan) == ["cannot"], plan


@pytest.mark.req("002/5.5")
@pytest.mark.parametrize(("question", "code"), REFUSED_BY_THE_TOOL)
async def test_what_the_data_does_not_cover_is_refused_by_the_tool(
    desk: Desk, question: str, code: str
) -> None:
    """Which symbols and days there are is known to the source alone."""
    (result,) = await desk.results(question)

    assert result["code"] == code
