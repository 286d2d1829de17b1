"""People who decide about the approvals of runs, over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.support.service import ServiceProcess

Settings = dict[str, str]


def note(step_id: str, text: str) -> dict[str, Any]:
    return {"id": step_id, "type": "tool", "data": {"tool": "note", "args": {"text": text}}}


def graph_run(run_id: str, *steps: dict[str, Any], **members: Any) -> dict[str, Any]:
    edges = members.pop("edges", [])
    graph = {"steps": list(steps), "edges": edges, "max_parallel": 4}
    return {"kind": "graph", "run_id": run_id, "graph": graph, **members}


class People:
    """The callers of one process."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.get, self.post, self.delete, self.put = http.get, http.post, http.delete, http.put

    async def post_run(self, body: dict[str, Any]) -> None:
        posted = await self.post("/runs", json=body)
        assert posted.status_code == 202, posted.text

    async def get_run(self, run_id: str) -> dict[str, Any]:
        run: dict[str, Any] = (await self.get(f"/runs/{run_id}")).json()
        return run

    async def nodes(self, run_id: str) -> list[dict[str, Any]]:
        trace = (await self.get(f"/runs/{run_id}/trace")).json()
        return list(trace["snapshot"]["nodes"].values())


@asynccontextmanager
async def people(service: ServiceProcess) -> AsyncIterator[People]:
    async with service.http() as http:
        yield People(http)


@asynccontextmanager
async def serving(
    database_url: str, settings: Settings, **more: str
) -> AsyncIterator[tuple[ServiceProcess, People]]:
    """Run a service, with a client of it; ``more`` are further settings."""
    async with (
        ServiceProcess(database_url, settings=settings | more) as service,
        people(service) as client,
    ):
        yield service, client


async def finished(client: People, run_id: str) -> dict[str, Any]:
    async with asyncio.timeout(150):
        while True:
            run = await client.get_run(run_id)
            if run["finished_at"] is not None:
                return run
            await asyncio.sleep(0.02)


async def open_approvals(client: People, run_id: str, *, count: int = 1) -> list[dict[str, Any]]:
    """Return the open approvals of a run once it waits for ``count`` of them."""
    async with asyncio.timeout(150):
        while True:
            run = (await client.get(f"/runs/{run_id}")).json()
            approvals = (await client.get(f"/runs/{run_id}/approvals")).json()["approvals"]
            pending = [each for each in approvals if each["open"]]
            if run["status"] == "waiting" and len(pending) == count:
                return pending
            assert run["finished_at"] is None, run
            await asyncio.sleep(0.02)


async def decide(
    client: People, approval: dict[str, Any], decision: str = "approve", **members: Any
) -> httpx.Response:
    path = f"/runs/{approval['run_id']}/approvals/{approval['approval_id']}"
    answer: httpx.Response = await client.post(path, json={"decision": decision, **members})
    return answer
