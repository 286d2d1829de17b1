"""The fake provider: answers model clients by scripts and serves a control endpoint."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Iterator
from json import dumps
from typing import Any

from tests.support.fake_provider import dialects
from tests.support.fake_provider.arrivals import Arrival, ArrivalLog
from tests.support.fake_provider.connection import Connection, Request
from tests.support.fake_provider.script import TOO_MANY, Playbook, Rate, Script, Step

_DRIBBLE_BYTES = 8


class Server:
    """Answers the paths of the APIs as scripted under ``/control``."""

    def __init__(self, playbook: Playbook | None = None) -> None:
        """Answer by ``playbook``, or only by scripts."""
        self._log = ArrivalLog()
        self._playbook = playbook or Playbook()
        self._released = asyncio.Event()
        self._rate: Rate | None = None
        self._routes: dict[tuple[str, str], Callable[[Request], Awaitable[Any]]] = {
            ("POST", "/control/script"): self._add_script,
            ("POST", "/control/default"): self._set_default,
            ("POST", "/control/rate"): self._set_rate,
            ("POST", "/control/release"): self._release,
            ("POST", "/control/reset"): self._reset,
            ("GET", "/control/arrivals"): self._arrivals,
            ("GET", "/v1/models"): self._models,
            ("POST", "/v1/messages/count_tokens"): self._count_tokens,
        }

    async def listen(self, host: str, port: int) -> tuple[asyncio.Server, int]:
        """Start to serve; port 0 lets the system choose."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Connection(self._handle), host, port, backlog=4096
        )
        return server, server.sockets[0].getsockname()[1]

    async def _handle(self, request: Request, connection: Connection) -> None:
        if request.method == "POST" and request.path in dialects.PATHS:
            await self._complete(request, connection)
        elif route := self._routes.get((request.method, request.path)):
            connection.send_json(200, await route(request))
        else:
            connection.send_json(404, {"error": {"message": "no such route"}})

    async def _complete(self, request: Request, connection: Connection) -> None:
        body = request.json()
        prompt, refused = dialects.read(request.path, body)
        marker = None
        if refused is None:
            step, marker = self._playbook.next_step(prompt.text, prompt.model)
        else:
            step = refused
        if self._rate is not None and not self._rate.allows():
            step = TOO_MANY
        arrival = self._open(request, prompt, marker, body)
        try:
            await self._perform(step, prompt, connection, arrival)
        except asyncio.CancelledError:
            self._log.end(arrival, "client_gone")
            raise

    def _open(
        self, request: Request, prompt: dialects.Prompt, marker: str | None, body: Any
    ) -> Arrival:
        return self._log.open(
            path=request.path,
            model=prompt.model,
            prompt=prompt.text,
            question=prompt.question,
            marker=marker,
            headers=request.headers,
            body=body,
        )

    async def _perform(
        self, step: Step, prompt: dialects.Prompt, connection: Connection, arrival: Arrival
    ) -> None:
        if step.hang:
            await self._released.wait()
        await asyncio.sleep(step.delay_seconds)
        if step.cut == "before":
            connection.abort()
        else:
            await self._send(step, prompt, connection)
            arrival.refused = step.status != 200
            arrival.charged = dialects.charged(prompt, step)
        broken = step.cut or (prompt.stream and step.breaks_off)
        self._log.end(arrival, "cut" if broken else "answered")

    async def _send(self, step: Step, prompt: dialects.Prompt, connection: Connection) -> None:
        streaming = prompt.stream and step.status == 200 and step.raw_body is None
        parts = list(dialects.stream(prompt, step)) if streaming else [_body(step, prompt)]
        connection.send_head(step.status, _headers(step, parts, streaming=streaming))
        if step.cut == "middle":
            data = b"".join(parts)
            connection.send_data(data[: len(data) // 2])
            connection.abort()
            return
        if streaming and step.dribble_seconds is None:
            await self._stream(parts, step, connection)
            return
        for part in parts if step.dribble_seconds is None else _crumbs(parts):
            connection.send_data(part)
            if step.dribble_seconds is not None:
                await asyncio.sleep(step.dribble_seconds)
        connection.send_end()

    async def _stream(self, events: list[bytes], step: Step, connection: Connection) -> None:
        for number, event in enumerate(events):
            if number and step.chunk_seconds:
                await asyncio.sleep(step.chunk_seconds)
            if number == step.after_events:
                match step.then:
                    case "hold":
                        await self._released.wait()
                    case "cut":
                        connection.abort()
                        return
                    case "fail":
                        connection.send_data(dialects.STREAM_ERROR)
                        break
                    case "end":
                        break
            connection.send_data(event)
        connection.send_end()

    async def _add_script(self, request: Request) -> dict[str, Any]:
        document = request.json()
        steps = [Step(**step) for step in document.pop("steps")]
        self._playbook.add(Script(steps=steps, **document))
        return {"steps": len(steps)}

    async def _set_default(self, request: Request) -> dict[str, Any]:
        self._playbook.default = Step(**request.json())
        return {}

    async def _set_rate(self, request: Request) -> dict[str, Any]:
        self._rate = Rate(**request.json())
        return {}

    async def _release(self, _request: Request) -> dict[str, Any]:
        self._released.set()
        self._released = asyncio.Event()
        return {}

    async def _reset(self, request: Request) -> dict[str, Any]:
        self._log.clear()
        self._playbook = Playbook()
        self._rate = None
        return await self._release(request)

    async def _arrivals(self, request: Request) -> dict[str, Any]:
        query = request.query
        containing, ended = query.get("containing", ""), query.get("ended") == "true"
        at_least = int(query.get("at_least", 0))
        reached = await self._log.wait_until(
            lambda: self._log.count(containing, ended=ended) >= at_least,
            timeout_seconds=float(query.get("timeout_seconds", 0)),
        )
        if query.get("counted") == "true":
            return {"reached": reached, "count": self._log.count(containing, ended=ended)}
        found = self._log.find(containing, bodies=query.get("bodies") == "true")
        return {"reached": reached, "arrivals": found}

    async def _count_tokens(self, request: Request) -> dict[str, Any]:
        body = request.json()
        prompt, _ = dialects.read(dialects.MESSAGES, body)
        step, marker = self._playbook.next_step(prompt.text, prompt.model)
        if step.hang:
            self._open(request, prompt, marker, body)
            await self._released.wait()
        return {"input_tokens": dialects.counted(prompt)}

    async def _models(self, _request: Request) -> dict[str, Any]:
        return {"object": "list", "data": []}


def _body(step: Step, prompt: dialects.Prompt) -> bytes:
    if step.raw_body is not None:
        body = step.raw_body.encode()
    else:
        body = dumps(dialects.reply(prompt, step)).encode()
    return gzip.compress(body) if step.gzip else body


def _headers(step: Step, parts: list[bytes], *, streaming: bool) -> list[tuple[str, str]]:
    given = {name.lower(): value for name, value in step.headers.items()}
    if streaming:
        return list(({"content-type": "text/event-stream"} | given).items())
    length = {"content-length": str(sum(map(len, parts)))}
    encoding = {"content-encoding": "gzip"} if step.gzip else {}
    return list(({"content-type": "application/json"} | length | encoding | given).items())


def _crumbs(parts: list[bytes]) -> Iterator[bytes]:
    data = b"".join(parts)
    for start in range(0, len(data), _DRIBBLE_BYTES):
        yield data[start : start + _DRIBBLE_BYTES]
