"""The token through which a run is notified that it must end."""

import asyncio
import threading
import traceback
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from caseworker.core.budget import stops
from caseworker.core.budget.stops import DeadlineExceededError, HandOver, Stop
from caseworker.engine.cancellation import CancellationToken, is_being_cancelled

DEADLINE = DeadlineExceededError(datetime(2025, 9, 8, tzinfo=UTC))


@pytest.mark.req("000/C1")
def test_a_fresh_token_stops_nobody() -> None:
    """A fresh token can be checked repeatedly without effect."""
    token = CancellationToken()

    token.check()
    assert not token.is_cancelled
    assert token.stop is None


@pytest.mark.req("000/C1", "000/C2")
def test_after_a_cancel_every_check_raises_our_cancelled_error() -> None:
    """The raised error carries the requester and the reason; it is not asyncio's CancelledError."""
    token = CancellationToken()
    token.cancel("too slow", requested_by="ops")

    assert token.is_cancelled
    for _ in range(2):
        with pytest.raises(stops.CancelledError, match="too slow") as raised:
            token.check()
    assert raised.value.cause.requested_by == "ops"


def test_a_delayed_stop_needs_no_callback() -> None:
    """The stop is set after its delay, without a line in the log."""
    token = CancellationToken()
    token.is_delaying = True
    with capture_logs() as lines:
        token.cancel("too slow", requested_by="ops")
        assert not token.is_cancelled
        token.release()

    assert token.is_cancelled
    assert lines == []


def test_a_token_that_is_checked_often_does_not_grow() -> None:
    """Repeated checks raise the same stop without adding to its traceback."""
    token = CancellationToken()
    token.cancel()

    def depth() -> int:
        try:
            token.check()
        except Stop as stop:
            return len(traceback.extract_tb(stop.__traceback__))
        return 0

    assert [depth() for _ in range(5)] == [2] * 5


@pytest.mark.parametrize(
    ("first", "then", "kept"),
    [
        (stops.CancelledError("a"), stops.CancelledError("b"), "a"),
        (stops.CancelledError("a"), HandOver("b"), "a"),
        (stops.CancelledError("a"), DEADLINE, "a"),
        (DEADLINE, stops.CancelledError("b"), str(DEADLINE)),
        (HandOver("a"), HandOver("b"), "a"),
        (HandOver("a"), DEADLINE, "a"),
        (HandOver("a"), stops.CancelledError("b"), "b"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Stop) else value,
)
def test_the_first_stop_wins_but_a_wish_beats_a_hand_over(
    first: Stop, then: Stop, kept: str
) -> None:
    """A cancel request replaces a hand-over, so that no other process resumes the run."""
    token = CancellationToken()

    token.trip(first)
    token.trip(then)

    assert str(token.stop) == kept


@pytest.mark.req("000/C1")
async def test_a_cancel_from_another_thread_wakes_whoever_waits_in_the_loop() -> None:
    """A cancel from another thread wakes every waiter, and later waits return at once."""
    token = CancellationToken()
    waiting = [asyncio.create_task(token.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)

    thread = threading.Thread(target=token.cancel)
    thread.start()
    async with asyncio.timeout(150):
        for task in waiting:
            await task
        await token.wait()
    thread.join()


@pytest.mark.req("000/C1")
def test_of_many_threads_one_stop_is_kept_and_every_waiter_is_told_once() -> None:
    """Of eight racing cancels, one stop is kept and the callback runs once."""
    token, told, start = CancellationToken(), list[int](), threading.Barrier(8)

    def cancel(number: int) -> None:
        start.wait()
        token.cancel(str(number))

    with token.on_trip(lambda: told.append(1)):
        threads = [threading.Thread(target=cancel, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert told == [1]
    assert str(token.stop) in {str(number) for number in range(8)}


async def test_a_wait_that_is_given_up_leaves_nothing_behind() -> None:
    """A cancelled waiter removes its callback from the token."""
    token = CancellationToken()
    waiting = asyncio.create_task(token.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    token.cancel()
    assert token._callbacks == {}


def test_nobody_is_told_after_the_block() -> None:
    """No callback runs after its block, even in a race: it could wake a closed loop."""
    token, told = CancellationToken(), list[str]()
    inside, leave = threading.Event(), threading.Event()

    def slow() -> None:
        inside.set()
        leave.wait(120)
        told.append("slow")

    def cancel() -> None:
        inside.wait(120)

    with token.on_trip(slow), token.on_trip(lambda: told.append("block")):
        canceller = threading.Thread(target=token.cancel)
        canceller.start()
        inside.wait(120)
        threading.Timer(0.05, leave.set).start()
    left_with = list(told)
    canceller.join()

    assert left_with == told == ["slow", "block"]


def test_a_callback_may_look_at_the_token_that_calls_it() -> None:
    """A callback may read and trip the token without a deadlock."""
    token, seen = CancellationToken(), list[Stop | None]()
    with token.on_trip(lambda: seen.append(token.stop)):
        token.cancel("now")
    with token.on_trip(lambda: token.trip(HandOver("again"))):
        assert str(seen[0]) == "now"


async def test_a_task_knows_whether_it_is_cancelled_itself() -> None:
    """A cancelled future that a task awaits does not count as a cancellation of the task."""
    other = asyncio.get_running_loop().create_future()
    seen: list[bool] = []

    async def waits() -> None:
        try:
            await asyncio.shield(other)
        except asyncio.CancelledError:
            seen.append(is_being_cancelled())

    stray = asyncio.create_task(waits())
    await asyncio.sleep(0)
    other.cancel()
    await stray

    other = asyncio.get_running_loop().create_future()
    meant = asyncio.create_task(waits())
    await asyncio.sleep(0)
    meant.cancel()
    await meant
    assert seen == [False, True]
