"""The viewer's page of a run with 10,000 calls: opening, scrolling, and its trace."""

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

import httpx
import psutil
from playwright.async_api import Browser

from bench.figures import Check, Figure, Samples, Target
from bench.harness import OURS, Effort, Row
from bench.servers import database, process_at, service
from tests.support.browser import opened_browser

Value = TypeVar("Value")

CALLS: Final = 9_999
"""Items of a map, each as a step; the map and the run count as calls too."""

_SHOWN: Final = """async () => {
    while (document.querySelectorAll(".calls-body .call").length < 5) {
        await new Promise(requestAnimationFrame);
    }
    return performance.now();
}"""
"""A script that checks every frame; it returns the milliseconds until calls are shown."""

_SCROLLED: Final = """async (grid) => {
    const times = [];
    let last = await new Promise(requestAnimationFrame);
    for (let frame = 0; frame < 150; frame += 1) {
        grid.scrollTop += frame % 30 === 29 ? 40_000 : 400;
        const now = await new Promise(requestAnimationFrame);
        times.push(now - last);
        last = now;
    }
    return times;
}"""
"""A script that scrolls by about a screen per frame, sometimes further; it returns frame times."""


async def measure(effort: Effort) -> Sequence[Figure]:
    """Let a run make the calls, then request its trace, open its page and scroll it."""
    rounds = effort.choose(15, 5)
    async with AsyncExitStack() as stack:
        url = stack.enter_context(database())
        address = await stack.enter_async_context(service(url))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=address, timeout=120))
        answer = await http.post("/runs", json=_run(), headers={"Prefer": "wait=100"})
        assert answer.json()["status"] == "completed", answer.text
        process, sizes = process_at(address), list[float]()

        async def traced() -> tuple[float, float]:
            cpu, began = _cpu_seconds(process), time.perf_counter()
            sizes.append(len((await http.get("/runs/many/trace")).content) / 1e6)
            return 1e3 * (time.perf_counter() - began), 1e3 * (_cpu_seconds(process) - cpu)

        traces = await _repeated(traced, rounds)
        browser = await stack.enter_async_context(opened_browser())
        pages = await _repeated(lambda: _looked(browser, f"{address}/ui/runs/many"), rounds)
    opened = Samples(tuple(shown for shown, _ in pages))
    frames = Samples(tuple(frame for _, page in pages for frame in page))
    return [
        _figure("GET /runs/{id}/trace", "ms", Samples(tuple(took for took, _ in traces))),
        _figure("The same: CPU of the server", "ms", Samples(tuple(cpu for _, cpu in traces))),
        _figure("The same: size", "MB", Samples(tuple(sizes))),
        _figure(
            "Opening the page, until its calls are in sight",
            "ms",
            opened,
            Check(what="median", value=opened.median, target=Target(must=2_000, unit="ms")),
        ),
        _figure(
            "A frame while the calls are scrolled",
            "ms",
            frames,
            Check(what="p95", value=frames.percentile(95), target=Target(must=50, unit="ms")),
        ),
    ]


def _run() -> dict[str, Any]:
    routes = [{"when": {"path": "default", "op": "ge", "value": 0}, "to": "default"}]
    router = {"type": "router", "data": {"routes": routes}}
    data = {"over": "default", "step": router, "max_items": CALLS}
    graph = {"steps": [{"id": "each", "type": "map", "data": data}], "edges": [], "max_parallel": 8}
    return {"run_id": "many", "kind": "graph", "graph": graph, "input": list(range(CALLS))}


async def _looked(browser: Browser, address: str) -> tuple[float, list[float]]:
    """Open the page in a tab without a cache; return its time and the frame times."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    page = await context.new_page()
    await page.goto(address)
    shown: float = await page.evaluate(_SHOWN)
    frames: list[float] = await page.locator("[role=treegrid]").evaluate(_SCROLLED)
    await context.close()
    return shown, frames


async def _repeated(once: Callable[[], Awaitable[Value]], rounds: int) -> list[Value]:
    return [await once() for _ in range(rounds + 1)][1:]


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _figure(title: str, unit: str, samples: Samples, *checks: Check) -> Figure:
    return Figure(title=title, unit=unit, sides={OURS: samples}, checks=checks)


ROW: Final = Row(title="The viewer, a run of 10,000 calls", peers=(), measure=measure)
