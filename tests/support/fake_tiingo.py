"""A price provider on loopback with Tiingo's end-of-day API, scripted by tests."""

import asyncio
import csv
import gzip
import io
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Self

import caseworker_cases.stocks
from tests.support.fake_provider.connection import Connection, Request

DATA = Path(caseworker_cases.stocks.__path__[0], "data", "stocks.csv.gz")
COLUMNS = {
    "date": "Date",
    "close": "Close",
    "high": "High",
    "low": "Low",
    "open": "Open",
    "volume": "Volume",
    "adjClose": "Adj Close",
}
"""Tiingo's columns in its order, with their names in the packaged file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to one request, instead of prices."""

    status: int = 200
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False
    """Disconnect in the middle of the body."""
    hang: bool = False
    """Never answer."""


class FakeTiingo:
    """``async with FakeTiingo() as tiingo``; it serves the packaged prices in Tiingo's format."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.was_asked = asyncio.Event()
        self.replies: deque[Reply] = deque()
        """Answers to the next requests; later requests get prices."""
        self.url = ""
        self._server: asyncio.Server | None = None
        self._connections: list[Connection] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connected, "127.0.0.1", 0, backlog=64)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.abort()
        await asyncio.sleep(0)  # the transports close their sockets

    def _connected(self) -> Connection:
        self._connections.append(Connection(self._answer))
        return self._connections[-1]

    async def _answer(self, request: Request, connection: Connection) -> None:
        self.asked.append(request)
        self.was_asked.set()
        reply = self.replies.popleft() if self.replies else _prices(request)
        if reply.hang:
            await asyncio.Event().wait()
        body = reply.body.encode()
        length = ("content-length", str(len(body)))
        connection.send_head(reply.status, [length, *reply.headers.items()])
        if reply.cut:
            connection.send_data(body[: len(body) // 2])
            connection.abort()
            return
        connection.send_data(body)
        connection.send_end()


def _prices(request: Request) -> Reply:
    symbol = request.path.removeprefix("/tiingo/daily/").removesuffix("/prices")
    text = prices_as_csv(symbol)
    if text is None:
        return Reply(status=404, body='{"detail":"Error: Ticker not found"}')
    return Reply(body=text, headers={"content-type": "text/csv"})


@cache
def prices_as_csv(symbol: str) -> str | None:
    """Return the packaged prices of a symbol in Tiingo's format; None if there are no prices."""
    with gzip.open(DATA, "rt", encoding="ascii") as file:
        rows = [row for row in csv.DictReader(file) if row["Ticker"] == symbol]
    written = io.StringIO()
    lines = csv.writer(written)
    lines.writerow([*COLUMNS, "divCash", "splitFactor"])
    lines.writerows([*(row[name] for name in COLUMNS.values()), "0.0", "1.0"] for row in rows)
    return written.getvalue() if rows else None
