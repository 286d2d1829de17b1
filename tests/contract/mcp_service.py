"""The application for clients of MCP, in process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import httpx2
from fastapi import FastAPI
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult

from caseworker.platform.caller import OPERATOR, KeyScope
from caseworker.runs.run import RunKey, RunStatus
from tests.support.api import Api, client_of
from tests.support.stores import end_of, eventually

QUESTION = "What is 17% of 2340?"
NOW = {"input": QUESTION, "wait_seconds": 0}


@dataclass
class McpService:
    """The application and its stores for assertions."""

    app: FastAPI
    api: Api

    async def key(self, tenant: str = "a", *scopes: KeyScope) -> dict[str, str]:
        """Return the header of a new key, with the scope run by default."""
        allowed = frozenset(scopes or (KeyScope.RUN,))
        issued = await self.api.keys.create(OPERATOR, name="robot", scopes=allowed, tenant=tenant)
        return {"Authorization": f"Bearer {issued.secret}"}

    @asynccontextmanager
    async def http(self, headers: dict[str, str]) -> AsyncIterator[httpx.AsyncClient]:
        """Yield a client of the API with a key."""
        async with client_of(self.app) as client:
            client.headers.update(headers)
            yield client

    @asynccontextmanager
    async def mcp(
        self, headers: dict[str, str], mode: str = "auto", **options: Any
    ) -> AsyncIterator[Client]:
        """Yield the SDK's client with a key; ``options`` are further ones of the client."""
        wire = httpx2.ASGITransport(self.app)
        async with (
            httpx2.AsyncClient(transport=wire, headers=headers) as http,
            Client(
                streamable_http_client("http://localhost/mcp", http_client=http),
                mode=mode,
                **options,
            ) as client,
        ):
            yield client

    async def made(self, headers: dict[str, str]) -> list[dict[str, Any]]:
        """Return the runs of the tenant of a key."""
        async with self.http(headers) as http:
            runs: list[dict[str, Any]] = (await http.get("/runs")).json()["runs"]
        return runs

    async def first(self, headers: dict[str, str]) -> dict[str, Any]:
        """Wait until the tenant of this key has a run, and return that run."""

        async def any_made() -> bool:
            return bool(await self.made(headers))

        await eventually(any_made)
        return (await self.made(headers))[0]

    async def end(self, run_id: str, status: RunStatus) -> None:
        """Claim a queued run of tenant ``a`` and finish it, as a worker does."""
        run = await self.api.store.claim(RunKey("a", run_id), "worker")
        assert run is not None
        await self.api.journal.finish(end_of(run, status))


def text_of(result: CallToolResult) -> str:
    """Return the only text of a result; the other blocks are links."""
    [block] = [each for each in result.content if each.type != "resource_link"]
    assert block.type == "text"
    return block.text
