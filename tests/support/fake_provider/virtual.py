"""The fake provider without sockets, with its scripts and protocols, on the test's own loop.

A client of the real SDKs uses it through ``transport()``. On a virtual clock, waits of several
seconds are exact and take no real time.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from caseworker.models.wires.transport import ConnectionFailedError, Wire, WireReply
from tests.support.fake_provider import dialects
from tests.support.fake_provider.script import Playbook, Script, Step


@dataclass(slots=True)
class Replied:
    """A reply of these parts; ``held`` keeps the connection open after the last one."""

    content: tuple[bytes, ...]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    held: bool = False

    async def parts(self) -> AsyncGenerator[bytes]:
        """Yield the parts."""
        for part in self.content:
            yield part
        if self.held:
            await asyncio.Event().wait()

    def close(self) -> None:
        """Close nothing."""


@dataclass(frozen=True, slots=True)
class VirtualArrival:
    """One request, with its time on the loop's clock and its exact body."""

    at: float
    model: str
    content: bytes

    @property
    def body(self) -> dict[str, Any]:
        """The body as JSON."""
        document: dict[str, Any] = json.loads(self.content)
        return document


class VirtualProvider:
    """Answers prompts as scripted; a model without its own steps gets the default answer."""

    def __init__(self) -> None:
        self.playbook = Playbook()
        self.arrivals: list[VirtualArrival] = []

    def script(self, model: str, *steps: Step, repeat_last: bool = False) -> None:
        """Treat the requests for a model with these steps, in order."""
        script = Script(marker="", steps=list(steps), model=model, repeat_last=repeat_last)
        self.playbook.add(script)

    def wire(self) -> Wire:
        """Return the wire that routes every request here."""
        return self

    async def aclose(self) -> None:
        """Close nothing."""

    def times(self, model: str | None = None) -> list[float]:
        """Return the times of requests, for one model or for all."""
        return [came.at for came in self.arrivals if model in (None, came.model)]

    def models(self) -> Sequence[str]:
        """Return the requested models, in order."""
        return [came.model for came in self.arrivals]

    async def post(
        self, url: str, headers: Mapping[str, str], content: bytes, note_sent: Callable[[], None]
    ) -> WireReply:
        """Answer as scripted."""
        path = urlsplit(url).path.replace("/v1/v1/", "/v1/")  # of a base URL for either protocol
        asked = json.loads(content)
        prompt = dialects.read_prompt(path, asked)
        now = asyncio.get_running_loop().time()
        step = dialects.refusal(path, asked)
        if step is None:
            step, _ = self.playbook.next_step(prompt.text, prompt.model)
        if step.cut != "before":
            note_sent()
        self.arrivals.append(VirtualArrival(now, prompt.model, content))
        if step.hang:
            await asyncio.Event().wait()
        await asyncio.sleep(step.delay_seconds)
        if step.cut is not None:
            raise ConnectionFailedError
        given = {name.lower(): value for name, value in step.headers.items()}
        if step.raw_body is not None:
            return Replied((step.raw_body.encode(),), step.status, given)
        if prompt.stream and step.status == 200:
            events = list(dialects.stream(prompt, step))
            return Replied(tuple(events[: step.after_events] if step.breaks_off else events))
        body = json.dumps(dialects.reply(prompt, step)).encode()
        return Replied((body,), step.status, given)
