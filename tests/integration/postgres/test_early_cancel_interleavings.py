"""A cancel request and another operation on its run, in every order of their statements."""

import asyncio
from collections.abc import Iterable
from functools import partial
from random import Random

import pytest

from caseworker.platform.postgres import group_commit
from caseworker.runs.ports import JournalWrite, Permission
from caseworker.runs.run import RunKey
from tests.integration.postgres.interleaving import Work, explore, sample
from tests.integration.postgres.racing import (
    AT_BARRIER,
    EARLY,
    LATER,
    Act,
    Before,
    an_expired_pending_cancel,
    claim,
    complete,
    give_back,
    it_was_queued,
    it_was_running,
    key_of,
    nothing,
    open_world,
    post_alone,
    post_apart,
    post_in_a_batch,
    post_over_whatever_is_there,
    post_that_looks_into_that_table,
    post_to_the_queue,
    post_with_a_key,
    recover,
    stop,
    stop_in_a_table_of_its_own,
)
from tests.support.seeds import seeds


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry locked rows without a pause; the schedule decides the order."""
    monkeypatch.setattr(group_commit, "LOCKED_SECONDS", (0.0, 0.0))


EXHAUSTIVE = pytest.mark.parametrize(
    "exhaustive",
    [False, pytest.param(True, marks=pytest.mark.proof)],
    ids=["sampled", "exhaustive"],
)


@pytest.mark.req("card/delete", "004/cancel-early")
@pytest.mark.guarantee(3)
@EXHAUSTIVE
@pytest.mark.parametrize(
    ("act", "before", "ends"),
    [
        (post_alone, nothing, {EARLY, AT_BARRIER}),
        (post_in_a_batch, nothing, {EARLY, AT_BARRIER}),
        (post_with_a_key, nothing, {EARLY, AT_BARRIER}),
        (post_apart, nothing, {EARLY, AT_BARRIER}),
        (post_to_the_queue, nothing, {EARLY}),
        (post_alone, an_expired_pending_cancel, {EARLY, AT_BARRIER}),
        (post_in_a_batch, an_expired_pending_cancel, {EARLY, AT_BARRIER}),
        (post_with_a_key, an_expired_pending_cancel, {EARLY, AT_BARRIER}),
        (post_apart, an_expired_pending_cancel, {EARLY, AT_BARRIER}),
        (claim, it_was_queued, {EARLY, AT_BARRIER}),
        (give_back, it_was_running, {LATER}),  # it is claimed for its end, since it has started
        (recover, it_was_running, {AT_BARRIER, LATER}),
        (complete, it_was_running, {EARLY, "completed before"}),
    ],
)
async def test_no_order_of_statements_lets_a_run_miss_its_stop(
    database_url: str, act: Act, before: Before, ends: set[str], exhaustive: bool
) -> None:
    """The run has one of the outcomes in ``ends``, and an exhaustive trial reaches each of them."""
    drawn = partial(sample, trials=16, draw=Random(0))
    every = partial(explore, in_a_row=IN_A_ROW.get(act, 12))
    async with open_world(database_url) as world:
        await world.race([act, stop], before, every if exhaustive else drawn)

        assert set(world.outcomes) <= ends, world.outcomes
        assert len(world.orders) > 1
        if exhaustive:
            assert set(world.outcomes) == ends
            assert world.blocked > 0 or act is complete  # which passes over a locked row
            assert len(world.orders) >= 5


IN_A_ROW: dict[Act, int] = {complete: 3}
"""Bounds of repeated exchanges; ending a run retries on its locked row."""


@pytest.mark.req("card/delete", "004/cancel-early")
@pytest.mark.guarantee(3)
@seeds(fast=1, proofs=10, shards=1)
async def test_two_posts_of_one_run_do_not_make_it_miss_its_stop(
    database_url: str, seeds: Iterable[int]
) -> None:
    """There are thousands of orders, of which each seed draws twenty."""
    for seed in seeds:
        async with open_world(database_url) as world:
            orders = partial(sample, trials=20, draw=Random(seed))
            await world.race([post_alone, post_in_a_batch, stop], nothing, orders)

            assert set(world.outcomes) <= {EARLY, AT_BARRIER}, (seed, world.outcomes)
            assert len(world.orders) > 1


@pytest.mark.parametrize(
    "acts",
    [
        (post_that_looks_into_that_table, stop_in_a_table_of_its_own),
        (post_over_whatever_is_there, stop),
    ],
)
async def test_these_trials_find_a_store_that_loses_stops(
    database_url: str, acts: tuple[Act, Act]
) -> None:
    """The trials detect a request in a separate table and an acceptance that does not check it."""
    async with open_world(database_url) as world:
        await world.oracle.rows("CREATE TABLE pending_cancels (run_id text)")
        await world.race(acts, nothing, partial(explore, in_a_row=12))

        assert world.outcomes["unaware"] > 0
        assert world.outcomes["unaware"] < world.trials


@pytest.mark.req("card/delete")
@pytest.mark.guarantee(2)
@EXHAUSTIVE
@pytest.mark.parametrize("in_a_batch", [False, True])
async def test_no_barrier_says_yes_once_the_stop_is_stored(
    database_url: str, in_a_batch: bool, exhaustive: bool
) -> None:
    """A write that misses the request was answered before the request was committed.

    In a batch with other writes, the answer follows a separate commit after the statement.
    """
    async with open_world(database_url) as world:
        asking, stopping, _ = world.clients
        permissions: list[Permission] = []

        async def ask(key: RunKey) -> None:
            async with asyncio.TaskGroup() as group:
                write = group.create_task(asking.journal.write(JournalWrite(key=key, fence=1)))
                if in_a_batch:
                    group.create_task(post_alone(asking, RunKey("default", f"by {key.run_id}")))
            permissions.append(write.result())

        async def begin(number: int) -> list[Work]:
            await it_was_running(world, key_of(number))
            return [partial(ask, key_of(number)), partial(stop, stopping, key_of(number))]

        sessions = [asking.session, stopping.session]
        seen = 0
        drawn = partial(sample, trials=12, draw=Random(0))
        every = partial(explore, in_a_row=4 if in_a_batch else 2)
        schedules = every if exhaustive else drawn
        async for trial in schedules(world.oracle, sessions, begin):
            answered, committed = trial.steps.rindex("a"), trial.steps.rindex("b")
            seen += permissions[-1].cancel_request is not None
            assert permissions[-1].owned
            assert permissions[-1].cancel_request is not None or answered < committed, trial.steps
        assert 0 < seen < len(permissions)
