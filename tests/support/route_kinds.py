"""One request of each kind that the service answers, to see how all of them react to a fault."""

import asyncio
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

GRAPH: Final = {
    "steps": [
        {"id": "s", "type": "tool", "data": {"tool": "calculator", "args": {"expression": "6*7"}}}
    ],
    "edges": [],
}
_RUN: Final = {"kind": "graph", "graph": GRAPH}
_CHAT: Final = {"model": "small", "messages": [{"role": "user", "content": "Hello"}]}
_LIST_TOOLS: Final = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
_MCP: Final = {"Accept": "application/json, text/event-stream"}

WITHOUT_DATABASE: Final = frozenset({"GET /healthz", "GET /openapi.json", "GET /ui"})
"""Kinds that answer 200 without the database."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The status of a request, the seconds until its response was complete, and its body.

    Of a stream of events only the start counts, because the stream lasts as long as its run.
    """

    status: int
    seconds: float
    body: str


@dataclass(frozen=True, slots=True)
class RouteKinds:
    """The requests of all kinds, with the run and the key that some of them need."""

    url: str
    run_id: str
    """An ended run."""
    run_key: str
    """The key of an open external run."""

    @classmethod
    async def of(cls, url: str) -> "RouteKinds":
        """Create the runs that the requests need."""
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
            run_id = f"ended-{uuid.uuid4().hex[:8]}"
            wait = {"Prefer": "wait=30"}
            ended = await client.post("/runs", json={**_RUN, "run_id": run_id}, headers=wait)
            assert ended.json()["status"] == "completed", ended.text
            opened = await client.post("/runs", json={"kind": "external"})
            assert opened.status_code == 202, opened.text
            return cls(url, run_id, opened.json()["access"]["key"])

    def requests(self) -> Mapping[str, tuple[Any, Mapping[str, str]]]:
        """Return body and headers of each kind, by method and path."""
        name = uuid.uuid4().hex[:10]
        schedule = {"cron": "0 0 1 1 *", "timezone": "UTC", "run": _RUN}
        thread = {"graph": {"steps": [{"id": "c", "type": "chat_start", "data": {}}], "edges": []}}
        bearer = {"Authorization": f"Bearer {self.run_key}"}
        return {
            "GET /healthz": (None, {}),
            "GET /readyz": (None, {}),
            "GET /metrics": (None, {}),
            "GET /openapi.json": (None, {}),
            "GET /ui": (None, {}),
            "GET /models": (None, {}),
            "POST /runs": (_RUN, {}),
            "POST /runs, Prefer: wait=5": (_RUN, {"Prefer": "wait=5"}),
            "POST /runs, event stream": (_RUN, {"Accept": "text/event-stream"}),
            "GET /runs": (None, {}),
            f"GET /runs/{self.run_id}": (None, {}),
            f"GET /runs/{self.run_id}/trace": (None, {}),
            f"GET /runs/{self.run_id}/events": (None, {"Accept": "application/json"}),
            f"GET /runs/{self.run_id}/events, event stream": (
                None,
                {"Accept": "text/event-stream"},
            ),
            f"DELETE /runs/{name}": (None, {}),
            "GET /agents": (None, {}),
            f"PUT /schedules/{name}": (schedule, {}),
            "POST /threads": ({"thread_id": name, **thread}, {}),
            "POST /webhooks/secret": ({}, {}),
            "GET /spend?group_by=tenant": (None, {}),
            "POST /mcp": (_LIST_TOOLS, _MCP),
            "POST /gateway/openai/v1/chat/completions": (_CHAT, bearer),
            "GET /gateway/openai/v1/models": (None, bearer),
        }

    async def replies(self, *, timeout_seconds: float) -> dict[str, Reply]:
        """Send one request of each kind at the same time; return the replies by kind.

        A request without a response in time has the status 0.
        """
        async with httpx.AsyncClient(base_url=self.url, trust_env=False) as client:
            sent = {}
            async with asyncio.TaskGroup() as group:
                for kind, (body, headers) in self.requests().items():
                    method, path = kind.partition(",")[0].split(" ")
                    request = client.build_request(
                        method, path, json=body, headers=headers, timeout=timeout_seconds
                    )
                    sent[_general(kind)] = group.create_task(_reply(client, request))
            return {kind: task.result() for kind, task in sent.items()}


async def _reply(client: httpx.AsyncClient, request: httpx.Request) -> Reply:
    began = time.monotonic()
    try:
        response = await client.send(request, stream=True)
        status, body = response.status_code, ""
        if request.headers["accept"] != "text/event-stream" or status >= 300:
            body = (await response.aread()).decode()
        await response.aclose()
    except httpx.TimeoutException as error:
        status, body = 0, repr(error)
    return Reply(status, time.monotonic() - began, body)


def _general(kind: str) -> str:
    """Return a kind without the name of its resource."""
    words = kind.split("/")
    if len(words) > 2 and words[1] in ("runs", "schedules"):
        rest = words[2].partition(",")
        words[2] = "{id}" + rest[1] + rest[2]
    return "/".join(words)


def table(columns: Mapping[str, Mapping[str, Reply]]) -> str:
    """Return a Markdown table of the status and the seconds of each kind, by state."""
    lines = [f"| request | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for kind in next(iter(columns.values())):
        cells = (f"{each[kind].status}, {each[kind].seconds:.1f} s" for each in columns.values())
        lines.append(f"| `{kind}` | {' | '.join(cells)} |")
    return "\n".join(lines)
