"""The record of what reached the fake provider: the oracle of many tests."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Outcome = Literal["open", "answered", "cut", "client_gone"]

LONG_CHARS = 1 << 18
"""Of a longer prompt the beginning alone is kept: a thousand of them would fill the memory."""


@dataclass(slots=True, kw_only=True)
class Arrival:
    """One request. Times are taken when it was complete, and when its answer was or broke off."""

    seq: int
    """Counts all requests of this process upwards, from 1."""
    path: str
    model: str
    prompt: str
    question: str | None
    marker: str | None
    call_key: str | None
    headers: dict[str, str]
    body: dict[str, Any] | None
    arrived_wall: float
    arrived_monotonic: float
    """``time.monotonic()``, which every process of a Linux machine reads alike."""
    ended_wall: float | None = None
    ended_monotonic: float | None = None
    charged: dict[str, int] | None = None
    """Once it is answered as a reply with counts: tokens_in, tokens_out and tokens_cached."""
    refused: bool = False
    """Whether it was answered with a status above 200."""
    outcome: Outcome = "open"
    """``client_gone``: the client hung up before the answer was complete."""


class ArrivalLog:
    """Every request in order, with a way to wait for the next change."""

    def __init__(self) -> None:
        self._arrivals: list[Arrival] = []
        self._sequence = 0
        self._changed = asyncio.Event()

    def open(
        self,
        *,
        path: str,
        model: str,
        prompt: str,
        question: str | None,
        marker: str | None,
        headers: dict[str, str],
        body: dict[str, Any],
    ) -> Arrival:
        """Record a request that is complete and not yet answered."""
        self._sequence += 1
        kept = len(prompt) <= LONG_CHARS
        arrival = Arrival(
            seq=self._sequence,
            path=path,
            model=model,
            prompt=prompt if kept else prompt[:LONG_CHARS],
            question=question,
            marker=marker,
            call_key=headers.get("x-call-key"),
            headers=headers,
            body=body if kept else None,
            arrived_wall=time.time(),
            arrived_monotonic=time.monotonic(),
        )
        self._arrivals.append(arrival)
        self._announce()
        return arrival

    def end(self, arrival: Arrival, outcome: Outcome) -> None:
        """Record how a request ended."""
        arrival.outcome = outcome
        arrival.ended_wall = time.time()
        arrival.ended_monotonic = time.monotonic()
        self._announce()

    def clear(self) -> None:
        """Forget the requests so far; the sequence goes on."""
        self._arrivals.clear()
        self._announce()

    def find(self, containing: str, *, bodies: bool) -> list[dict[str, Any]]:
        """The requests whose prompt contains a text, oldest first."""
        found = (arrival for arrival in self._arrivals if containing in arrival.prompt)
        if not bodies:
            found = (replace(arrival, body=None) for arrival in found)
        return [asdict(arrival) for arrival in found]

    async def wait_until(self, holds: Callable[[], bool], *, timeout_seconds: float) -> bool:
        """Wait for ``holds`` to become true; False when the time is up."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while not holds():
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def count(self, containing: str, *, ended: bool) -> int:
        """How many requests contain a text, all of them or those that are over."""
        return sum(
            containing in arrival.prompt and not (ended and arrival.outcome == "open")
            for arrival in self._arrivals
        )

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
