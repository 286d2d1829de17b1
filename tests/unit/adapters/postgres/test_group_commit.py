"""The line of writers, over a database that answers whatever it is asked."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import psycopg
import pytest

from app.adapters.postgres.group_commit import GroupCommit
from tests.support.seeded_loop import run


class Open:
    """All that a line of writers asks of a connection by itself."""

    closed = False

    async def close(self) -> None:
        self.closed = True


async def connect() -> psycopg.AsyncConnection[Any]:
    return cast("psycopg.AsyncConnection[Any]", Open())


@pytest.mark.parametrize("seed", range(20))
def test_a_writer_that_gives_up_at_the_last_moment_leaves_no_batch_of_nothing(seed: int) -> None:
    """Nothing is written, and the next writer does not wait as if the rows had been locked."""
    batches: list[Sequence[str]] = []

    async def commit(connection: object, writes: Sequence[str]) -> Sequence[str]:
        batches.append(writes)
        return list(writes)

    async def main() -> float:
        line: GroupCommit[str, str] = GroupCommit(connect, commit)
        await line.start()
        for turns in range(5):
            writer = asyncio.ensure_future(line.submit(f"given up {turns}"))
            for _ in range(turns):
                await asyncio.sleep(0)
            writer.cancel()
            await asyncio.wait({writer})
            assert await line.submit("next") == "next"
        waited = asyncio.get_running_loop().time()
        await line.stop()
        return waited

    assert run(main, seed).result == 0
    assert all(batches)
    assert [write for batch in batches for write in batch].count("next") == 5
