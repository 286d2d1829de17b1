"""Concurrency keys and quotas over several processes, seen from the provider of the models."""

import asyncio
from itertools import pairwise

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, finished, model_settings

PLAN = {"actions": [{"tool": "calculator", "args": {"expression": "6 * 7"}}]}
RUNS = 8


def case(number: int) -> dict[str, object]:
    return {
        "run_id": f"turn-{number}",
        "input": "What is 6 times 7?",
        "concurrency_key": "one customer",
        "priority": number,
    }


async def test_runs_of_one_key_never_meet_and_all_come_to_their_turn(
    database_url: str, provider: FakeProvider
) -> None:
    """Runs of a key are posted to two processes, and the process of the first is killed."""
    await provider.script("6 times 7", [Step(hang=True)])
    settings = model_settings(provider.openai_url)
    async with (
        ServiceProcess(database_url, settings=settings, name="first") as first,
        ServiceProcess(database_url, settings=settings, name="second") as second,
        first.client() as to_first,
        second.client() as to_second,
    ):
        await to_first.post_run(case(0))
        await provider.wait_for_arrivals(1, "6 times 7")
        async with asyncio.TaskGroup() as group:
            for number in range(1, RUNS):
                client = to_first if number % 2 else to_second
                group.create_task(client.post_run(case(number)))
        waiting = [(await to_second.get_run(f"turn-{n}"))["status"] for n in range(1, RUNS)]
        plan = Step(plan=PLAN, delay_seconds=0.05)
        await provider.script("6 times 7", [plan], repeat_last=True)
        first.child.kill()
        runs = [await finished(to_second, f"turn-{n}") for n in range(RUNS)]

    assert waiting == ["queued"] * (RUNS - 1)
    assert [run["status"] for run in runs] == ["completed"] * RUNS
    begun = sorted(runs[1:], key=lambda run: run["started_at"])
    assert [run["priority"] for run in begun] == list(range(RUNS - 1, 0, -1))
    calls = [each for each in await provider.arrivals("6 times 7") if each.outcome != "open"]
    spans = sorted((each.arrived_monotonic, each.ended_monotonic or 0.0) for each in calls)
    assert len(spans) > RUNS
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
