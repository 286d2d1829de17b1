"""Code of runs that ends its process: each death counts against the run that caused it."""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.deadly_tools import OPEN
from tests.support.json_client import JsonClient
from tests.support.noting_tool import NOTES
from tests.support.service import ServiceProcess, finished
from tests.support.stores import eventually

TOOLS = (
    *("segfault", "abort", "bus_error", "divide", "leave", "leave_with_3", "leave_once"),
    *("late_segfault", "hog", "kill", "once", "pause", "take_20_seconds", "DeadlyTool"),
)
AGENTS = ("deadly_agent", "deadly_sync_agent")


def _settings(notes: Path) -> dict[str, str]:
    return {
        "MODELS_SMALL_PROVIDER": "stub",
        "TOOLS_PLUGINS": json.dumps([f"tests.support.deadly_tools:{name}" for name in TOOLS]),
        "AGENTS_PLUGINS": json.dumps([f"tests.support.deadly_tools:{name}" for name in AGENTS]),
        NOTES: str(notes),
    }


def _calls(run_id: str, *tools: str) -> dict[str, Any]:
    """Return the request for an agent that calls each of its tools once."""
    agent = {"name": "caller", "prompt": {"system": "Call."}, "tools": list(tools)}
    return {"run_id": run_id, "kind": "agent", "agent": agent, "input": "Call your tools."}


@pytest.mark.proof
async def test_each_kind_of_code_is_recorded_while_it_executes(
    database_url: str, tmp_path: Path
) -> None:
    """Functions of tools, on the event loop and in threads, other tools, and code agents."""
    notes = tmp_path / "notes"
    async with _apart(database_url, notes, WORKER_MAX_ATTEMPTS="1") as (_, client):
        stops = {}
        for name in ("segfault", "bus_error", "deadly", *AGENTS):
            body = _calls(name, name)
            if name in AGENTS:
                body |= {"agent": {"name": name}}
            await client.post_run(body)
            stops[name] = (await finished(client, name))["stop"]
    assert {name: stop["call"] for name, stop in stops.items()} == {name: name for name in stops}


@pytest.mark.proof
async def test_a_step_type_of_a_plugin_is_recorded_while_it_executes(
    database_url: str, tmp_path: Path
) -> None:
    """The plugin is an installed package."""
    metadata = tmp_path / "deadly-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: deadly\nVersion: 1\n")
    points = "[caseworker.node_types]\ndeadly_step = tests.support.deadly_tools:deadly_type\n"
    (metadata / "entry_points.txt").write_text(points)
    prefix = ("env", f"PYTHONPATH={tmp_path}:{os.getcwd()}")
    async with _apart(database_url, tmp_path / "notes", prefix=prefix) as (_, client):
        graph = {"steps": [{"id": "a", "type": "deadly_step", "data": {}}], "edges": []}
        await client.post_run({"run_id": "killer", "kind": "graph", "graph": graph})
        run = await finished(client, "killer")
    assert (run["stop"]["kind"], run["stop"]["call"]) == ("poisoned", "deadly_step")


@asynccontextmanager
async def _apart(
    database_url: str, notes: Path, *, prefix: Sequence[str] = (), **settings: str
) -> AsyncIterator[tuple[ServiceProcess, JsonClient]]:
    """Start a process that accepts runs and one that executes them."""
    process = partial(
        ServiceProcess, database_url, settings=_settings(notes) | settings, prefix=prefix
    )
    async with (
        process("--no-worker", name="api") as api,
        process(command="worker") as worker,
        api.client() as client,
    ):
        yield worker, client


async def _noted_once(notes: Path, line: str) -> None:
    """Wait until a call has started."""

    async def is_noted() -> bool:
        return _noted(notes)[line] > 0

    await eventually(is_noted)


def _noted(notes: Path) -> Counter[str]:
    return Counter(notes.read_text().splitlines() if notes.exists() else ())


