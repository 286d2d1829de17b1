"""The runs that a filled database consists of: a service makes each of them once."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx

AGENT: Final = "clerk"
GRAPH: Final = "sums"
TENANT: Final = "default"
"""The tenant of the runs that are copied."""

_STEPS: Final = [
    {"id": f"s{n}", "type": "tool", "data": {"tool": "calculator", "args": {"expression": "1 + 1"}}}
    for n in range(5)
]
_FLOW: Final = [
    {"source": f"s{n}", "target": f"s{n + 1}", "data": {"channel": "flow"}} for n in range(4)
]
_BROKEN: Final = {
    "id": "s5",
    "type": "tool",
    "data": {"tool": "calculator", "args": {"expression": "1 / 0"}},
}
_APPROVAL: Final = {
    "id": "ask",
    "type": "approval",
    "data": {"message": "Pay?", "timeout_seconds": 30 * 86_400},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """A run, or the runs of one thread, and their share in a filled database."""

    name: str
    share: float
    """Share of all runs."""
    run_ids: Sequence[str]
    thread_id: str | None = None


SHARES: Final[Mapping[str, float]] = {
    "agent": 0.55,
    "graph": 0.12,
    "case": 0.05,
    "chat": 0.15,
    "external": 0.06,
    "failed": 0.03,
    "halted": 0.005,
    "cancelled": 0.02,
    "waiting": 0.01,
    "queued": 0.005,
}


def registrations() -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Return the path and the body of the requests that register the agent and the graph."""
    agent = {
        "name": AGENT,
        "prompt": {"system": "Compute with the tool."},
        "tools": ["calculator"],
        "model": {"name": "turns-3"},
    }
    graph = {"steps": _STEPS, "edges": _FLOW}
    return [("/agents", {"agent": agent}), ("/graphs", {"name": GRAPH, "graph": graph})]


async def make_originals(address: str, key: str) -> Sequence[Original]:
    """Register an agent and a graph, and execute one run of each kind."""
    headers = {"authorization": f"Bearer {key}", "prefer": "wait=60"}
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=90) as http:
        for path, body in registrations():
            (await http.post(path, json=body)).raise_for_status()
        bodies = _bodies()
        made = {name: await _run(http, body) for name, body in bodies.items()}
        made["external"] = await _external(http, address)
        await http.delete(f"/runs/{made['cancelled']}")
        singles = [
            Original(name=name, share=SHARES[name], run_ids=[run_id])
            for name, run_id in made.items()
        ]
        await http.put("/schedules/nightly", json=schedule(bodies["graph"]))
        return [*singles, await _chat(http)]


def _bodies() -> dict[str, dict[str, Any]]:
    late = (datetime.now(UTC) + timedelta(days=60)).isoformat()
    agent = {"kind": "agent", "agent": {"name": AGENT}, "input": "How much is 1 + 1?"}
    graph = {"kind": "graph", "graph": {"name": GRAPH}, "input": "1"}
    failing = {"steps": [*_STEPS[:4], _BROKEN], "edges": _FLOW[:3]}
    to_person = {"source": "s3", "target": "ask", "data": {"channel": "flow"}}
    asking = {"steps": [*_STEPS[:4], _APPROVAL], "edges": [*_FLOW[:3], to_person]}
    return {
        "agent": {**agent, "metadata": {"customer": "c-1"}},
        "graph": graph,
        "case": {"input": "What is 6 * 7?"},
        "failed": {"kind": "graph", "graph": failing, "input": "1"},
        "halted": {**agent, "budget": {"max_llm_calls": 1}},
        "waiting": {"kind": "graph", "graph": asking, "input": "1"},
        "queued": {**agent, "start_at": late},
        "cancelled": {**graph, "start_at": late},
    }


def schedule(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body of a schedule that fires once a year."""
    return {"cron": "0 3 1 1 *", "run": {**body}}


async def _run(http: httpx.AsyncClient, body: Mapping[str, Any]) -> str:
    settled = "start_at" in body or "ask" in str(body)
    prefer = {"prefer": "wait=1"} if settled else {}
    posted = (await http.post("/runs", json=body, headers=prefer)).raise_for_status().json()
    while "ask" in str(body) and posted["status"] != "waiting":
        await asyncio.sleep(0.05)
        posted = (await http.get(f"/runs/{posted['run_id']}")).json()
    return str(posted["run_id"])


async def _external(http: httpx.AsyncClient, address: str) -> str:
    body = {"kind": "external", "budget": {"max_seconds": 3600}}
    posted = (await http.post("/runs", json=body, headers={"prefer": ""})).raise_for_status().json()
    key = {"authorization": f"Bearer {posted['access']['key']}"}
    async with httpx.AsyncClient(base_url=address, headers=key, timeout=60) as agent:
        for number in range(6):
            message = {"role": "user", "content": f"How much is {number} + 1?"}
            call = {"model": "small", "messages": [message]}
            path = "/gateway/openai/v1/chat/completions"
            (await agent.post(path, json=call)).raise_for_status()
        path = f"/runs/{posted['run_id']}/finish"
        (await agent.post(path, json={"output": "done"})).raise_for_status()
    return str(posted["run_id"])


async def _chat(http: httpx.AsyncClient) -> Original:
    thread = {"thread_id": "chat", "agent": {"name": AGENT}}
    (await http.post("/threads", json=thread)).raise_for_status()
    for turn in range(3):
        body = {"content": f"How much is {turn} + 1?"}
        (await http.post("/threads/chat/messages", json=body)).raise_for_status()
    listed = (await http.get("/runs?thread_id=chat")).json()
    ids = [each["run_id"] for each in listed["runs"]]
    return Original(name="chat", share=SHARES["chat"], run_ids=ids, thread_id="chat")
