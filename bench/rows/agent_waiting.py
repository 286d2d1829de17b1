"""Memory of runs that wait for their model provider, for a tool, or for an agent elsewhere."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

import httpx
from caseworker_client import AsyncCaseworkerClient

from bench.figures import Check, Figure, Samples, Target
from bench.harness import Effort, Row
from bench.load import Request, put_load
from bench.servers import asking, database, models, service, service_process

AGENT: Final = "an agent"
LLM: Final = "a graph's llm step"
TOOL_STEP: Final = "a graph's tool step"
EXTERNAL: Final = "an idle external run"
CALLED: Final = "an idle external run after one call"

WAIT_SECONDS: Final = 300
BUDGET: Final = {"max_seconds": 2 * WAIT_SECONDS}
AT_ONCE: Final = 20
CHAT: Final = "/gateway/openai/v1/chat/completions"
LOOK_SECONDS: Final = 0.5
WITH_HTTP: Final = Target(must=60, stretch=40, unit="KiB")
WITHOUT: Final = Target(must=32, stretch=20, unit="KiB")
IDLE: Final = Target(must=40, unit="KiB")
TOOL: Final = {"TOOLS_PLUGINS": '["bench.sides.outside_tool:PatientTool"]'}

Run = Callable[[AsyncCaseworkerClient, str], Awaitable[None]]
"""Posts a run that calls the model of a tier."""


def _graph(seconds: int) -> Request:
    step = {"id": "wait", "type": "tool", "data": {"tool": "patient", "args": {"number": seconds}}}
    body = {"kind": "graph", "graph": {"steps": [step], "edges": []}}
    return Request(path="/runs", body=json.dumps(body).encode(), expect=(202,))


async def measure(effort: Effort) -> Sequence[Figure]:
    """Post runs until all of them wait, and compare the memory with that before."""
    runs = effort.choose(1_000, 200)
    with database() as url:
        measured = {
            AGENT: await _asking_bytes(url, runs, _run_agent),
            LLM: await _asking_bytes(url, runs, _run_llm),
            TOOL_STEP: await _graph_bytes(url, runs),
            EXTERNAL: await _external_bytes(url, runs, calls=0),
            CALLED: await _external_bytes(url, runs, calls=1),
        }
    kib = {name: size / 1024 for name, size in measured.items()}
    checks = [
        Check(what=f"{AGENT}, its connection included", value=kib[AGENT], target=WITH_HTTP),
        Check(what=f"{LLM}, its connection included", value=kib[LLM], target=WITH_HTTP),
        Check(what=f"{TOOL_STEP}, without a connection", value=kib[TOOL_STEP], target=WITHOUT),
        Check(what=EXTERNAL, value=kib[EXTERNAL], target=IDLE),
    ]
    sides = {name: Samples((each,)) for name, each in kib.items()}
    return [Figure(title=f"{runs:,} waiting runs", unit="KiB a run", sides=sides, checks=checks)]


async def _run_agent(client: AsyncCaseworkerClient, tier: str) -> None:
    agent = {
        "name": "patient",
        "prompt": {"system": "Wait."},
        "tools": ["calculator"],
        "model": {"tier": tier},
    }
    await client.run_agent(agent, "How much is it?", budget=BUDGET)


async def _run_llm(client: AsyncCaseworkerClient, tier: str) -> None:
    step = {"id": "ask", "type": "llm", "data": {"prompt": "How much is it?", "tier": tier}}
    await client.run_graph({"steps": [step], "edges": []}, budget=BUDGET)


async def _asking_bytes(url: str, runs: int, run: Run) -> float:
    """Return the bytes of runs that call a model: the small one answers, the big one waits."""
    async with (
        models() as provider,
        service(url, settings=_slots(runs) | _asking(provider)) as served,
        AsyncCaseworkerClient(served, timeout_seconds=60) as client,
    ):
        process, connected = service_process(), _connections(provider)
        await _post(client, run, "small", AT_ONCE)
        async for each in client.iterate_runs():
            await client.wait_for_run(each.run_id)
        before = process.memory_info().rss
        await _post(client, run, "big", runs)
        while connected() < runs:  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(LOOK_SECONDS)
        await asyncio.sleep(LOOK_SECONDS)
        held = (process.memory_info().rss - before) / runs
        await _cancel_all(client)
        return held


def _slots(runs: int) -> dict[str, str]:
    """Return settings that let one tenant execute this number of runs at once."""
    return {"WORKER_MAX_RUNS": str(2 * runs)}


def _asking(provider: str) -> dict[str, str]:
    small = asking(provider)
    big = {name.replace("SMALL", "BIG"): value for name, value in small.items()}
    return {**small, **big, "MODELS_BIG_MODEL": f"wait-{WAIT_SECONDS}"}


async def _post(client: AsyncCaseworkerClient, run: Run, tier: str, runs: int) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def post() -> None:
        async with room:
            await run(client, tier)

    async with asyncio.TaskGroup() as group:
        for _ in range(runs):
            group.create_task(post())


async def _graph_bytes(url: str, runs: int) -> float:
    """Return the bytes of runs without a connection, whose calls are stored."""
    settings = _slots(runs) | TOOL
    async with (
        service(url, settings=settings) as served,
        AsyncCaseworkerClient(served, timeout_seconds=60) as client,
    ):
        process = service_process()
        await put_load(served, _graph(0), connections=AT_ONCE, requests=runs)
        before = process.memory_info().rss
        await put_load(served, _graph(WAIT_SECONDS), connections=AT_ONCE, requests=runs)
        await asyncio.sleep(4 * LOOK_SECONDS)
        each = (process.memory_info().rss - before) / runs
        await _cancel_all(client)
        return each


async def _external_bytes(url: str, runs: int, *, calls: int) -> float:
    """Return the bytes of external runs whose clients do nothing after their calls."""
    limit = {"ADMISSION_MAX_EXTERNAL_RUNS": str(2 * runs)}
    async with (
        models() as provider,
        service(url, settings={**asking(provider), **limit}) as served,
        httpx.AsyncClient(base_url=served, trust_env=False, timeout=60) as http,
        AsyncCaseworkerClient(served, timeout_seconds=60) as client,
    ):
        process, room = service_process(), asyncio.Semaphore(AT_ONCE)

        async def start() -> None:
            async with room:
                run = (await http.post("/runs", json={"kind": "external"})).raise_for_status()
                key = run.json()["access"]["key"]
                for _ in range(calls):
                    body = {"model": "small", "messages": [{"role": "user", "content": key}]}
                    headers = {"Authorization": f"Bearer {key}"}
                    call = http.post(CHAT, json=body, headers=headers)
                    (await call).raise_for_status()

        async def memory_with(more: int) -> int:
            async with asyncio.TaskGroup() as group:
                for _ in range(more):
                    group.create_task(start())
            await asyncio.sleep(4 * LOOK_SECONDS)
            return int(process.memory_info().rss)

        before = await memory_with(AT_ONCE)
        held = (await memory_with(runs) - before) / runs
        await _cancel_all(client)
        return held


async def _cancel_all(client: AsyncCaseworkerClient) -> None:
    async for run in client.iterate_runs(status="running"):
        await client.cancel_run(run.run_id)


def _connections(provider: str) -> Callable[[], int]:
    """Return a function that counts the connections of the service to its provider."""
    process, port = service_process(), urlsplit(provider).port

    def count() -> int:
        found = process.net_connections("tcp")
        return sum(getattr(each.raddr, "port", None) == port for each in found)

    return count


ROW: Final = Row(title="Waiting runs", peers=(), measure=measure)
