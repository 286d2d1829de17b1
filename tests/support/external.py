"""External runs as their agents see them: real clients of the gateway.

The clients are the packages `openai` and `anthropic`, or `httpx` where the bytes count.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

NEW, OLD = 202, 200

REFUSED = 400

OVERLOADED = 503
MAX_GATEWAY_KB = 32
"""Limit on bodies in the service of ``tests/acceptance/external/conftest.py``."""


@dataclass(frozen=True, kw_only=True)
class Api:
    """An API that the gateway offers."""

    name: str
    path: str
    base_url: str
    """Field of ``access``."""
    model: str
    """Configured name of a model that is called with it."""
    client: Callable[..., Any]
    """Client library."""
    transport: Callable[..., Any]
    """HTTP client that the library uses."""
    refused: type[Exception]
    """Exception of the library for the status 400."""
    error: type[Exception]
    """Exception of the library for an error event in a stream."""
    end: bytes
    """Text at the end of a complete stream."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Fields that every body needs."""

    def __repr__(self) -> str:
        return self.name

    def body(self, text: str, **fields: Any) -> dict[str, Any]:
        """Return the body of a request."""
        messages = [{"role": "user", "content": text}]
        return {"model": self.model, "messages": messages, **self.more, **fields}

    def error_of(self, reply: Any) -> dict[str, Any]:
        """Return the error of a refusal, whose document has the form of the API."""
        document = reply.json()
        if self is OPENAI:
            assert set(document["error"]) == {"message", "type", "param", "code"}, document
        else:
            assert document["type"] == "error", document
            assert set(document["error"]) == {"message", "type", "code"}, document
        assert isinstance(document["error"]["message"], str)
        return dict(document["error"])

    async def create(self, client: Any, text: str, **fields: Any) -> Any:
        """Make a call with the client library."""
        made = client.chat.completions if self is OPENAI else client.messages
        return await made.create(**self.body(text, **fields))

    def text_of(self, whole: Any) -> str:
        """Return the text of a reply of the client library."""
        text = whole.choices[0].message.content if self is OPENAI else whole.content[0].text
        return str(text)

    def piece_of(self, part: Any) -> str:
        """Return the text in an event of a stream of the client library."""
        if self is OPENAI:
            return part.choices[0].delta.content or ""
        return part.delta.text if part.type == "content_block_delta" else ""


OPENAI = Api(
    name="openai",
    path="/gateway/openai/v1/chat/completions",
    base_url="openai_base_url",
    model="small",
    client=openai.AsyncOpenAI,
    transport=httpx.AsyncClient,
    refused=openai.BadRequestError,
    error=openai.APIError,
    end=b"data: [DONE]",
)

ANTHROPIC = Api(
    name="anthropic",
    path="/gateway/anthropic/v1/messages",
    base_url="anthropic_base_url",
    model="claude",
    client=anthropic.AsyncAnthropic,
    transport=httpx2.AsyncClient,
    refused=anthropic.BadRequestError,
    error=anthropic.APIError,
    end=b"message_stop",
    more={"max_tokens": 1000},
)

APIS = {api.name: api for api in (OPENAI, ANTHROPIC)}

both = pytest.mark.parametrize("api", APIS.values(), ids=APIS)


@dataclass(frozen=True, kw_only=True)
class Agent:
    """An external run, as the agent that works in it sees it."""

    http: httpx.AsyncClient
    run: Mapping[str, Any]
    api: Api = OPENAI

    @property
    def run_id(self) -> str:
        """ID of the run."""
        return str(self.run["run_id"])

    @property
    def key(self) -> str:
        """Key for the gateway."""
        return str(self.run["access"]["key"])

    async def ask(
        self, text: str = "Hello", *, headers: Mapping[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        """Send one request to the gateway, without the client library."""
        headers = {"Authorization": f"Bearer {self.key}", **(headers or {})}
        body = self.api.body(text, **fields)
        return await self.http.post(self.api.path, json=body, headers=headers)

    async def ask_until_owned(self, text: str) -> httpx.Response:
        """Send one request until a process owns the run; on a slow machine this takes longer."""
        while (reply := await self.ask(text)).status_code == OVERLOADED:
            assert reply.headers["retry-after"] == "1"
        return reply

    @asynccontextmanager
    async def streamed(
        self, text: str, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Open a stream without the client library."""
        headers = {"Authorization": f"Bearer {self.key}", **(headers or {})}
        body = self.api.body(text, stream=True)
        async with self.http.stream("POST", self.api.path, json=body, headers=headers) as reply:
            yield reply

    @asynccontextmanager
    async def library(self) -> AsyncIterator[tuple[Any, Counter[str]]]:
        """Open the client library with its defaults; count the responses by their status."""
        sent: Counter[str] = Counter()

        async def count(response: Any) -> None:
            sent[str(response.status_code)] += 1

        access = self.run["access"]
        async with (
            self.api.transport(trust_env=False, event_hooks={"response": [count]}) as transport,
            self.api.client(
                base_url=access[self.api.base_url], api_key=access["key"], http_client=transport
            ) as client,
        ):
            yield client, sent

    def require_final(self, reply: Any, code: str) -> None:
        """Require a refusal that no client repeats."""
        assert reply.status_code == REFUSED, reply.text
        assert reply.headers["x-should-retry"] == "false"
        assert self.api.error_of(reply)["code"] == code

    async def get(self, suffix: str = "") -> httpx.Response:
        """Get the run, or a part of it."""
        accept = {"Accept": "application/json"}
        return await self.http.get(f"/runs/{self.run_id}{suffix}", headers=accept)

    async def finish(self, body: Mapping[str, Any]) -> httpx.Response:
        """Finish the run."""
        return await self.http.post(f"/runs/{self.run_id}/finish", json=body)

    async def next_attempt(self) -> "Agent":
        """Open the next attempt."""
        body = {"kind": "external", "run_id": self.run_id}
        posted = await self.http.post("/runs", json=body)
        assert posted.status_code == OLD, posted.text
        return replace(self, run=posted.json())

    async def events(self, kind: str) -> list[Mapping[str, Any]]:
        """Return the events of a type."""
        page = (await self.get("/events")).json()
        return [each for each in page["events"] if each["type"] == kind]

    async def ended(self) -> Mapping[str, Any]:
        """Return the run once it has ended; the end of its event stream is the signal."""
        accept = {"Accept": "text/event-stream"}
        async with self.http.stream(
            "GET", f"/runs/{self.run_id}/events", headers=accept, timeout=150
        ) as events:
            async for _ in events.aiter_lines():
                pass
        run: Mapping[str, Any] = (await self.get()).json()
        assert run["finished_at"] is not None, run
        return run


async def start(
    http: httpx.AsyncClient,
    *,
    api: Api = OPENAI,
    headers: Mapping[str, str] | None = None,
    **fields: Any,
) -> Agent:
    """Create an external run."""
    posted = await http.post("/runs", json={"kind": "external", **fields}, headers=headers)
    assert posted.status_code == NEW, posted.text
    return Agent(http=http, run=posted.json(), api=api)


QUICK_RECOVERY = {"WORKER_HEARTBEAT_SECONDS": "0.5", "WORKER_STALE_AFTER_SECONDS": "3"}


async def next_attempt(http: httpx.AsyncClient, agent: Agent, **fields: Any) -> Agent:
    """Open the next attempt of a run."""
    body = {"kind": "external", "run_id": agent.run_id, **fields}
    return Agent(http=http, run=(await http.post("/runs", json=body)).raise_for_status().json())
