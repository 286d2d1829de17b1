"""The trace and the explanation of a run with 5,000 calls: CPU, and stalls of the event loop."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from bench.figures import Check, Figure, Samples, Target
from bench.harness import OURS, Effort, Row
from bench.servers import cpu_seconds, database, process_at, service

ITEMS: Final = 2_499
"""Items of a map. Each is a step and a call of a tool; the map and the run count, too."""
SETTINGS: Final = {"ADMISSION_MAX_TOOL_CALLS": "5000"}
STALL: Final = Target(must=20, stretch=10, unit="ms")
CPU: Final = Target(must=150, stretch=50, unit="ms")


async def measure(effort: Effort) -> Sequence[Figure]:
    """Read the trace and the explanation while another client asks for the health."""
    async with AsyncExitStack() as stack:
        url = stack.enter_context(database())
        address = await stack.enter_async_context(service(url, settings=SETTINGS))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=address, timeout=120))
        answer = await http.post("/runs", json=_run(), headers={"Prefer": "wait=100"})
        assert answer.json()["status"] == "completed", answer.text
        figures: list[Figure] = []
        for title, path in (
            ("GET /runs/{id}/trace", "/runs/many/trace"),
            ("GET /runs/{id}/trace?format=explain", "/runs/many/trace?format=explain"),
        ):
            read = [await _read(http, address, path) for _ in range(effort.choose(12, 4))][1:]
            stalls = Samples(tuple(stall for _, stall in read))
            cpu = Samples(tuple(spent for spent, _ in read))
            stalled = Check(what="median of the longest stalls", value=stalls.median, target=STALL)
            figures.append(
                Figure(
                    title=f"{title}: slowest answer of /healthz meanwhile",
                    unit="ms",
                    sides={OURS: stalls},
                    checks=[stalled],
                )
            )
            checks = [Check(what="CPU", value=cpu.median, target=CPU)] if "explain" in path else []
            figures.append(
                Figure(title=f"{title}: CPU", unit="ms", sides={OURS: cpu}, checks=checks)
            )
    return figures


async def _read(http: httpx.AsyncClient, url: str, path: str) -> tuple[float, float]:
    """Return the CPU of one read, and the slowest answer during another, both in milliseconds."""
    process = process_at(url)
    before = cpu_seconds(process)
    await http.get(path)
    cpu = cpu_seconds(process) - before
    done = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(_slowest(url, done))
        answer = await http.get(path)
        assert answer.is_success, answer.text
        done.set()
    return 1e3 * cpu, 1e3 * watching.result()


async def _slowest(url: str, done: asyncio.Event) -> float:
    place, slowest = urlsplit(url), 0.0
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    while not done.is_set():
        began = time.perf_counter()
        writer.write(f"GET /healthz HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        await reader.readexactly(length)
        slowest = max(slowest, time.perf_counter() - began)
        await asyncio.sleep(0.001)
    writer.close()
    return slowest


def _run() -> dict[str, Any]:
    arguments = {"expression": "${default} * 2 + 1"}
    tool = {"type": "tool", "data": {"tool": "calculator", "args": arguments}}
    data = {"over": "default", "step": tool, "max_items": ITEMS}
    graph = {"steps": [{"id": "each", "type": "map", "data": data}], "edges": [], "max_parallel": 8}
    return {"run_id": "many", "kind": "graph", "graph": graph, "input": list(range(ITEMS))}


ROW: Final = Row(title="A large trace", peers=(), measure=measure)
