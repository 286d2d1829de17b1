"""A model provider that counts its own output, also after a close: the judge of real costs.

``python -m bench.sides.counting_server --port 0`` prints ``{"url": ...}`` and serves. ``GET
/counted?marker=…`` returns the calls whose prompts contain the marker, and their cost, once all of
them have ended.
"""

import argparse
import asyncio
import json
import sys
from contextlib import aclosing
from decimal import Decimal
from typing import Final

from tests.property.judge.provider import Behaviour, CountingProvider
from tests.property.judge.truth import CHAT, RESPONSES
from tests.support.fake_provider.connection import Connection, Request

OUTPUT_TOKENS: Final = {"cancelled": 2_000}
"""Output tokens of each choice, by the kind of a race; 100 for other kinds."""
_PATHS: Final = (f"/v1{CHAT}", f"/v1{RESPONSES}")


def _behaviour(marker: str, _: int) -> Behaviour:
    kind = marker.strip("<>").partition("/")[2]
    return Behaviour(latency_seconds=0, output_tokens=OUTPUT_TOKENS.get(kind, 100))


class Server:
    """Answers model calls in real time."""

    def __init__(self) -> None:
        self._provider = CountingProvider(_behaviour)
        self._open = 0
        self._ended = asyncio.Event()

    async def handle(self, request: Request, connection: Connection) -> None:
        """Answer one request."""
        if request.method == "POST" and request.path in _PATHS:
            self._open += 1
            try:
                await self._answer(request, connection)
            finally:
                self._open -= 1
                self._ended.set()
        else:
            connection.send_json(200, await self._counted(request.query.get("marker", "")))

    async def _answer(self, request: Request, connection: Connection) -> None:
        content = json.dumps(request.json()).encode()
        reply = await self._provider.post(request.path, {}, content, lambda: None)
        connection.send_head(reply.status, list(reply.headers.items()))
        async with aclosing(reply.parts()) as parts:
            async for part in parts:
                connection.send_data(part)
        connection.send_end()

    async def _counted(self, marker: str) -> dict[str, object]:
        while self._open:
            self._ended.clear()
            await self._ended.wait()
        made = [each for each in self._provider.generations if each.marker == marker]
        cost = sum((each.cost_usd for each in made), Decimal(0))
        return {"calls": len(made), "cost_usd": float(cost)}


async def _serve(port: int) -> None:
    server = Server()
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(
        lambda: Connection(server.handle), "127.0.0.1", port, backlog=4096
    )
    async with listening:
        bound = listening.sockets[0].getsockname()[1]
        print(json.dumps({"url": f"http://127.0.0.1:{bound}"}), flush=True)
        await loop.run_in_executor(None, sys.stdin.read)


def main() -> None:
    """Serve until stdin closes."""
    parser = argparse.ArgumentParser(description="A model provider that counts what it generates.")
    parser.add_argument("--port", type=int, default=0)
    asyncio.run(_serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
