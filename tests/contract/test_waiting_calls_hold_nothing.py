"""Runs that wait for their clients hold no slot, no task and no connection of their process."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.support.configured_cases import Configured
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient
from tests.support.stores import eventually, open_oracle

RUNS = 40
SLOTS = {"WORKER_MAX_RUNS": "2"}
LOOKUP = {"name": "look_up", "parameters": {"type": "object", "properties": {}}}
AGENT = {"name": "shop", "prompt": {"system": "(shop)"}, "tools": [{"client": LOOKUP}]}
CALL = {"id": "c", "name": "look_up", "arguments": "{}"}
STATUSES = "SELECT count(*) = %s FROM runs WHERE status = %s"


def agent_run(run_id: str, **agent: Any) -> dict[str, Any]:
    return {"kind": "agent", "agent": {**AGENT, **agent}, "run_id": run_id, "input": "Where?"}


def tasks() -> Counter[str]:
    """Count the tasks of this process by the name of their coroutine."""
    return Counter(str(task.get_coro()).split(" at ")[0] for task in asyncio.all_tasks())


@pytest.mark.req("cw/17.waiting")
async def test_forty_waiting_runs_leave_both_slots_free(configured: Configured) -> None:
    """Another run executes at once; then each of them ends with the output of its client."""
    provider = configured.provider
    await provider.script("(shop)", [Step(tool_calls=[CALL])], repeat_last=True)
    await provider.script("sent on day", [Step(text="It is on its way.")], repeat_last=True)
    await provider.script("(busy)", [Step(text="Here.")], repeat_last=True)
    async with configured.serving(**SLOTS) as client, open_oracle(configured.database_url) as rows:
        await client.post_run(agent_run("first"))
        await eventually(lambda: rows.value(STATUSES, 1, "waiting"))
        before = tasks()
        for number in range(RUNS):
            await client.post_run(agent_run(f"r{number}"))
        await eventually(lambda: rows.value(STATUSES, RUNS + 1, "waiting"))

        async def is_free() -> bool:
            return not tasks() - before

        await eventually(is_free)  # an execution ends right after its run waits
        busy = agent_run("busy", prompt={"system": "(busy)"}, tools=[])
        other = await client.post_run(busy, wait_seconds=120)
        async with asyncio.TaskGroup() as clients:
            for number in range(RUNS):
                clients.create_task(answer(client, number))
        await eventually(lambda: rows.value(STATUSES, RUNS + 1, "completed"))
        runs = [await client.get_run(f"r{number}") for number in range(RUNS)]

    assert other["status"] == "completed"
    assert [run["usage"]["tool_calls"] for run in runs] == [1] * RUNS
    bodies = [each.body or {} for each in await provider.arrivals("sent on day", bodies=True)]
    read = [each["messages"][-1]["content"] for each in bodies]
    assert sorted(read) == sorted(f'{{"output":"sent on day {n}"}}' for n in range(RUNS))


async def answer(client: JsonClient, number: int) -> None:
    (call,) = (await client.get_run(f"r{number}"))["required_action"]["calls"]
    await client.answer_call(f"r{number}", call["call_id"], f"sent on day {number}")
