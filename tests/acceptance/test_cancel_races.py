"""Cancels that race with runs: POST on one replica, DELETE on the other, at random moments."""

import asyncio
import random
import sys
import time
from itertools import pairwise
from typing import Any

import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient
from tests.support.service import ServiceProcess, finished, model_settings

RACES = 1_020
SEED = 12
AT_ONCE = 6
CALLS = 12
PROMISED_SECONDS = 0.25
"""What the service promises beside a database that is near."""


@pytest.mark.req("card/delete", "004/cancel-early")
@pytest.mark.proof
async def test_no_call_begins_later_after_a_receipt_than_is_promised(
    module_database_url: str, running_provider: FakeProvider
) -> None:
    """The provider's own record says when calls arrived; the client's clock when it had the 202."""
    await running_provider.reset()
    await running_provider.script("RACE", [Step(text="on")])
    settings = model_settings(running_provider.openai_url)
    draw = random.Random(SEED)
    async with (
        ServiceProcess(module_database_url, settings=settings, name="posts") as posts,
        ServiceProcess(module_database_url, settings=settings, name="stops") as stops,
        posts.client() as poster,
        stops.client() as stopper,
    ):
        longest = await _seconds_undisturbed(poster)
        await running_provider.reset()
        await running_provider.script("RACE", [Step(text="on")])
        turns = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            races = [
                group.create_task(_race(number, delay, turns, poster, stopper))
                for number in range(RACES)
                for delay in [draw.uniform(-0.01, longest)]
            ]
    receipts = dict(race.result() for race in races)

    arrivals = await running_provider.arrivals("RACE")
    made = dict.fromkeys(receipts, 0)
    late: dict[str, float] = {}
    for arrival in arrivals:
        run_id = arrival.prompt.rsplit("run-", 1)[1][:4]
        made[run_id] += 1
        after = arrival.arrived_monotonic - receipts[run_id]
        if after > 0:
            late[run_id] = max(after, late.get(run_id, 0.0))
    cut_short = sum(0 < calls < CALLS for calls in made.values())
    worst = max(late.values(), default=0.0)
    sys.stdout.write(
        f"{RACES} races (seed {SEED}): {cut_short} runs cut short, {len(arrivals)} calls,"
        f" {len(late)} runs with a call after the receipt, at most {worst * 1000:.1f} ms\n"
    )
    assert cut_short >= RACES // 10, "the cancels did not meet the runs at work"
    assert worst <= PROMISED_SECONDS


def _graph(run_id: str) -> dict[str, Any]:
    """Return a line of steps that ask the model one after the other."""
    names = [f"s{number}" for number in range(CALLS)]
    return {
        "steps": [
            {"id": name, "type": "llm", "data": {"prompt": f"RACE run-{run_id} {name}"}}
            for name in names
        ],
        "edges": [
            {
                "source": source,
                "source_handle": "default",
                "target": target,
                "target_handle": "default",
                "data": {"channel": "flow"},
            }
            for source, target in pairwise(names)
        ],
    }


async def _seconds_undisturbed(poster: JsonClient) -> float:
    """Return how long as many runs as race at once take when nobody stops them."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(AT_ONCE):
            group.create_task(_undisturbed(number, poster))
    return time.monotonic() - began


async def _undisturbed(number: int, poster: JsonClient) -> None:
    run = await poster.run_graph(_graph(f"free-{number}"))
    assert (await finished(poster, run["run_id"]))["status"] == "completed"


async def _race(
    number: int,
    delay: float,
    turns: asyncio.Semaphore,
    poster: JsonClient,
    stopper: JsonClient,
) -> tuple[str, float]:
    """Post and cancel; return the run's number and when the receipt was there."""
    run_id = f"{number:04d}"
    async with turns:
        posting = asyncio.create_task(poster.run_graph(_graph(run_id), run_id=f"race-{run_id}"))
        await asyncio.sleep(max(0.0, delay))
        await stopper.cancel_run(f"race-{run_id}")
        received = time.monotonic()
        await posting
        run = await finished(stopper, f"race-{run_id}")
    assert run["status"] in {"cancelled", "completed"}
    return run_id, received
