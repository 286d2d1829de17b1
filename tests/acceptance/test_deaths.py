"""Code of runs that ends its process: each death counts against the run that caused it."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.deadly_tools import OPEN
from tests.support.json_client import JsonClient
from tests.support.noting_tool import NOTES
from tests.support.service import ServiceProcess, finished
from tests.support.stores import eventually

TOOLS = (
    *("segfault", "abort", "bus_error", "divide", "leave", "leave_with_3", "late_segfault"),
    *("hog", "kill", "once", "pause"),
)


def _settings(notes: Path) -> dict[str, str]:
    return {
        "MODELS_SMALL_PROVIDER": "stub",
        "TOOLS_PLUGINS": json.dumps([f"tests.support.deadly_tools:{name}" for name in TOOLS]),
        NOTES: str(notes),
    }


def _calls(run_id: str, *tools: str) -> dict[str, Any]:
    """Return the request for an agent that calls each of its tools once."""
    agent = {"name": "caller", "prompt": {"system": "Call."}, "tools": list(tools)}
    return {"run_id": run_id, "kind": "agent", "agent": agent, "input": "Call your tools."}


@asynccontextmanager
async def _apart(
    database_url: str, notes: Path, *options: str, **settings: str
) -> AsyncIterator[tuple[ServiceProcess, JsonClient]]:
    """Start a process that accepts runs and one that executes them."""
    settings = _settings(notes) | settings
    async with (
        ServiceProcess(database_url, "--no-worker", settings=settings, name="api") as api,
        ServiceProcess(database_url, command="worker", settings=settings) as worker,
        api.client() as client,
    ):
        yield worker, client


async def _noted_once(notes: Path, line: str) -> None:
    """Wait until a call has started."""

    async def is_noted() -> bool:
        return notes.exists() and _noted(notes)[line] > 0

    await eventually(is_noted)


def _noted(notes: Path) -> Counter[str]:
    return Counter(notes.read_text().splitlines())


WAYS = {
    "segfault": "SIGSEGV",
    "abort": "SIGABRT",
    "bus_error": "SIGBUS",
    "divide": "SIGFPE",
    "leave": "exit code 0",
    "leave_with_3": "exit code 3",
}


@pytest.mark.parametrize(("way", "cause"), WAYS.items())
async def test_a_tool_that_ends_its_process_fails_its_run_after_three_deaths(
    database_url: str, tmp_path: Path, way: str, cause: str
) -> None:
    """A run that executes a tool in the same process completes, and is repeated alone."""
    notes = tmp_path / "notes"
    async with _apart(database_url, notes) as (worker, client):
        await client.post_run(_calls("beside", "pause"))
        await _noted_once(notes, "beside pause")
        await client.post_run(_calls("killer", way))
        run = await finished(client, "killer")
        notes.with_name(notes.name + OPEN).touch()
        beside = await finished(client, "beside")
        print(worker.child.stderr)
    assert (run["status"], run["stop"]["kind"], run["stop"]["call"]) == ("failed", "poisoned", way)
    assert cause in run["stop"]["reason"]
    assert _noted(notes)[f"killer {way}"] == 3
    assert beside["status"] == "completed", beside