WAYS = {
    "segfault": "SIGSEGV",
    "abort": "SIGABRT",
    "bus_error": "SIGBUS",
    "divide": "SIGFPE",
    "leave": "exit code 0",
    "leave_with_3": "exit code 3",
}


@pytest.mark.proof
@pytest.mark.parametrize(("way", "cause"), WAYS.items())
async def test_a_tool_that_ends_its_process_fails_its_run_after_three_deaths(
    database_url: str, tmp_path: Path, way: str, cause: str
) -> None:
    """A run that executes a tool in the same process completes, and is repeated alone."""
    notes = tmp_path / "notes"
    async with _apart(database_url, notes) as (_, client):
        await client.post_run(_calls("beside", "pause"))
        await _noted_once(notes, "beside pause")
        await client.post_run(_calls("killer", way))
        run = await finished(client, "killer")
        notes.with_name(notes.name + OPEN).touch()
        beside = await finished(client, "beside")
    assert (run["status"], run["stop"]["kind"], run["stop"]["call"]) == ("failed", "poisoned", way)
    assert cause in run["stop"]["reason"]
    assert _noted(notes)[f"killer {way}"] == 3
    assert beside["status"] == "completed", beside


async def test_a_call_that_must_not_be_repeated_is_stored_before_it_is_made(
    database_url: str, tmp_path: Path
) -> None:
    """The tool ends its process before the journal writes its next batch."""
    notes = tmp_path / "notes"
    async with _apart(database_url, notes) as (_, client):
        await client.post_run(_calls("caller", "leave_once"))
        run = await finished(client, "caller")
    assert run["status"] == "completed", run
    assert _noted(notes)["caller leave_once"] == 1


async def test_a_killer_ends_three_processes_and_no_other_run(
    database_url: str, tmp_path: Path
) -> None:
    """All other runs complete, and their calls are made once."""
    await _killers_among(database_url, tmp_path / "notes", ["segfault"], processes=1, others=3)


@pytest.mark.proof
async def test_three_killers_among_two_hundred_runs_on_three_processes(
    database_url: str, tmp_path: Path
) -> None:
    """Each killer ends at most three processes, and all other runs complete."""
    killers = ["segfault", "abort", "leave_with_3"]
    await _killers_among(database_url, tmp_path / "notes", killers, processes=3, others=200)


async def _killers_among(
    database_url: str, notes: Path, killers: Sequence[str], *, processes: int, others: int
) -> None:
    """Post runs that end their process, and runs whose calls must not be repeated."""
    async with AsyncExitStack() as stack:
        settings = _settings(notes)
        api = ServiceProcess(database_url, "--no-worker", settings=settings, name="api")
        client = await stack.enter_async_context((await stack.enter_async_context(api)).client())
        workers = [
            ServiceProcess(database_url, command="worker", settings=settings, name=f"w{number}")
            for number in range(processes)
        ]
        for worker in workers:
            await stack.enter_async_context(worker)
        due = {
            others * (2 * number + 1) // (2 * len(killers)): n for number, n in enumerate(killers)
        }
        for number in range(others):
            await client.post_run(_calls(f"other-{number}", "once"))
            if (way := due.get(number)) is not None:
                await client.post_run(_calls(f"killer-{way}", way))
        ended = [await finished(client, f"other-{number}") for number in range(others)]
        killed = [await finished(client, f"killer-{way}") for way in killers]
        deaths = sum(worker.child.stderr.count("death.counted") for worker in workers)
    assert [run["status"] for run in ended] == ["completed"] * others
    assert [(run["stop"]["kind"], run["stop"]["call"]) for run in killed] == [
        ("poisoned", way) for way in killers
    ]
    noted = _noted(notes)
    assert max(noted[f"killer-{way} {way}"] for way in killers) <= 3
    assert max(noted[f"other-{number} once"] for number in range(others)) == 1
    assert deaths <= 3 * len(killers)


