"""Requests whose answers are read as they arrive, and that can be aborted midway."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from caseworker.gateway.dialects.offered import DIALECTS


class StreamedCall:
    """One GET of an application, without a socket."""

    def __init__(self, app: FastAPI, path: str, headers: Mapping[str, str]) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.whole = False
        """Whether the application has marked the response as complete."""
        self._news = asyncio.Event()
        self._gone = asyncio.Event()
        self._begun = False
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [
                (name.lower().encode(), text.encode())
                for name, text in {"Host": "localhost", **headers}.items()
            ],
            "client": ("127.0.0.1", 50000),
            "server": ("caseworker", 80),
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    def events(self) -> list[dict[str, Any]]:
        """Return the data of the events that have arrived completely."""
        blocks = [parsed(block) for block in self.body.decode().split("\n\n")[:-1]]
        return [json.loads(block["data"]) for block in blocks if "data" in block]

    async def seen(self, count: int) -> list[dict[str, Any]]:
        """Wait for a number of events and return all that have arrived."""
        async with asyncio.timeout(150):
            while len(self.events()) < count:
                self._news.clear()
                await self._news.wait()
        return self.events()

    async def answered(self) -> int:
        """Wait for the start of the answer and return its status."""
        async with asyncio.timeout(150):
            while self.status is None:
                self._news.clear()
                await self._news.wait()
        return self.status

    async def ended(self) -> list[dict[str, Any]]:
        """Wait for the end of the answer and return all events."""
        async with asyncio.timeout(150):
            await self.task
        return self.events()

    async def hang_up(self) -> None:
        """Disconnect, and wait until the application has noticed."""
        self._gone.set()
        async with asyncio.timeout(150):
            await self.task

    async def _receive(self) -> dict[str, Any]:
        if not self._begun:
            self._begun = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): text.decode() for name, text in message["headers"]}
        else:
            self.body += message.get("body", b"")
            self.whole = not message.get("more_body", False)
        self._news.set()


def parsed(block: str) -> dict[str, str]:
    """Return the fields of one block of a stream."""
    fields = (line.partition(": ") for line in block.splitlines() if not line.startswith(":"))
    return {name: text for name, _, text in fields}


@asynccontextmanager
async def streamed(
    app: FastAPI, path: str, headers: Mapping[str, str] | None = None
) -> AsyncIterator[StreamedCall]:
    """Make a call and abort it at the end of the block if it has not ended."""
    call = StreamedCall(app, path, headers or {})
    try:
        yield call
    finally:
        await call.hang_up()


NOT_OFFERED = {f"/gateway/{each.base.split('/')[1]}{{path:path}}" for each in DIALECTS}
"""Routes that answer 404 without a credential, because these paths do not exist."""

Route = tuple[str, str]


def routes_of(app: FastAPI, run_id: str) -> Iterator[Route]:
    """Yield method and path of every route; names of paths are filled in."""
    names = {"run_id": run_id, "tenant": "one", "version": "1", "key_id": "0" * 16}
    for route in app.routes:
        path: str = route.path  # type: ignore[attr-defined]
        if path in NOT_OFFERED:
            continue
        for name in getattr(route, "param_convertors", {}):
            found = names.get(name, "x")
            path = path.replace(f"{{{name}:path}}", found).replace(f"{{{name}}}", found)
        for method in getattr(route, "methods", None) or ("GET", "POST", "PUT", "DELETE"):
            yield method, path
