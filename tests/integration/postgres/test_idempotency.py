"""One key makes one run, however many replicas get the request."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from caseworker.runs.errors import RunConflictError
from caseworker.runs.ports import Accepted
from tests.support.limits import pool_sizes
from tests.support.stores import Stores, new_run, open_oracle, open_stores

POSTS = 50
PATIENT = pool_sizes(connect_seconds=3600)


@pytest.mark.req("card/s2s")
@pytest.mark.guarantee(8)
@pytest.mark.parametrize("keys", [5, pytest.param(100, marks=pytest.mark.proof)])
async def test_fifty_posts_with_one_key_make_one_run(database_url: str, keys: int) -> None:
    """Several keys are used on three replicas at once; all callers of a key get one run."""
    async with AsyncExitStack() as stack:
        oracle = await stack.enter_async_context(open_oracle(database_url))
        opened = [open_stores(database_url, sizes=PATIENT) for _ in range(3)]
        replicas = [await stack.enter_async_context(stores) for stores in opened]
        async with asyncio.TaskGroup() as group:
            answers: dict[int, list[asyncio.Task[Accepted]]] = {key: [] for key in range(keys)}
            for post in range(POSTS):
                for key, accepted in answers.items():
                    new = new_run(f"{key}-{post}", key=f"key {key}", named=False)
                    worker_id = "w1" if post % 2 else None
                    replica = replicas[post % len(replicas)]
                    accepted.append(
                        group.create_task(replica.runs.accept(new, worker_id=worker_id))
                    )

        for accepted in answers.values():
            results = [task.result() for task in accepted]
            assert len({result.run.key for result in results}) == 1
            assert sum(result.created for result in results) == 1
        assert await oracle.value("SELECT count(*) FROM runs") == keys
        jobs = await oracle.value("SELECT count(*) FROM procrastinate_jobs")
        queued = await oracle.value("SELECT count(*) FROM runs WHERE status = 'queued'")
        assert jobs == queued


@pytest.mark.req("card/s2s")
async def test_posts_of_one_id_make_one_run_with_and_without_a_key(database_url: str) -> None:
    """The first post wins; a post with another key is a conflict."""
    async with AsyncExitStack() as stack:
        opened = [open_stores(database_url, sizes=PATIENT) for _ in range(2)]
        replicas = [await stack.enter_async_context(stores) for stores in opened]
        for number in range(10):
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(_accept(replica, number, key))
                    for replica in replicas
                    for key in (None, "k", None, "k")
                ]
            answers = [task.result() for task in tasks]
            created = [answer for answer in answers if answer is not None and answer.created]

            assert len(created) == 1
            assert sum(answer is None for answer in answers) in (0, 4)


async def _accept(replica: Stores, number: int, key: str | None) -> Accepted | None:
    """Accept a run; return None for a conflict."""
    new = new_run(f"case-{number}", key=None if key is None else f"{key}-{number}")
    try:
        return await replica.runs.accept(new, worker_id="w1")
    except RunConflictError:
        return None
