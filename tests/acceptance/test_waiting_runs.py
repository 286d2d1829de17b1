"""Ten thousand runs that wait for approvals cost a process nothing."""

import asyncio
from pathlib import Path

import psutil
import pytest

from tests.support.approvals import People, decide, graph_run, note, people
from tests.support.noting_tool import noted
from tests.support.service import ServiceProcess
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
