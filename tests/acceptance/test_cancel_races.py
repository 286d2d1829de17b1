"""Cancel requests race with runs: POST on one replica, DELETE on another, after some calls."""

import asyncio
import math
import random
import sys
import time
from collections import defaultdict
from itertools import chain, pairwise
from typing import Any

import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient
from tests.support.service import ServiceProcess, finished, model_settings

SEED = 12
AT_ONCE = 6
CALLS = 12
PROMISED_SECONDS = 0.25
"""The promised bound in seconds with a nearby database."""


@pytest.mark.req("card/delete", "004/cancel-early")
@pytest.mark.guarantee(2)
@pytest.mark.parametrize(
    ("count", "within_seconds"),
    [(30, math.inf), pytest.param(1_020, PROMISED_SECONDS, marks=pytest.mark.proof)],
)
async def test_no_call_but_the_one_that_was_on_its_way_arrives_after_a_receipt(
    module_database_url: str, running_provider: FakeProvider, count: int, within_seconds: float
) -> None:
    """The record of the provider gives arrival times; the clock of the client gives the 202."""
    await running_provider.reset()
    await running_provider.script(f"s{CALLS - 1}", [Step(hang=True)], repeat_last=True)
    await running_provider.script("RACE", [Step(text="on")])
    settings = model_settings(running_provider.openai_url)
    draw = random.Random(SEED)
    async with (
        ServiceProcess(module_database_url, settings=settings, name="posts") as posts,
        ServiceProcess(module_database_url, settings=settings, name="stops") as stops,
        posts.client() as poster,
        stops.client() as stopper,
    ):
        turns = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            races = [
                group.create_task(
                    _race(number, draw.randrange(CALLS), turns, poster, stopper, running_provider)
                )
                for number in range(count)
            ]
    receipts = dict(race.result() for race in races)

    arrivals = await running_provider.arrivals("RACE")
    made = dict.fromkeys(receipts, 0)
    late: dict[str, list[float]] = defaultdict(list)
    for arrival in arrivals:
        run_id = arrival.prompt.rsplit("run-", 1)[1][:4]
        made[run_id] += 1
        after = arrival.arrived_monotonic - receipts[run_id]
        if after > 0:
            late[run_id].append(after)
    worst = max(chain(*late.values()), default=0.0)
    sys.stdout.write(
        f"{count} races (seed {SEED}): {len(arrivals)} calls,"
        f" {len(late)} runs with a call after the receipt, at most {worst * 1000:.1f} ms\n"
    )
    assert max(map(len, late.values()), default=0) <= 1, late
    assert worst <= within_seconds


def _graph(run_id: str) -> dict[str, Any]:
    """Return a sequence of steps that call the model one after another."""
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


async def _race(
    number: int,
    calls: int,
    turns: asyncio.Semaphore,
    poster: JsonClient,
    stopper: JsonClient,
    provider: FakeProvider,
) -> tuple[str, float]:
    """Post a run and cancel it after ``calls`` calls; return its number and the receipt time.

    The last call gets no answer, so the run is always executing when the cancel request arrives.
    """
    run_id = f"{number:04d}"
    async with turns:
        posting = asyncio.create_task(poster.run_graph(_graph(run_id), run_id=f"race-{run_id}"))
        await provider.count(f"run-{run_id}", at_least=calls)
        await stopper.cancel_run(f"race-{run_id}")
        received = time.monotonic()
        await posting
        run = await finished(stopper, f"race-{run_id}")
    assert run["status"] == "cancelled"
    return run_id, received