async def test_kill_9_in_a_call_counts_against_no_run(database_url: str, tmp_path: Path) -> None:
    """The call is repeated until it ends, in an ordinary process."""
    notes = tmp_path / "notes"
    async with _apart(database_url, notes, WORKER_MAX_ATTEMPTS="1") as (worker, client):
        await client.post_run(_calls("killed", "kill"))
        run = await finished(client, "killed")
        logged = worker.child.stderr
    assert (run["status"], run["attempts"]) == ("completed", 3), run
    assert "death.counted" not in logged
    assert "run.executed_alone" not in logged


@pytest.mark.proof
async def test_kill_9_every_ten_seconds_poisons_no_run_with_calls_of_twenty(
    database_url: str, tmp_path: Path
) -> None:
    """Processes die in turn, with their parent or alone, and are replaced; all runs complete."""
    notes, count, logs = tmp_path / "notes", 24, list[str]()
    settings = _settings(notes)
    async with AsyncExitStack() as stack:
        api = ServiceProcess(database_url, "--no-worker", settings=settings, name="api")
        client = await stack.enter_async_context((await stack.enter_async_context(api)).client())
        workers = [
            ServiceProcess(database_url, command="worker", settings=settings, name=f"w{number}")
            for number in range(3)
        ]
        for worker in workers:
            await stack.enter_async_context(worker)
        for number in range(count):
            await client.post_run(_calls(f"slow-{number}", "take_20_seconds"))
        for kills in range(9):
            await asyncio.sleep(10)
            worker = workers[kills % 3]
            if kills % 2:
                psutil.Process(worker.child.worker_pid).kill()
            else:
                worker.child.kill()
                await worker.start()
        ended = [await finished(client, f"slow-{n}", seconds=900) for n in range(count)]
        logs = [worker.child.stderr for worker in workers]
    assert [run["status"] for run in ended] == ["completed"] * count, ended
    assert max(run["attempts"] for run in ended) > 1
    assert not any("death.counted" in log or "run.executed_alone" in log for log in logs)


async def test_a_call_that_timed_out_but_still_executes_is_counted(
    database_url: str, tmp_path: Path
) -> None:
    """The function ends the process while the next call of the run waits."""
    async with _apart(database_url, tmp_path / "notes", WORKER_MAX_ATTEMPTS="1") as (_, client):
        await client.post_run(_calls("late", "late_segfault", "pause"))
        run = await finished(client, "late")
    assert run["stop"]["kind"] == "poisoned", run
    assert "late_segfault" in run["stop"]["call"]


@pytest.fixture
def group() -> Iterator[Path]:
    """Make a control group with 500 MB of memory, where that is permitted."""
    limits = {"memory": "memory.limit_in_bytes", "unified": "memory.max", "": "memory.max"}
    for mount, limit in limits.items():
        made = Path("/sys/fs/cgroup", mount, f"caseworker-test-{os.getpid()}")
        with suppress(OSError):
            made.mkdir()
            try:
                (made / limit).write_text(str(500 << 20))
                yield made
                return
            finally:
                made.rmdir()
    pytest.skip("no control group with a memory limit can be made here")


@pytest.mark.proof
async def test_a_tool_that_takes_too_much_memory_is_known_by_the_kernels_count(
    database_url: str, tmp_path: Path, group: Path
) -> None:
    """The kernel ends the process with SIGKILL, and the control group counts it."""
    settings = _settings(tmp_path / "notes")
    enter = ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
    async with (
        ServiceProcess(database_url, "--no-worker", settings=settings, name="api") as api,
        ServiceProcess(database_url, command="worker", settings=settings, prefix=enter) as worker,
        api.client() as client,
    ):
        await client.post_run(_calls("hungry", "hog"))
        run = await finished(client, "hungry")
        assert await worker.child.terminate() == 0
    assert (run["stop"]["kind"], run["stop"]["call"]) == ("poisoned", "hog"), run
    assert "out of memory" in run["stop"]["reason"]
