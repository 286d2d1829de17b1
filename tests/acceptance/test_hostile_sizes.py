"""Small requests with large effects, against a process with 2 GB of memory."""

import asyncio
import itertools
import random
import resource
import string
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio

from tests.support.json_client import JsonClient
from tests.support.service import ServiceProcess, finished

MEMORY_BYTES = 2 << 30
MAX_GROWTH_BYTES = 200 << 20
PATIENCE_SECONDS = 5.0
"""The allowed seconds of a health check on a busy machine; a real stall takes far longer."""

ALWAYS = {"path": "default", "op": "exists"}


def router(step_id: str, handles: int = 1) -> dict[str, Any]:
    routes = [{"when": ALWAYS, "to": f"o{n}"} for n in range(handles)]
    return {"id": step_id, "type": "router", "data": {"mode": "all", "routes": routes}}


def edge(source: str, target: str, handle: str) -> dict[str, Any]:
    return {
        "source": source,
        "source_handle": handle,
        "target": target,
        "target_handle": "default",
        "data": {"channel": "flow"},
    }


def joining(steps: int, handles: int) -> dict[str, Any]:
    """Return a graph in which every step sends its input on many handles to the next one."""
    edges = [
        edge(f"r{n}", f"r{n + 1}", f"o{handle}")
        for n in range(steps - 1)
        for handle in range(handles)
    ]
    return {"steps": [router(f"r{n}", handles) for n in range(steps)], "edges": edges}


def nesting(levels: int) -> dict[str, Any]:
    """Return a graph in which every step joins the value of the previous step with a small one."""
    steps = [router("k"), *(router(f"s{n}") for n in range(levels))]
    sources = [("k", "s0")]
    for one, other in itertools.pairwise(f"s{n}" for n in range(levels)):
        sources += [(one, other), ("k", other)]
    edges = [edge(*each, "o0") for each in sources]
    return {"steps": steps, "edges": edges}


def mapped(step: dict[str, Any], over: str = "list") -> dict[str, Any]:
    return {"type": "map", "data": {"over": over, "step": step, "max_items": 10_000}}


def sending(value: str) -> dict[str, Any]:
    routes = [{"when": ALWAYS, "to": "default"}]
    return {"type": "router", "data": {"routes": routes, "value": value}}


def one_step(step: dict[str, Any]) -> dict[str, Any]:
    return {"steps": [{"id": "m", **step}], "edges": []}


LARGE = "".join(random.Random(3).choices(string.ascii_letters, k=200_000))

HOSTILE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "tenfold": (joining(7, 10), {"default": "x"}, "limits.max_"),
    "hundredfold": (joining(4, 100), {"default": "x" * 3600}, "limits.max_"),
    "deep": (nesting(256), {"default": 1}, "limits.max_depth"),
    "deeper": (nesting(1100), {"default": 1}, "limits.max_depth"),
    "stored": (
        one_step(mapped(sending("big"), "default")),
        {"default": [0] * 1400, "big": LARGE},
        "limits.max_value_kb",
    ),
}
"""Graphs, their inputs, and the limit that stops them."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def limited(module_database_url: str) -> AsyncIterator[ServiceProcess]:
    """Run a service with two gigabytes of address space."""
    async with ServiceProcess(module_database_url) as service:
        resource.prlimit(service.child.worker_pid, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        yield service


@pytest.fixture
async def caller(limited: ServiceProcess) -> AsyncIterator[JsonClient]:
    """Return a client of the limited service."""
    async with limited.client() as client:
        yield client


@asynccontextmanager
async def watched(service: ServiceProcess) -> AsyncIterator[None]:
    """Check the health and memory of the service during the block."""
    process = psutil.Process(service.child.worker_pid)
    before, most, stop = process.memory_info().rss, 0, asyncio.Event()

    async def look() -> int:
        nonlocal most
        looks = 0
        async with httpx.AsyncClient(base_url=service.url, timeout=PATIENCE_SECONDS) as client:
            while not stop.is_set() or looks < 3:
                (await client.get("/healthz")).raise_for_status()
                most = max(most, process.memory_info().rss)
                looks += 1
        return looks

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        stop.set()
        assert await looking >= 3
    assert most - before < MAX_GROWTH_BYTES


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.guarantee(22)
async def test_a_graph_that_makes_values_grow_fails_and_harms_nobody(
    name: str, limited: ServiceProcess, caller: JsonClient
) -> None:
    """The failed run names the limit and is readable, and the process keeps serving."""
    graph, inputs, limit = HOSTILE[name]

    async with watched(limited):
        run = await caller.run_graph(graph, inputs=inputs, wait_seconds=120)

    assert run["status"] == "failed", run["stop"]
    assert limit in run["stop"]["reason"]
    assert (await caller.get_run(run["run_id"]))["result"] == run["result"]
    assert (await caller.trace(run["run_id"]))["snapshot"]["nodes"]
    async with httpx.AsyncClient(base_url=limited.url) as client:
        listed = (await client.get("/runs", params={"limit": 5})).raise_for_status()
    assert "result" not in listed.json()["runs"][0]


async def test_a_map_in_a_map_in_a_map_is_halted_by_the_ceiling_of_steps(
    limited: ServiceProcess, caller: JsonClient
) -> None:
    """The run has no budget of its own; its limits show the ceiling, and other runs complete."""
    graph = one_step(mapped(mapped(mapped(sending("index")))))
    inputs = {"list": [0] * 2000, "default": 1}

    async with watched(limited):
        run = await caller.run_graph(graph, inputs=inputs)
        victim = await caller.post_run({"input": "What is 6 * 7?"}, wait_seconds=120)
        run = await finished(caller, run["run_id"], seconds=600)

    assert victim["status"] == "completed"
    assert run["limits"]["max_steps"] == 10_000
    assert (run["status"], run["stop"]["dimension"]) == ("halted", "steps")


@pytest.mark.guarantee(22)
async def test_a_schema_full_of_patterns_is_refused_at_once(limited: ServiceProcess) -> None:
    """Compiling its patterns would take seconds and a gigabyte."""
    for count in (300, 2000):
        rules = [{"pattern": f"[\\p{{L}}\\p{{N}}]{{90}}{n}"} for n in range(count)]
        data = {"prompt": "x", "output_schema": {"allOf": rules}}
        graph = one_step({"type": "llm", "data": data})
        async with watched(limited), httpx.AsyncClient(base_url=limited.url) as client:
            answer = await client.post("/graphs/validate", json={"graph": graph}, timeout=150)

        assert answer.json()["valid"] is False
        assert "patterns" in answer.text or "at most" in answer.text
