"""The time from the kill of a process to the next call of its run, with the default settings."""

import asyncio
import random
import sys
import time

import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, finished, model_settings

KILLS = 50
SEED = 12
PROMISED_SECONDS = 5.0
"""The promised 99th percentile in seconds."""

AS_DELIVERED = {"WORKER_HEARTBEAT_SECONDS": "1", "WORKER_STALE_AFTER_SECONDS": "10"}
PLAN = {"actions": [{"tool": "calculator", "args": {"expression": "6 * 7"}}]}


@pytest.mark.proof
async def test_the_run_of_a_killed_process_goes_on_elsewhere_within_five_seconds(
    database_url: str, provider: FakeProvider
) -> None:
    """The time runs from the kill to the arrival of the next call at the provider."""
    settings = {**model_settings(provider.openai_url), **AS_DELIVERED}
    draw = random.Random(SEED)
    services = [
        ServiceProcess(database_url, settings=settings, name=f"service-{number}")
        for number in range(3)
    ]
    try:
        for service in services:
            await service.start()
        waits = []
        for kill in range(KILLS):
            victim, other = services[kill % 3], services[(kill + 1) % 3]
            await _at_work(f"KILL-{kill:03}", victim, provider)
            await asyncio.sleep(draw.uniform(0, 1))  # at any moment between two beats
            waits.append(await _taken_over(f"KILL-{kill:03}", victim, other, provider))
            await victim.start()
    finally:
        for service in services:
            service.child.close()

    waits.sort()
    median, p99 = waits[len(waits) // 2], waits[-1 - len(waits) // 100]
    sys.stdout.write(
        f"{KILLS} kills (seed {SEED}): the next call came after {median:.2f} s (median),"
        f" {p99:.2f} s (p99), {waits[-1]:.2f} s at most\n"
    )
    assert p99 <= PROMISED_SECONDS


async def _at_work(marker: str, service: ServiceProcess, provider: FakeProvider) -> None:
    """Execute a run whose first call hangs and whose second one is answered."""
    await provider.script(marker, [Step(hang=True), Step(plan=PLAN)], repeat_last=True)
    async with service.client() as client:
        question = {"run_id": marker, "input": f"{marker}: what is 6 times 7?"}
        await client.post_run({**question, "gold_answer": "42"})
    await provider.wait_for_arrivals(1, marker)


async def _taken_over(
    marker: str, victim: ServiceProcess, other: ServiceProcess, provider: FakeProvider
) -> float:
    """Kill the process of a run; return the seconds until the next call arrived."""
    killed_at = time.monotonic()
    victim.child.kill()
    arrivals = await provider.wait_for_arrivals(2, marker)
    async with other.client() as client:
        run = await finished(client, marker)
    assert (run["status"], run["attempts"]) == ("completed", 2)
    return arrivals[1].arrived_monotonic - killed_at
