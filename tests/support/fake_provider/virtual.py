"""The fake provider without sockets: its scripts and protocols on the time of the test's own loop.

A client of the real SDKs talks to it through ``transport()``; on a virtual clock, waits that would
take seconds are exact and take none.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from app.adapters.providers.pydantic_ai.transport import note_sent
from tests.support.fake_provider import dialects
from tests.support.fake_provider.script import Playbook, Script, Step


class _Wire(httpx2.AsyncBaseTransport):
    """Hands each request to whoever answers it."""

    def __init__(
        self, answer: Callable[[httpx2.Request], Coroutine[Any, Any, httpx2.Response]]
    ) -> None:
        self._answer = answer

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the answer."""
        return await self._answer(request)


@dataclass(frozen=True, slots=True)
class VirtualArrival:
    """One request, when it came by the loop's clock, and its body to the byte."""

    at: float
    model: str
    content: bytes

    @property
    def body(self) -> dict[str, Any]:
        """The body as JSON."""
        document: dict[str, Any] = json.loads(self.content)
        return document


class VirtualProvider:
    """Answers prompts as scripted; a model without steps of its own gets the default answer."""

    def __init__(self) -> None:
        self.playbook = Playbook()
        self.arrivals: list[VirtualArrival] = []

    def script(self, model: str, *steps: Step, repeat_last: bool = False) -> None:
        """Treat the requests for a model with these steps, in order."""
        script = Script(marker="", steps=list(steps), model=model, repeat_last=repeat_last)
        self.playbook.add(script)

    def transport(self) -> httpx2.AsyncBaseTransport:
        """Return what brings every request here."""
        return _Wire(self._answer)

    def times(self, model: str | None = None) -> list[float]:
        """When requests came, for one model or for all."""
        return [came.at for came in self.arrivals if model in (None, came.model)]

    def models(self) -> Sequence[str]:
        """Which models were asked, in order."""
        return [came.model for came in self.arrivals]

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        prompt = dialects.read_prompt(request.url.path, json.loads(request.content))
        now = asyncio.get_running_loop().time()
        step, _ = self.playbook.next_step(prompt.text, prompt.model)
        if step.cut != "before":
            note_sent()
        self.arrivals.append(VirtualArrival(now, prompt.model, request.content))
        if step.hang:
            await asyncio.Event().wait()
        await asyncio.sleep(step.delay_seconds)
        if step.cut == "before":
            raise httpx2.ConnectError("The connection was refused.")
        if step.cut == "middle":
            raise httpx2.RemoteProtocolError("The connection was cut.")
        if step.raw_body is not None:
            return httpx2.Response(step.status, headers=step.headers, content=step.raw_body)
        if prompt.stream and step.status == 200:
            headers = {"content-type": "text/event-stream", **step.headers}
            events = list(dialects.stream(prompt, step))
            sent = events[: step.after_events] if step.breaks_off else events
            return httpx2.Response(200, headers=headers, content=b"".join(sent))
        return httpx2.Response(step.status, headers=step.headers, json=dialects.reply(prompt, step))
