"""The record of requests to the fake provider: the oracle of many tests."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Outcome = Literal["open", "answered", "cut", "client_gone"]

LONG_CHARS = 1 << 18
"""The length to which longer prompts are cut: a thousand of them would fill the memory."""


@dataclass(slots=True, kw_only=True)
class Arrival:
    """One request, with the times of its arrival and of the end of its answer."""

    seq: int
    """Sequence number of all requests of this process, from 1."""
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
    """``time.monotonic()``, which is equal in all processes of a Linux machine."""
    ended_wall: float | None = None
    ended_monotonic: float | None = None
    charged: dict[str, int] | None = None
    """The counts of an answered reply: tokens_in, tokens_out and tokens_cached."""
    refused: bool = False
    """Whether the status of the answer was above 200."""
    outcome: Outcome = "open"
    """``client_gone``: the client disconnected before the answer was complete."""


class ArrivalLog:
    """Every request in order; callers can wait for the next change."""

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
        """Record a complete, unanswered request."""
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
        """Clear the recorded requests without resetting the sequence."""
        self._arrivals.clear()
        self._announce()

    def find(self, containing: str, *, bodies: bool) -> list[dict[str, Any]]:
        """Return the requests whose prompt contains a text, oldest first."""
        found = (arrival for arrival in self._arrivals if containing in arrival.prompt)
        if not bodies:
            found = (replace(arrival, body=None) for arrival in found)
        return [asdict(arrival) for arrival in found]

    async def wait_until(self, holds: Callable[[], bool], *, timeout_seconds: float) -> bool:
        """Wait for ``holds`` to become true; return False after the timeout."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while not holds():
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def count(self, containing: str, *, ended: bool) -> int:
        """Return the number of requests that contain a text, either all or only finished ones."""
        return sum(
            containing in arrival.prompt and not (ended and arrival.outcome == "open")
            for arrival in self._arrivals
        )

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
