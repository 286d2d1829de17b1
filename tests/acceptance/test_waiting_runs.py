"""Ten thousand runs that wait for approvals or for their clients cost a process nothing."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.approvals import People, decide, graph_run, note, people
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.noting_tool import noted
from tests.support.service import ServiceProcess, model_settings
from tests.support.stores import Oracle, eventually, open_oracle

WAITING = 10_000
APPROVED = 100
CALLERS = 20
"""Connections that post runs at once."""
BEATS = 4
GROWTH_BYTES = 16 << 20

HEARTBEAT = "SELECT max(beat_at) FROM workers"


async def post_runs(client: People, numbers: range) -> None:
    for number in numbers:
        await client.post_run(graph_run(f"w{number}", note("write", "hi")))


async def until_waiting(oracle: Oracle, count: int) -> None:
    """Wait until ``count`` runs wait for an approval."""

    async def waiting() -> bool:
        statement = "SELECT count(*) FROM runs WHERE status = 'waiting'"
        return bool(await oracle.value(statement) == count)

    await eventually(waiting, seconds=1100)


async def idle_cost(service: ServiceProcess, oracle: Oracle) -> tuple[float, int]:
    """Return the CPU seconds that an idle process uses in four heartbeats, and its memory.

    The memory is in bytes. The heartbeats are the clock: a slow machine makes them later.
    """
    process = psutil.Process(service.child.worker_pid)
    cpu: list[float] = []
    for _ in range(1 + BEATS):
        await next_heartbeat(oracle)
        times = process.cpu_times()
        cpu.append(times.user + times.system)
    return cpu[-1] - cpu[0], process.memory_info().rss


async def next_heartbeat(oracle: Oracle) -> None:
    before = await oracle.value(HEARTBEAT)

    async def beaten() -> bool:
        return bool(await oracle.value(HEARTBEAT) != before)

    await eventually(beaten)


@pytest.mark.proof
async def test_ten_thousand_runs_that_wait_cost_a_process_nothing(
    database_url: str, settings: dict[str, str], notes: Path
) -> None:
    """A process with them needs the memory and the idle CPU of one with a single waiting run."""
    async with open_oracle(database_url) as oracle:
        async with ServiceProcess(database_url, settings=settings) as service:
            async with people(service) as client:
                await post_runs(client, range(1))
            await until_waiting(oracle, 1)
        async with ServiceProcess(database_url, settings=settings) as service:
            cpu_alone, memory_alone = await idle_cost(service, oracle)
            async with people(service) as client, asyncio.TaskGroup() as group:
                for caller in range(CALLERS):
                    group.create_task(post_runs(client, range(1 + caller, WAITING, CALLERS)))
            await until_waiting(oracle, WAITING)

        async with (
            ServiceProcess(database_url, settings=settings) as service,
            people(service) as client,
        ):
            cpu, memory = await idle_cost(service, oracle)
            assert memory - memory_alone < GROWTH_BYTES, (memory_alone, memory)
            assert cpu < 2 * cpu_alone + 0.1 * BEATS, (cpu_alone, cpu)

            page = (await client.get(f"/approvals?limit={APPROVED}")).json()["approvals"]
            assert len(page) == APPROVED
            assert {(await decide(client, each)).status_code for each in page} == {202}

            async def effective() -> bool:
                return len(noted(notes)) >= APPROVED

            await eventually(effective)
            await until_waiting(oracle, WAITING - APPROVED)
            assert len(set(noted(notes))) == APPROVED


LOOKUP = {"name": "look_up", "parameters": {"type": "object", "properties": {}}}
SHOP = {"name": "shop", "prompt": {"system": "(shop)"}, "tools": [{"client": LOOKUP}]}
CALL = {"id": "c", "name": "look_up", "arguments": "{}"}
SENT = "was sent on day"
CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
POOLED = 40
"""More connections than the pools of one process and the test have together."""
ENDED = "SELECT count(*) = %s FROM runs WHERE status = 'completed'"


async def post_shop_run(client: People, number: int) -> None:
    run = {"kind": "agent", "run_id": f"w{number}", "agent": SHOP, "input": f"Order {number}?"}
    await client.post_run(run)


async def each_of(client: People, numbers: range, act: Callable[[People, int], Any]) -> None:
    """Perform ``act`` for each number, by several callers at once."""

    async def caller(part: range) -> None:
        for number in part:
            await act(client, number)

    async with asyncio.TaskGroup() as group:
        for first in range(CALLERS):
            group.create_task(caller(numbers[first::CALLERS]))


async def answer(client: People, number: int) -> None:
    """Execute the tool of a run as its client."""
    (call,) = (await client.get_run(f"w{number}"))["required_action"]["calls"]
    path = f"/runs/w{number}/calls/{call['call_id']}/result"
    sent = await client.post(path, json={"output": f"{number} {SENT} {number % 7}"})
    assert sent.status_code == 202, sent.text


@pytest.mark.proof
@pytest.mark.req("cw/17.waiting")
async def test_ten_thousand_runs_that_wait_for_their_clients_cost_a_process_nothing(
    database_url: str, settings: dict[str, str], provider: FakeProvider
) -> None:
    """They use no memory, CPU time or connection, other runs execute, and all answers wake them."""
    settings = {**settings, **model_settings(provider.openai_url)}
    await provider.script("(shop)", [Step(tool_calls=[CALL])], repeat_last=True)
    await provider.script(SENT, [Step(text="There it is.")], repeat_last=True)
    await provider.script("(other)", [Step(text="Here.")], repeat_last=True)
    async with open_oracle(database_url) as oracle:
        async with (
            ServiceProcess(database_url, settings=settings) as service,
            people(service) as client,
        ):
            await post_shop_run(client, 0)
            await until_waiting(oracle, 1)
        async with ServiceProcess(database_url, settings=settings) as service:
            cpu_alone, memory_alone = await idle_cost(service, oracle)
            async with people(service) as client:
                await each_of(client, range(1, WAITING), post_shop_run)
            await until_waiting(oracle, WAITING)

        async with (
            ServiceProcess(database_url, settings=settings) as service,
            people(service) as client,
        ):
            await idle_cost(service, oracle)  # the work of its start is over
            cpu, memory = await idle_cost(service, oracle)
            assert memory - memory_alone < GROWTH_BYTES, (memory_alone, memory)
            assert cpu < 2 * cpu_alone + 0.1 * BEATS, (cpu_alone, cpu)
            assert await oracle.value(CONNECTIONS) <= POOLED

            other = {"name": "other", "prompt": {"system": "(other)"}}
            body = {"kind": "agent", "run_id": "other", "agent": other, "input": "Now?"}
            ended = await client.post("/runs", json=body, headers={"Prefer": "wait=100"})
            assert ended.json()["status"] == "completed"
            assert (await client.get("/approvals?limit=50")).json()["approvals"] == []

            await each_of(client, range(WAITING), answer)
            await eventually(lambda: oracle.value(ENDED, WAITING + 1), seconds=1100)
            waiting = "SELECT count(*) FROM approvals WHERE decision IS NULL"
            assert await oracle.value(waiting) == 0
            charged = "SELECT count(*) FROM runs WHERE usage ->> 'tool_calls' = '1'"
            assert await oracle.value(charged) == WAITING

    bodies = [each.body or {} for each in await provider.arrivals(SENT, bodies=True)]
    read = [[one["content"] for one in body["messages"]] for body in bodies]
    assert sorted((question, result) for _, question, *_, result in read) == sorted(
        (f"Order {n}?", f'{{"output":"{n} {SENT} {n % 7}"}}') for n in range(WAITING)
    )
