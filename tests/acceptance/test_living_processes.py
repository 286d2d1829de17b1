"""No living process loses its runs, with the default settings."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.database import proxied, upstream_of
from tests.support.event_log import require_sound_events
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.fault_proxy import FaultProxy
from tests.support.json_client import JsonClient
from tests.support.processes import ChildProcess
from tests.support.service import ServiceProcess, finished, model_settings

OUTAGE_SECONDS = 30.0
STALE_SECONDS = 10.0
AS_DELIVERED = {
    "WORKER_HEARTBEAT_SECONDS": "1",
    "WORKER_STALE_AFTER_SECONDS": str(STALE_SECONDS),
}
RUNS = 20
PLAN = {"actions": [{"tool": "calculator", "args": {"expression": "6 * 7"}}]}
HOG = "while True: pass"

pytestmark = pytest.mark.proof


@asynccontextmanager
async def at_work(
    database_url: str, provider: FakeProvider
) -> AsyncIterator[tuple[list[ServiceProcess], JsonClient, FaultProxy]]:
    """Run two processes behind one proxy, each with runs whose first call is in flight."""
    await provider.answer_by_default(Step(plan=PLAN, hang=True))
    settings = {**model_settings(provider.openai_url), **AS_DELIVERED}
    settings |= {f"MODELS_{tier}_TIMEOUT_SECONDS": "120" for tier in ("SMALL", "BIG")}
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(FaultProxy(upstream_of(database_url)))
        services = [
            await stack.enter_async_context(
                ServiceProcess(proxied(database_url, proxy), settings=settings, name=name)
            )
            for name in ("first", "second")
        ]
        clients = [await stack.enter_async_context(service.client()) for service in services]
        for number in range(RUNS):
            question = {
                "run_id": f"run-{number}",
                "input": f"What is {number}?",
                "gold_answer": "42",
            }
            budget = {"max_seconds": 300}
            await clients[number % 2].post_run({**question, "budget": budget})
        await provider.wait_for_arrivals(RUNS, "What is")
        yield services, clients[1], proxy
        await _all_ended_once(clients[1], provider)
        for service in services:
            assert "runs.recovered" not in service.child.stderr
            assert "run.taken_over" not in service.child.stderr
    require_sound_events(database_url)


async def _all_ended_once(client: JsonClient, provider: FakeProvider) -> None:
    await provider.answer_by_default(Step(plan=PLAN))
    await provider.release()
    calls = 0
    for number in range(RUNS):
        run = await finished(client, f"run-{number}", seconds=180)
        assert run["attempts"] == 1, run
        usage = run["usage"]
        calls += usage.get("llm_calls_small", 0) + usage.get("llm_calls_big", 0)
    assert len(await provider.arrivals("What is")) == calls >= RUNS


async def test_a_process_that_stands_still_for_less_than_the_long_time_keeps_its_runs(
    database_url: str, provider: FakeProvider
) -> None:
    """The process misses more heartbeats than a dead one may, but it keeps its connection."""
    async with at_work(database_url, provider) as (services, _, _):
        services[0].child.freeze()
        await asyncio.sleep(5)  # of ten
        services[0].child.thaw()


@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(FaultProxy.silence, id="silent"),
        pytest.param(lambda proxy: (proxy.refuse(), proxy.cut()), id="refused"),
    ],
)
async def test_living_processes_keep_their_runs_through_a_long_outage(
    database_url: str, provider: FakeProvider, begin: Callable[[FaultProxy], object]
) -> None:
    """Runs survive an outage of any length, whichever process reconnects first."""
    async with at_work(database_url, provider) as (_, _, proxy):
        begin(proxy)
        await asyncio.sleep(OUTAGE_SECONDS)
        proxy.resume()
        proxy.refuse(False)
        await asyncio.sleep(2 * STALE_SECONDS)


@pytest.mark.parametrize("round_trip_ms", [300])
async def test_living_processes_keep_their_runs_beside_a_slow_database(
    database_url: str, provider: FakeProvider, round_trip_ms: int
) -> None:
    """The database is slow for several times the limit for heartbeats."""
    async with at_work(database_url, provider) as (_, _, proxy):
        proxy.delay(round_trip_ms / 1000)
        await asyncio.sleep(3 * STALE_SECONDS)
        proxy.delay(0)


@pytest.mark.parametrize("hogs", [8])
async def test_a_process_that_gets_next_to_no_processor_keeps_its_runs(
    database_url: str, provider: FakeProvider, tmp_path: Path, hogs: int
) -> None:
    """Processes of a higher priority use up the CPU that the starved process is bound to."""
    async with at_work(database_url, provider) as (services, _, _):
        starved = psutil.Process(services[0].child.worker_pid)
        starved.cpu_affinity([0])
        starved.nice(19)
        async with AsyncExitStack() as stack:
            for number in range(hogs):
                hog = ChildProcess(
                    ["taskset", "-c", "0", sys.executable, "-c", HOG],
                    output_dir=tmp_path,
                    name=f"hog-{number}",
                )
                stack.enter_context(hog)
            before = starved.cpu_times().user
            await asyncio.sleep(3 * STALE_SECONDS)
            assert starved.cpu_times().user - before < STALE_SECONDS, "it was not starved"
        starved.cpu_affinity([0, 1])
