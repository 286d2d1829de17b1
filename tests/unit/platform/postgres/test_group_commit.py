"""The group commit queue, over a scripted database."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import psycopg
import pytest
import structlog

from caseworker.platform.errors import WriteFailedError
from caseworker.platform.fair_slots import TENANT
from caseworker.platform.postgres.connections import ServerUnresponsiveError
from caseworker.platform.postgres.group_commit import (
    BATCH,
    BATCH_BYTES,
    STRIKES,
    GroupCommit,
    RetryLater,
)
from tests.support.seeded_loop import run


class Open:
    """The connection methods that the queue calls directly."""

    closed = False

    async def close(self) -> None:
        self.closed = True


async def connect() -> psycopg.AsyncConnection[Any]:
    return cast("psycopg.AsyncConnection[Any]", Open())


@pytest.mark.parametrize("seed", range(20))
def test_a_writer_that_gives_up_at_the_last_moment_leaves_no_batch_of_nothing(seed: int) -> None:
    """No row is written, and the next writer does not wait as after lock contention."""
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


Commit = Callable[[Sequence[str]], Awaitable[Sequence[str | RetryLater]]]


def written(commit: Commit, writes: Sequence[str], **options: Any) -> list[Any]:
    """Submit all writes at once, and return their results or errors."""

    async def main() -> list[Any]:
        async def commit_over(_: object, batch: Sequence[str]) -> Sequence[str | RetryLater]:
            return await commit(batch)

        line: GroupCommit[str, str] = GroupCommit(connect, commit_over, **options)
        await line.start()
        tasks = [asyncio.ensure_future(line.submit(write, len(write))) for write in writes]
        await asyncio.wait(tasks)
        await line.stop()
        return [task.exception() or task.result() for task in tasks]

    return run(main, 0).result


def test_a_batch_is_bounded_in_bytes() -> None:
    """A write above the limit is written in a separate batch."""
    batches: list[Sequence[str]] = []

    async def commit(batch: Sequence[str]) -> Sequence[str]:
        batches.append(batch)
        return batch

    large, half = "x" * (BATCH_BYTES + 1), "y" * (BATCH_BYTES // 2)
    writes = ["a", half, "b", half, "c", large, "d"]
    assert written(commit, writes) == writes
    assert all(len(batch) == 1 or sum(map(len, batch)) <= BATCH_BYTES for batch in batches)
    assert sorted(write for batch in batches for write in batch) == sorted(writes)
    assert len(batches) < len(writes)


@pytest.mark.parametrize(
    "error", [psycopg.errors.QueryCanceled("timeout"), ServerUnresponsiveError("no answer")]
)
def test_a_write_that_the_server_cannot_carry_out_fails_alone(error: Exception) -> None:
    """Other writes of the batch succeed without waiting for the last retry."""
    order: list[str] = []

    async def commit(batch: Sequence[str]) -> Sequence[str]:
        if "poison" in batch:
            await asyncio.sleep(20)
            order.append("poison")
            raise error
        order.extend(batch)
        return batch

    first, poison, second = written(commit, ["first", "poison", "second"])
    assert (first, second) == ("first", "second")
    assert isinstance(poison, WriteFailedError)
    assert "6 bytes" in str(poison)
    assert order.count("poison") == STRIKES
    assert order.index("second") < order.index("poison", 1)


class RefusalError(psycopg.DatabaseError):
    """The error of a function of the schema that refuses a write."""

    sqlstate = "CW001"


@pytest.mark.parametrize(
    ("error", "logged"),
    [(RefusalError("full"), []), (psycopg.errors.CheckViolation("wrong"), ["database.refused"])],
)
def test_only_an_unexpected_error_is_logged(error: Exception, logged: list[str]) -> None:
    """Both fail the write, but a refusal is the answer to a caller's request."""

    async def commit(batch: Sequence[str]) -> Sequence[str]:
        raise error

    with structlog.testing.capture_logs() as lines:
        assert written(commit, ["a"]) == [error]

    assert [line["event"] for line in lines] == logged


