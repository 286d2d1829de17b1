"""Waits of a run: a limit ends those in its area, and nothing starts in it."""

import asyncio

import pytest

from caseworker.core.budget.stops import HandOver, Stop, StopCause, StopKind
from caseworker.engine.activity import Activity
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.step_path import StepPath

LIMIT = Stop(StopCause(kind=StopKind.BUDGET, dimension="steps", reason="spent"))
INSIDE, OUTSIDE = StepPath("graph/a"), StepPath("other")


async def test_a_limit_ends_the_waits_in_its_area_alone() -> None:
    """A wait in the area raises the stop; another one continues."""
    activity, opened = Activity(CancellationToken()), asyncio.Event()

    async def waiting(path: StepPath) -> str:
        async with activity.waits(path):
            await opened.wait()
        return "waited"

    inside, outside = (asyncio.create_task(waiting(path)) for path in (INSIDE, OUTSIDE))
    while len(activity.waiting) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    with activity.stopping(StepPath("graph").inside()) as stop_area:
        stop_area(LIMIT)
        with pytest.raises(Stop, match="spent"):
            await inside
        with pytest.raises(Stop, match="spent"):
            activity.check(INSIDE)
        with pytest.raises(Stop, match="spent"):
            await waiting(INSIDE)
        activity.check(OUTSIDE)
        assert activity.waiting == [OUTSIDE]
    opened.set()
    activity.check(INSIDE)

    assert await outside == "waited"


async def test_a_timeout_inside_a_wait_stays_a_timeout() -> None:
    """Only a stop of the area becomes a stop."""
    with pytest.raises(TimeoutError):
        async with Activity(CancellationToken()).waits(INSIDE):
            raise TimeoutError


def test_a_held_token_delays_stops_but_no_hand_over() -> None:
    """The first delayed stop takes effect at the release."""
    token, told = CancellationToken(), list[str]()
    token.hold()
    token.trip(LIMIT)
    token.on_delay(lambda: told.append("delayed"))
    token.cancel("enough")

    assert (token.stop, told) == (None, ["delayed", "delayed"])
    token.release()
    assert token.stop is LIMIT

    lost = CancellationToken()
    lost.hold()
    lost.trip(HandOver("lost"))
    assert isinstance(lost.stop, HandOver)
