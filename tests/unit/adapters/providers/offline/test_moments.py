"""Questions about times, weeks, counts and orders, planned and carried out by the real tools."""

import pytest

from app.adapters.providers.offline.reading.dates.cities import city_zones
from app.adapters.providers.offline.reading.words.cursor import new_cursor
from tests.unit.adapters.providers.offline.desk import Desk
from tests.unit.adapters.providers.offline.moment_phrases import (
    BEYOND,
    ELAPSED,
    FACTS,
    REFUSED_BY_THE_TOOL,
    TIMES,
    UNCLEAR,
)


@pytest.mark.req("002/5.2", "002/8.1", "002/10.1", "002/25.5")
@pytest.mark.parametrize(("question", "answer"), TIMES)
async def test_a_time_is_told_where_it_is_asked_for(desk: Desk, question: str, answer: str) -> None:
    """With its day, because it may be another one there."""
    assert await desk.composed(question) == answer


@pytest.mark.req("002/5.2", "002/8.1", "002/10.1")
@pytest.mark.parametrize(("question", "answer"), ELAPSED)
async def test_the_time_between_two_times_is_counted(
    desk: Desk, question: str, answer: str
) -> None:
    """No time of day that a question gives is left out of it."""
    assert await desk.composed(question) == answer


@pytest.mark.req("002/5.2", "002/8.1", "002/10.1")
@pytest.mark.parametrize(("question", "answer"), FACTS)
async def test_days_are_counted_placed_and_put_in_order(
    desk: Desk, question: str, answer: str
) -> None:
    """The answers were looked up in a calendar."""
    assert await desk.composed(question) == answer


@pytest.mark.parametrize(("question", "reason"), UNCLEAR)
async def test_what_a_question_about_a_time_leaves_open_is_named(
    desk: Desk, question: str, reason: str
) -> None:
    """Never filled in."""
    assert reason in await desk.refusal(question)


@pytest.mark.parametrize("question", BEYOND)
async def test_a_question_about_a_time_with_words_left_over_is_refused(
    desk: Desk, question: str
) -> None:
    """A place that is no zone's city is not guessed either."""
    assert await desk.refusal(question)


@pytest.mark.req("002/25.4", "002/5.5")
@pytest.mark.parametrize(("question", "code"), REFUSED_BY_THE_TOOL)
async def test_a_time_that_is_none_or_two_is_refused_by_the_tool(
    desk: Desk, question: str, code: str
) -> None:
    """It knows the clocks."""
    (result,) = await desk.results(question)

    assert result["code"] == code


@pytest.mark.parametrize(
    ("name", "zone"),
    [
        ("tokyo", "Asia/Tokyo"),
        ("new york", "America/New_York"),
        ("port au prince", "America/Port-au-Prince"),
        ("buenos aires", "America/Buenos_Aires"),
        ("istanbul", None),
        ("christmas", None),
        ("victoria", None),
        ("eastern", None),
        ("est", None),
        ("troll", None),
    ],
)
def test_a_city_is_known_by_the_one_zone_that_has_its_name(name: str, zone: str | None) -> None:
    """Names of several places, and words that mean other things, are not."""
    assert city_zones().read(new_cursor(name)) == zone
