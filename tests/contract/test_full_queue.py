"""What a full queue refuses, asked of every implementation of the store of runs."""

import pytest

from app.runs.errors import QueueFullError
from tests.support.limits import store_limits
from tests.support.ports import Open
from tests.support.stores import new_run


@pytest.mark.guarantee(13)
async def test_a_full_queue_refuses_queued_runs_alone(opened: Open) -> None:
    """A run that begins at once takes no place in it; one that exists is still found."""
    async with opened(store_limits(max_queued=1)) as ports:
        await ports.claimed("case-0")
        await ports.queued("case-1")

        with pytest.raises(QueueFullError):
            await ports.queued("case-2")
        assert (await ports.runs.accept(new_run("case-3"), worker_id="w1")).created
        again = await ports.runs.accept(new_run("case-1"), worker_id=None)
        assert not again.created


async def test_a_queue_that_is_full_of_one_tenant_takes_runs_of_others(
    opened: Open,
) -> None:
    """Each of them a few, and all together as many again as the queue has places."""

    async def takes(tenant: str, run_id: str) -> bool:
        try:
            return (await ports.runs.accept(new_run(run_id, tenant=tenant), worker_id=None)).created
        except QueueFullError:
            return False

    async with opened(store_limits(max_queued=2)) as ports:
        assert [await takes("a", f"case-{n}") for n in range(3)] == [True, True, False]
        assert [await takes("b", f"case-{n}") for n in range(2)] == [True, False]
        assert [await takes("c", f"case-{n}") for n in range(2)] == [True, False]
        assert not await takes("d", "case-0")
