"""A burst of more posts than a process can take is refused beyond its limit."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil
import psycopg
import pytest

from tests.support.hostile_places import GRAPH
from tests.support.raw_client import Answer, Ask, RawClient
from tests.support.service import ServiceProcess

MAX_GROWTH_BYTES = 300 << 20
PATIENCE_SECONDS = 300.0
REFUSALS = {"queue-full", "too-many-connections", "too-many-bodies"}
"""Allowed problem types of a refusal; a missing database is not among them."""

QUEUED = "SELECT count(*) FROM runs WHERE status = 'queued'"
STATUSES = "SELECT run_id, status FROM runs"


@dataclass(slots=True)
class Burst:
    """The outcome of many posts."""

    answers: dict[str, Answer] = field(default_factory=dict)
    """Answers by the ID of the posted run."""
    stored: dict[str, str] = field(default_factory=dict)
    """The final status of every run in the database."""
    most_queued: int = 0
    """The largest number of queued runs seen."""
    growth_bytes: int = 0
    """The largest growth of the process's memory seen, in bytes."""

    def refusals(self) -> Counter[str]:
        """Count the kinds of refusals."""
        return Counter(_kind(each) for each in self.answers.values() if each.status != 202)

    def faults(self, *, max_queued: int) -> list[str]:
        """Return the violations of the guarantees of a process under load."""
        accepted = {run_id for run_id, each in self.answers.items() if each.status == 202}
        statuses = {each.status for each in self.answers.values()}
        hasty = [
            run_id
            for run_id, each in self.answers.items()
            if each.status != 202 and int(each.headers.get("retry-after", "0")) < 1
        ]
        found = {
            "answers of another kind": statuses - {202, 429, 503},
            "refusals for another reason": set(self.refusals()) - REFUSALS,
            "refusals without a time to try again": hasty,
            "runs that were accepted and lost": accepted - set(self.stored),
            "runs that were refused and stored": set(self.stored) - accepted,
            "runs that did not end well": {
                run_id for run_id, status in self.stored.items() if status != "completed"
            },
            "more runs in the queue than may be": self.most_queued > max_queued,
            "nothing refused": not self.refusals(),
            "nothing accepted": not accepted,
            "too much memory": self.growth_bytes > MAX_GROWTH_BYTES,
        }
        return [f"{what}: {which}" for what, which in found.items() if which]


def _kind(answer: Answer) -> str:
    return str(answer.json()["type"]).rpartition(":")[2]


@asynccontextmanager
async def watching(burst: Burst, process: psutil.Process, url: str) -> AsyncIterator[None]:
    """Watch the memory of a process and its queue during the block."""
    before = process.memory_info().rss

    async def watch() -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            while True:
                queued = await (await connection.execute(QUEUED)).fetchone()
                assert queued is not None
                burst.most_queued = max(burst.most_queued, queued[0])
                growth = process.memory_info().rss - before
                burst.growth_bytes = max(burst.growth_bytes, growth)
                await asyncio.sleep(0.05)

    task = asyncio.create_task(watch())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def burst_of(posts: int, connections: int, database_url: str, max_queued: int) -> Burst:
    """Post runs on many connections at once, and wait until the accepted ones have ended."""
    settings = {"WORKER_MAX_RUNS": "50", "ADMISSION_MAX_QUEUED": str(max_queued)}
    burst = Burst()
    left = [f"burst-{number}" for number in range(posts)]

    async def lane(url: str) -> None:
        async with RawClient(url) as client:
            while left:
                run_id = left.pop()
                body = {"run_id": run_id, "kind": "graph", "graph": GRAPH}
                request = Ask("POST", "/runs", json.dumps(body).encode())
                burst.answers[run_id] = await client.ask(request)

    async with ServiceProcess(database_url, settings=settings) as service:
        process = psutil.Process(service.child.worker_pid)
        async with watching(burst, process, database_url):
            async with asyncio.TaskGroup() as group:
                for _ in range(connections):
                    group.create_task(lane(service.url))
            burst.stored = await statuses_at_the_end(database_url)
        assert service.child.exit_code is None
    return burst


async def statuses_at_the_end(database_url: str) -> dict[str, str]:
    """Return the status of every run once all have ended."""
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection,
    ):
        while True:
            rows: list[Any] = await (await connection.execute(STATUSES)).fetchall()
            found = dict(rows)
            if not {"queued", "running"} & set(found.values()):
                return found
            await asyncio.sleep(0.2)


@pytest.mark.req("card/s2s", "card/post")
@pytest.mark.guarantee(13)
@pytest.mark.parametrize("posts", [1_000, pytest.param(5_000, marks=pytest.mark.proof)])
async def test_a_burst_of_posts_is_refused_beyond_the_queue_limit(
    database_url: str, posts: int
) -> None:
    """Every answer is a 202 or names a Retry-After, and every accepted run ends."""
    connections, max_queued = posts // 5, posts // 10
    burst = await burst_of(posts, connections, database_url, max_queued)

    answered = Counter(each.status for each in burst.answers.values())
    sys.stdout.write(
        f"{posts} posts on {connections} connections: {dict(answered)} {dict(burst.refusals())},"
        f" at most {burst.most_queued} queued, {burst.growth_bytes >> 20} MiB more\n"
    )
    assert burst.faults(max_queued=max_queued) == []
    assert len(burst.answers) == posts


@pytest.mark.req("card/s2s")
async def test_a_service_that_ignores_the_limit_of_its_queue_is_found_out(
    database_url: str,
) -> None:
    """The service runs with a different limit from the one that the check uses."""
    burst = await burst_of(200, 100, database_url, max_queued=10_000)

    faults = burst.faults(max_queued=5)
    assert "nothing refused: True" in faults
    assert "more runs in the queue than may be: True" in faults
    assert len(faults) == 2


@pytest.mark.req("card/s2s")
def test_each_thing_that_a_burst_may_not_do_is_found() -> None:
    """A good burst has no fault, and each changed one has exactly one."""

    def refusal(kind: str, status: int, retry: str = "2") -> Answer:
        told = {"type": f"urn:caseworker:problem:{kind}"}
        return Answer(status, {"retry-after": retry}, json.dumps(told).encode())

    def faults(**changed: Any) -> list[str]:
        usual: dict[str, Any] = {
            "answers": {"a": Answer(202, {}, b""), "b": refusal("queue-full", 429)},
            "stored": {"a": "completed"},
            "most_queued": 3,
        }
        found = Burst(**(usual | changed)).faults(max_queued=3)
        return [each.partition(":")[0] for each in found]

    kept = {"a": Answer(202, {}, b"")}
    assert faults() == []
    assert faults(answers=kept | {"b": refusal("queue-full", 500)}) == ["answers of another kind"]
    assert faults(answers=kept | {"b": refusal("store-unavailable", 503)}) == [
        "refusals for another reason"
    ]
    assert faults(answers=kept | {"b": refusal("queue-full", 429, "0")}) == [
        "refusals without a time to try again"
    ]
    assert faults(stored={}) == ["runs that were accepted and lost"]
    assert faults(stored={"a": "completed", "b": "completed"}) == [
        "runs that were refused and stored"
    ]
    assert faults(stored={"a": "failed"}) == ["runs that did not end well"]
    assert faults(most_queued=4) == ["more runs in the queue than may be"]
    assert faults(answers=kept) == ["nothing refused"]
    assert faults(growth_bytes=301 << 20) == ["too much memory"]
