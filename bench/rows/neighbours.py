"""Other tenants of a process: the time of a small run next to the load of one tenant."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import httpx

from bench.figures import Check, Figure, Target, ratio
from bench.harness import OURS, Effort, Row, interleaved
from bench.load import Request, put_load
from bench.servers import database, service

BOOTSTRAP: Final = "b" * 40
QUIET: Final = f"{OURS}, quiet"
SLOWER: Final = Target(must=5, stretch=3)
HOLDS: Final = Target(must=0, unit="times")
RUNS: Final = 200
MANY: Final = 10**9
LEAD_SECONDS: Final = 4.0
"""Seconds for which a load lasts before the small runs."""
STEP: Final[Mapping[str, Any]] = {
    "type": "router",
    "data": {"routes": [{"when": {"path": "default", "op": "exists"}, "to": "a"}]},
}
MAP: Final[Mapping[str, Any]] = {
    "type": "map",
    "data": {"max_items": 10_000, "max_parallel": 64, "step": STEP},
}


def _graph_run(steps: Sequence[Mapping[str, Any]], value: Any) -> bytes:
    graph = {"steps": [{"id": f"s{n}", **step} for n, step in enumerate(steps)], "edges": []}
    return json.dumps({"kind": "graph", "graph": graph, "inputs": {"default": value}}).encode()


LOADS: Final[Mapping[str, tuple[int, Sequence[Request]]]] = {
    "graphs of 1 MB": (16, [Request(path="/runs", body=_graph_run([STEP] * 7_500, 1))]),
    "maps of 10,000 items": (
        4,
        [Request(path="/runs", body=_graph_run([MAP], list(range(9_990))))],
    ),
    "80,000 values": (16, [Request(path="/runs", body=_graph_run([STEP] * 4, [{}] * 80_000))]),
    "/statistics and /spend": (
        150,
        [
            Request(path=path, method="GET", body=b"")
            for path in ("/statistics", "/spend?group_by=agent")
        ],
    ),
}
"""For each load the connections, and the requests that they send in turn."""


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure small runs of one tenant alone, and next to each load of another tenant."""
    settings = {"AUTH_BOOTSTRAP_KEY": BOOTSTRAP}
    with database() as url:
        async with service(url, settings=settings) as ours:
            own, other = [await _key(ours, tenant) for tenant in ("own", "other")]
            sides = {QUIET: partial(_beside, ours, own, other, None)}
            sides |= {name: partial(_beside, ours, own, other, name) for name in LOADS}
            measured = await interleaved(sides, effort.choose(10, 3))
            holds = await _holds(ours)
    checks = [
        Check(what=name, value=ratio(measured[name], measured[QUIET]), target=SLOWER)
        for name in LOADS
    ]
    held = Check(what="holds of the event loop over 100 ms", value=holds, target=HOLDS)
    title = f"Median of {RUNS} small runs of one tenant, next to the load of another"
    return [Figure(title=title, unit="ms", sides=measured, checks=[*checks, held])]


async def _key(url: str, tenant: str) -> str:
    headers = {"authorization": f"Bearer {BOOTSTRAP}"}
    body = {"name": tenant, "tenant": tenant, "scopes": ["run", "admin"]}
    async with httpx.AsyncClient(base_url=url, headers=headers) as client:
        created = (await client.post("/keys", json=body)).raise_for_status()
        return str(created.json()["key"])


async def _beside(url: str, own: str, other: str, load: str | None) -> float:
    """Return the median milliseconds of small runs, next to a load."""
    loading = asyncio.create_task(_load(url, other, load))
    try:
        await asyncio.sleep(LEAD_SECONDS)
        small = Request(
            path="/runs",
            body=_graph_run([STEP], 1),
            headers=f"Authorization: Bearer {own}\r\nPrefer: wait=60\r\n",
            holds=b'"completed"',
        )
        return (await put_load(url, small, connections=1, requests=RUNS)).milliseconds.median
    finally:
        loading.cancel()
        with suppress(asyncio.CancelledError):
            await loading
        await _stop_runs(url, other)


async def _stop_runs(url: str, key: str) -> None:
    """Stop all runs of a tenant, and wait for their ends."""
    async with httpx.AsyncClient(
        base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=120
    ) as client:
        await client.post("/runs/cancel", json={"kind": "graph"})
        while any(  # noqa: ASYNC110 - another process ends the runs
            [await _active(client, status) for status in ("queued", "running")]
        ):
            await asyncio.sleep(0.1)


async def _active(client: httpx.AsyncClient, status: str) -> int:
    page = (await client.get("/runs", params={"status": status})).raise_for_status()
    return len(page.json()["runs"])


async def _load(url: str, key: str, name: str | None) -> None:
    """Send the requests of a load until cancelled; a process in the middle of one may refuse."""
    if name is None:
        return
    connections, requests = LOADS[name]
    headers = f"Authorization: Bearer {key}\r\nPrefer: wait=60\r\n"
    async with asyncio.TaskGroup() as group:
        for request in requests:
            sent = replace(request, headers=headers, expect=(200, 202, 503))
            each = connections // len(requests)
            group.create_task(put_load(url, sent, connections=each, requests=MANY))


async def _holds(url: str) -> float:
    async with httpx.AsyncClient(base_url=url) as client:
        lines = (await client.get("/metrics")).raise_for_status().text.splitlines()
    named = [line for line in lines if line.startswith("caseworker_event_loop_holds_total")]
    return sum(float(line.rpartition(" ")[2]) for line in named)


ROW: Final = Row(title="Next to another tenant's load", peers=(), measure=measure)
