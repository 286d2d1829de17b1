"""A thread as a client uses it, and the requests to its models."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import httpx

from caseworker.features.threads.postgres.threads import reply_rows
from caseworker.features.threads.service import Chats
from caseworker.features.threads.thread import Thread, ThreadMessage
from caseworker.platform.postgres.engines import Engines, read_rows
from caseworker.platform.postgres.json_text import dump
from tests.support.fake_provider.client import FakeProvider

AGENT = {"name": "helper", "prompt": {"system": "Help."}}

Json = dict[str, Any]


def agent_step(name: str, **data: Any) -> Json:
    """Return a step with an agent of the same name; ``data`` are other fields of the agent."""
    agent = {"name": name, "prompt": {"system": f"You are {name}."}, **data}
    return {"id": name, "type": "agent", "data": {"agent": agent}}


def chat_start(step_id: str = "chat", **data: Any) -> Json:
    """Return the step through which the chat enters."""
    return {"id": step_id, "type": "chat_start", "data": data}


def flow(source: str, target: str, **handles: str) -> Json:
    """Return a flow edge."""
    return {"source": source, "target": target, "data": {"channel": "flow"}, **handles}


def link(source: str, target: str) -> Json:
    """Return a link edge into the tools of a step."""
    handles = {"source_handle": "tools", "target_handle": "tools"}
    return {"source": source, "target": target, "data": {"channel": "link"}, **handles}


class ThreadClient:
    """One thread of a service, over HTTP."""

    def __init__(self, http: httpx.AsyncClient, thread_id: str) -> None:
        self.http = http
        self.path = f"/threads/{thread_id}"

    @classmethod
    async def begin(cls, http: httpx.AsyncClient, thread_id: str, **body: Any) -> "ThreadClient":
        """Create a thread, with an agent unless the body names another definition."""
        answers = {} if "graph" in body else {"agent": AGENT}
        sent = {"thread_id": thread_id, **answers, **body}
        response = await http.post("/threads", json=sent)
        assert response.status_code == 201, response.text
        return cls(http, thread_id)

    async def post(self, action: str = "", *, key: str | None = None, **body: Any) -> Json:
        """Request an answer and return the turn; ``action`` can be ``{message_id}/retry``."""
        response = await self.send(action, key=key, **body)
        assert response.status_code in (200, 202), response.text
        turn: Json = response.json()
        assert response.headers["location"] == turn["run"]["links"]["self"]
        return turn

    async def send(
        self, action: str = "", *, key: str | None = None, **body: Any
    ) -> httpx.Response:
        """Request an answer, and return the response."""
        headers = {} if key is None else {"Idempotency-Key": key}
        path = f"{self.path}/messages" + (f"/{action}" if action else "")
        return await self.http.post(path, json=body, headers=headers)

    async def answer(self, action: str = "", **body: Any) -> Json:
        """Request an answer, and return the turn with the finished run."""
        turn = await self.post(action, **body)
        return {**turn, "run": await self.ended(turn["run"]["run_id"])}

    async def ended(self, run_id: str, *, seconds: float = 150) -> Json:
        """Return a run once it has ended."""
        until = time.monotonic() + seconds
        while True:
            run: Json = (await self.http.get(f"/runs/{run_id}")).json()
            if run["finished_at"] is not None:
                return run
            assert time.monotonic() < until, f"run {run_id} is still {run['status']}"
            await asyncio.sleep(0.02)

    async def messages(self, **query: Any) -> list[Json]:
        """Return a branch, or with ``tree=true`` all messages."""
        response = await self.http.get(f"{self.path}/messages", params=query)
        assert response.status_code == 200, response.text
        found: list[Json] = response.json()["messages"]
        return found

    async def contents(self, **query: Any) -> list[str | None]:
        """Return the contents of the messages of a branch."""
        return [one["content"] for one in await self.messages(**query)]

    async def events(self, action: str = "", **body: Any) -> tuple[httpx.Headers, list[Json]]:
        """Request an answer as a stream; return its headers and events."""
        path = f"{self.path}/messages" + (f"/{action}" if action else "")
        headers = {"Accept": "text/event-stream"}
        async with self.http.stream("POST", path, json=body, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
        return response.headers, [json.loads(line.removeprefix("data: ")) for line in lines]


async def prompts(provider: FakeProvider, marker: str) -> list[list[str]]:
    """Return the messages after the system prompt for each request with this marker."""
    return [
        [message["content"] for message in (one.body or {})["messages"][1:]]
        for one in await provider.arrivals(marker, bodies=True)
    ]


async def offered(provider: FakeProvider, marker: str) -> list[list[str]]:
    """Return the names of the tools in each request with this marker."""
    return [
        [tool["function"]["name"] for tool in (one.body or {}).get("tools", ())]
        for one in await provider.arrivals(marker, bodies=True)
    ]


async def store_messages(
    engines: Engines, tenant: str, thread_id: str, messages: Sequence[ThreadMessage], limit: int = 9
) -> str:
    """Store messages without a run, as the previous release does; return the outcome."""
    statement = "SELECT caseworker_add_messages(%s, %s, %s::json, %s) AS outcome"
    values = (tenant, thread_id, dump(reply_rows(messages)), limit)
    (row,) = await read_rows(engines.work, statement, values, tenant=tenant)
    outcome: str = row["outcome"]
    return outcome


async def planned(
    chats: Chats, action: str, thread: Thread, at: str | None = None, **more: Any
) -> Any:
    """Plan an answer; ``at`` is the message that the action is about, or else the newest one."""
    _, place = await chats.place(thread.tenant, thread.thread_id, at)
    return await getattr(chats, action)(thread, place, **more)