def test_a_write_that_was_broken_off_now_and_then_is_written() -> None:
    """An operator cancelled the batch's statement several times."""
    broken = 0

    async def commit(batch: Sequence[str]) -> Sequence[str]:
        nonlocal broken
        if broken < STRIKES - 1:
            broken += 1
            raise psycopg.errors.QueryCanceled("canceling statement due to user request")
        return batch

    assert written(commit, ["a", "b", "c"]) == ["a", "b", "c"]


def test_writes_that_wait_for_locks_do_not_fill_the_batches() -> None:
    """Other writes are committed in the meantime, however many writes wait for locks."""
    tries = Counter[str]()

    async def commit(batch: Sequence[str]) -> Sequence[str | RetryLater]:
        tries.update(batch)
        waits = [write.startswith("locked") and tries[write] < 3 for write in batch]
        return [
            RetryLater.LATER if wait else write for wait, write in zip(waits, batch, strict=True)
        ]

    writes = [f"locked {number}" for number in range(2 * BATCH[0])] + ["free"]
    assert written(commit, writes) == writes
    assert tries["free"] == 1


def test_a_line_that_gets_nothing_written_says_for_how_long() -> None:
    """A process uses this for readiness; an idle queue is ready."""
    now = 0.0

    async def main() -> None:
        nonlocal now
        away = True

        async def commit(_: object, batch: Sequence[str]) -> Sequence[str]:
            if away:
                raise psycopg.errors.AdminShutdown("away")
            return batch

        line: GroupCommit[str, str] = GroupCommit(connect, commit, clock=lambda: now)
        await line.start()
        assert line.stuck_seconds == 0
        writing = asyncio.ensure_future(line.submit("write"))
        await asyncio.sleep(1)
        now = 7.0
        assert line.stuck_seconds == 7
        away = False
        await writing
        await asyncio.sleep(1)
        assert line.stuck_seconds == 0
        await line.stop()

    with structlog.testing.capture_logs():
        run(main, 0)


def test_a_batch_gets_smaller_while_those_it_answers_keep_the_event_loop() -> None:
    """The last writer of a batch must not resume late; afterwards the batch may grow again."""
    sizes: list[int] = []
    now = 0.0
    needs = 0.0

    async def main() -> None:
        nonlocal now, needs

        async def commit(_: object, batch: Sequence[str]) -> Sequence[str]:
            sizes.append(len(batch))
            return batch

        async def writer(line: GroupCommit[str, str], name: str) -> None:
            nonlocal now
            await line.submit(name)
            now += needs

        line: GroupCommit[str, str] = GroupCommit(connect, commit, clock=lambda: now)
        await line.start()
        for needs in (0.0, 0.01, 0.0):  # noqa: B007 - writers read it
            async with asyncio.TaskGroup() as writers:
                for number in range(1500):
                    writers.create_task(writer(line, str(number)))
        await line.stop()

    asyncio.run(main())
    assert sizes[0] == BATCH[0]
    assert BATCH[1] in sizes
    busy = sizes.index(BATCH[0], 1)
    assert sizes[busy : busy + 10] == [BATCH[0]] * 10
    assert max(sizes[-4:]) > BATCH[0]


@pytest.mark.parametrize("seed", range(20))
def test_newcomers_wait_while_the_line_is_longer_than_a_commit(seed: int) -> None:
    """Waiting callers enter soon after the queue moves, although one of them was cancelled."""
    most, gate, came, entered = BATCH[0], asyncio.Event(), list[int](), list[int]()

    async def commit(connection: object, writes: Sequence[str]) -> Sequence[str]:
        await gate.wait()
        return list(writes)

    async def main() -> None:
        line: GroupCommit[str, str] = GroupCommit(connect, commit)
        await line.start()
        await line.wait_for_capacity(patience_seconds=9)
        writers = [asyncio.ensure_future(line.submit(f"{n}")) for n in range(most + 3)]
        await asyncio.sleep(0.01)

        async def enter(number: int) -> None:
            came.append(number)
            await line.wait_for_capacity(patience_seconds=9)
            entered.append(number)
            if number < most:
                await line.submit(f"of {number}")

        newcomers = [asyncio.ensure_future(enter(n)) for n in range(2 * most)]
        await asyncio.sleep(1)
        newcomers[3].cancel()
        assert len(came) == 2 * most
        assert not entered

        gate.set()
        await asyncio.wait({*writers, *newcomers})
        assert asyncio.get_running_loop().time() < 2
        assert sorted(entered) == [n for n in range(2 * most) if n != 3]
        await line.stop()

    run(main, seed)


