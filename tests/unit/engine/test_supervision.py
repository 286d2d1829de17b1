"""Shielded writes and supervised work, including work that ignores its cancellation."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from caseworker.core.budget import stops
from caseworker.core.budget.stops import HandOver
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.supervision import DetachedError, Supervisor, shielded
from tests.support.seeded_loop import deaf, play, run

SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.proof) for seed in range(4, 20))]
GRACE = 2.0


async def stubborn(seconds: float, result: str = "late") -> str:
    """Ignore cancellation for the given time, then return."""
    await deaf(seconds)
    return result


@pytest.mark.parametrize("seed", SEEDS)
def test_a_write_ends_although_its_task_is_cancelled(seed: int) -> None:
    """A shielded write finishes despite repeated cancels; the cancellation is then re-raised."""
    written: list[float] = []

    async def write() -> None:
        await asyncio.sleep(1)
        written.append(asyncio.get_running_loop().time())

    async def main() -> None:
        task = asyncio.create_task(shielded(write(), grace_seconds=GRACE))
        for at in (0.2, 0.2, 0.2):
            await asyncio.sleep(at)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert written == [1.0]
        assert asyncio.get_running_loop().time() == 1.0

    play(main, seed)


def test_a_write_that_hangs_is_waited_for_no_longer_than_its_grace() -> None:
    """The grace period starts with the first cancel; a second one does not restart it."""

    async def main() -> float:
        task = asyncio.create_task(shielded(asyncio.sleep(60), grace_seconds=GRACE))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return asyncio.get_running_loop().time()

    assert run(main, 0).result == 3.0


async def test_a_write_that_fails_after_its_task_was_cancelled_complains_to_nobody(
    collect_garbage: Callable[[], int],
) -> None:
    """The event loop does not log the exception of an abandoned write as never retrieved."""
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))

    async def fails() -> None:
        await asyncio.sleep(0.01)
        raise RuntimeError("gone")

    task = asyncio.create_task(shielded(fails(), grace_seconds=1))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    collect_garbage()
    assert task.cancelled()
    assert complaints == []


async def test_a_write_that_is_not_disturbed_returns_or_fails_as_it_is() -> None:
    """A shielded write without a cancel returns its result or raises its own error."""

    async def fails() -> None:
        raise RuntimeError("no")

    assert await shielded(asyncio.sleep(0, "yes"), grace_seconds=1) == "yes"
    with pytest.raises(RuntimeError, match="no"):
        await shielded(fails(), grace_seconds=1)


def nobody(result: object) -> None:
    pytest.fail(f"{result} was told of as late")


@pytest.mark.parametrize("seed", SEEDS)
def test_work_that_nobody_stops_returns_its_result_or_its_failure(seed: int) -> None:
    """The supervisor returns the result of the work or raises its own error."""

    async def fails() -> None:
        await asyncio.sleep(1)
        raise RuntimeError("no")

    async def main() -> None:
        supervisor, token = Supervisor(grace_seconds=GRACE), CancellationToken()
        assert await supervisor.run(asyncio.sleep(1, "yes"), token, late=nobody) == "yes"
        with pytest.raises(RuntimeError, match="no"):
            await supervisor.run(fails(), token, late=nobody)

    play(main, seed)


@pytest.mark.req("000/C3")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_stop_reaches_work_in_flight(seed: int) -> None:
    """A stop cancels the work at once; a result returned during the cancellation is kept."""

    async def works() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "so far"
        return "all"

    async def main() -> None:
        supervisor, token = Supervisor(grace_seconds=GRACE), CancellationToken()
        asyncio.get_running_loop().call_later(1, token.cancel)
        assert await supervisor.run(works(), token, late=nobody) == "so far"
        assert asyncio.get_running_loop().time() == 1.0

    play(main, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_work_that_a_stop_ends_without_a_result_raises_the_stop(seed: int) -> None:
    """The stop is raised, not asyncio's CancelledError, which would mean an external cancel."""

    async def main() -> None:
        supervisor, token = Supervisor(grace_seconds=GRACE), CancellationToken()
        asyncio.get_running_loop().call_later(1, token.cancel, "enough")
        with pytest.raises(stops.CancelledError, match="enough"):
            await supervisor.run(asyncio.sleep(60), token, late=nobody)

    play(main, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stop_that_was_given_before_is_heard_as_well(seed: int) -> None:
    """A token that was cancelled before the start stops the work at once."""

    async def main() -> None:
        token = CancellationToken()
        token.cancel("early")
        with pytest.raises(stops.CancelledError, match="early"):
            await Supervisor(grace_seconds=GRACE).run(asyncio.sleep(60), token, late=nobody)
        assert asyncio.get_running_loop().time() == 0

    play(main, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_work_that_ignores_its_cancel_is_abandoned_and_its_late_result_told(seed: int) -> None:
    """The work is abandoned after the grace period; its late result is reported once."""
    told: list[tuple[float, str]] = []

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        supervisor, token = Supervisor(grace_seconds=GRACE), CancellationToken()
        asyncio.get_running_loop().call_later(1, token.cancel, "enough")
        with pytest.raises(DetachedError) as abandoned:
            await supervisor.run(
                stubborn(10), token, late=lambda result: told.append((clock(), result))
            )
        assert clock() == 3.0
        assert str(abandoned.value.stop) == "enough"
        assert told == []
        await asyncio.sleep(20)
        assert told == [(10.0, "late")]

    play(main, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_abandoned_work_that_fails_at_last_is_told_to_nobody(seed: int) -> None:
    """An abandoned task's late failure causes no callback and no log message."""

    async def fails_late() -> None:
        await stubborn(10)
        raise RuntimeError("at last")

    async def main() -> None:
        problems: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: problems.append(context)
        )
        token = CancellationToken()
        token.cancel()
        supervisor = Supervisor(grace_seconds=GRACE)
        with pytest.raises((DetachedError, stops.CancelledError)):
            await supervisor.run(fails_late(), token, late=nobody)
        await asyncio.sleep(20)
        assert problems == []

    play(main, seed)


async def test_abandoned_work_is_not_forgotten_by_the_garbage_collector(
    collect_garbage: Callable[[], int],
) -> None:
    """Abandoned work survives a garbage collection, although the loop holds tasks only weakly."""

    async def waits_for_nobody() -> None:
        for _ in range(2):
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                continue

    token, supervisor = CancellationToken(), Supervisor(grace_seconds=0)
    asyncio.get_running_loop().call_later(0.001, token.cancel)
    with pytest.raises(DetachedError):
        await supervisor.run(waits_for_nobody(), token, late=lambda _: None)
    collect_garbage()

    [left] = [task for task in asyncio.all_tasks() if task.get_name() == "run"]
    left.cancel()
    await asyncio.wait({left})


def test_a_wish_that_replaces_a_hand_over_during_the_grace_is_what_is_told() -> None:
    """A cancel during the grace period replaces the hand-over, so no process resumes the run."""

    async def main() -> str:
        supervisor, token = Supervisor(grace_seconds=GRACE), CancellationToken()
        asyncio.get_running_loop().call_later(1, token.trip, HandOver("going"))
        asyncio.get_running_loop().call_later(2, token.cancel, "stop it")
        with pytest.raises(DetachedError) as abandoned:
            await supervisor.run(stubborn(5), token, late=lambda _: None)
        await asyncio.sleep(5)
        return str(abandoned.value.stop)

    assert play(main) == "stop it"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cancel_from_outside_drains_the_work(seed: int) -> None:
    """An external cancel drains the work before the supervisor ends, even if it is repeated."""
    ended: list[float] = []

    async def cleans_up() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(1)
            ended.append(asyncio.get_running_loop().time())

    async def main() -> None:
        supervisor, token = Supervisor(grace_seconds=GRACE), CancellationToken()
        outer = asyncio.create_task(supervisor.run(cleans_up(), token, late=nobody))
        await asyncio.sleep(1)
        outer.cancel()
        await asyncio.sleep(0.5)
        outer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await outer
        assert ended == [2.0]

    play(main, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cancel_from_outside_does_not_wait_for_stubborn_work(seed: int) -> None:
    """An external cancel waits at most for the grace period; a late result is still reported."""
    told: list[str] = []

    async def main() -> None:
        supervisor, token = Supervisor(grace_seconds=GRACE), CancellationToken()
        outer = asyncio.create_task(supervisor.run(stubborn(30), token, late=told.append))
        await asyncio.sleep(1)
        token.cancel()
        await asyncio.sleep(1)
        outer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await outer
        assert asyncio.get_running_loop().time() == 4.0
        await asyncio.sleep(40)
        assert told == ["late"]

    play(main, seed)


@pytest.mark.parametrize("supervised", [False, True])
def test_a_failure_that_comes_after_a_cancel_is_no_complaint_of_the_loop(
    collect_garbage: Callable[[], int], supervised: bool
) -> None:
    """The loop logs no exception of abandoned work when its task is collected."""
    complaints: list[dict[str, Any]] = []

    async def fails_late() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(10)
        raise ValueError("late")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
        work = (
            Supervisor(grace_seconds=GRACE).run(fails_late(), CancellationToken(), late=print)
            if supervised
            else shielded(_fails_after(1), grace_seconds=0.5)
        )
        task = asyncio.create_task(work)
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(2)

    play(main, 0)
    collect_garbage()
    assert complaints == []


async def _fails_after(seconds: float) -> None:
    await asyncio.sleep(seconds)
    raise ValueError("late")
