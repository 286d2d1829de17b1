"""Contract for a full queue, tested on every implementation of the run store."""

from dataclasses import replace

import pytest

from caseworker.runs.errors import QueueFullError
from caseworker.runs.run import Queueing
from tests.support.limits import store_limits
from tests.support.ports import Open
from tests.support.stores import new_run


@pytest.mark.guarantee(13)
async def test_a_full_queue_refuses_queued_runs_alone(opened: Open) -> None:
    """A run that starts at once needs no capacity, and an existing run is still found."""
    async with opened(store_limits(max_queued=1)) as ports:
        await ports.claimed("case-0")
        await ports.queued("case-1")

        with pytest.raises(QueueFullError):
            await ports.queued("case-2")
        assert (await ports.runs.accept(new_run("case-3"), worker_id="w1")).created
        again = await ports.runs.accept(new_run("case-1"), worker_id=None)
        assert not again.created


@pytest.mark.parametrize(
    ("most", "taken"), [(0, [0]), (1, [1, 1]), (2, [2, 1, 1]), (20, [20, *[2] * 10])]
)
@pytest.mark.parametrize(
    "queueing",
    [Queueing(), Queueing(concurrency_key="k", concurrency_limit=99)],
    ids=["batched", "accepted by itself"],
)
async def test_a_queue_that_is_full_of_one_tenant_takes_runs_of_others(
    opened: Open, most: int, taken: list[int], queueing: Queueing
) -> None:
    """Each other tenant gets a few slots, up to twice the limit of the queue in total."""

    async def takes(tenant: str) -> int:
        for number in range(3 * most + 3):
            new = replace(new_run(f"case-{number}", tenant=tenant), queueing=queueing)
            try:
                assert (await ports.runs.accept(new, worker_id=None)).created
            except QueueFullError:
                return number
        return 3 * most + 3

    async with opened(store_limits(max_queued=most)) as ports:
        assert [await takes(f"t{n}") for n in range(len(taken) + 1)] == [*taken, 0]