def test_a_newcomer_does_not_wait_for_ever() -> None:
    """The queue stalls if the database is down."""

    async def commit(connection: object, writes: Sequence[str]) -> Sequence[str]:
        await asyncio.Event().wait()
        return writes

    async def main() -> float:
        line: GroupCommit[str, str] = GroupCommit(connect, commit)
        await line.start()
        writers = [asyncio.ensure_future(line.submit(f"{n}")) for n in range(BATCH[0])]
        await asyncio.sleep(0.01)
        await line.wait_for_capacity(patience_seconds=5)
        for writer in writers:
            writer.cancel()
        waited = asyncio.get_running_loop().time()
        await line.stop()
        return waited

    assert run(main, 0).result == pytest.approx(5, abs=0.1)


def test_tenants_take_turns() -> None:
    """A commit has a write of each waiting tenant, even if they are more than it can hold."""
    tenants, gate = [f"t{n}" for n in range(BATCH[0] + 1)], asyncio.Event()
    batches: list[Sequence[str]] = []

    async def commit(connection: object, writes: Sequence[str]) -> Sequence[str]:
        batches.append(writes)
        await gate.wait()
        return list(writes)

    async def main() -> None:
        line: GroupCommit[str, str] = GroupCommit(connect, commit)
        await line.start()

        async def submit(tenant: str, size: int = 0) -> None:
            TENANT.set(tenant)
            await line.submit(tenant, size)

        writers = [asyncio.ensure_future(submit("first"))]
        await asyncio.sleep(0.01)
        writers += [asyncio.ensure_future(submit("many")) for _ in range(10 * BATCH[0])]
        await asyncio.sleep(0.01)
        writers += [asyncio.ensure_future(submit(each)) for each in 2 * tenants]
        await asyncio.sleep(0.01)
        gate.set()
        await asyncio.wait(writers)
        gate.clear()
        batches.append(("large",))
        writers = [asyncio.ensure_future(submit("many", BATCH_BYTES)) for _ in range(9)]
        await asyncio.sleep(0.01)
        writers.append(asyncio.ensure_future(submit("other", BATCH_BYTES)))
        await asyncio.sleep(0.01)
        gate.set()
        await asyncio.wait(writers)
        await line.stop()

    run(main, 0)

    early = [write for batch in batches[1:3] for write in batch]
    assert set(early) == {"many", *tenants}
    start = batches.index(("large",)) + 1
    assert batches[start : start + 3] == [["many"], ["other"], ["many"]]


def test_newcomers_of_another_tenant_are_next() -> None:
    """A tenant whose callers wait for the queue does not delay those of another tenant."""
    gate, entered = asyncio.Event(), list[str]()

    async def commit(connection: object, writes: Sequence[str]) -> Sequence[str]:
        await gate.wait()
        return list(writes)

    async def main() -> None:
        line: GroupCommit[str, str] = GroupCommit(connect, commit)
        await line.start()
        writers = [asyncio.ensure_future(line.submit(f"{n}")) for n in range(BATCH[0])]
        await asyncio.sleep(0.01)

        async def enter(tenant: str) -> None:
            TENANT.set(tenant)
            await line.wait_for_capacity(patience_seconds=9)
            entered.append(tenant)

        newcomers = [asyncio.ensure_future(enter("many")) for _ in range(100)]
        await asyncio.sleep(0.01)
        newcomers.append(asyncio.ensure_future(enter("other")))
        await asyncio.sleep(0.01)
        gate.set()
        await asyncio.wait({*writers, *newcomers})
        await line.stop()

    run(main, 0)

    assert entered[:2] == ["many", "other"]


def test_a_line_without_writes_stops_at_once() -> None:
    """Its task does not wait for a write, nor its caller for the end of the grace period."""

    async def commit(connection: object, writes: Sequence[str]) -> Sequence[str]:
        return list(writes)

    async def main() -> float:
        line: GroupCommit[str, str] = GroupCommit(connect, commit)
        await line.start()
        await asyncio.sleep(1)
        await line.stop(grace_seconds=60)
        return asyncio.get_running_loop().time()

    assert run(main, 0).result == 1
