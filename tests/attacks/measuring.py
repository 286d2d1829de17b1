"""Watches a service from outside during an attack."""

import http.client
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Self

import psutil

_PAUSE_SECONDS = 0.05
_PATIENCE_SECONDS = 60.0
_UNANSWERED_MS = 60_000.0


@dataclass(frozen=True, slots=True)
class Health:
    """Measurements from outside the process."""

    p50_ms: float
    max_ms: float
    memory_before_mb: int
    memory_max_mb: int
    """Resident memory of the service's process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The effect of an attack on the service."""

    HEADING: ClassVar[str] = (
        "| attack | harmless | alive | others go on | /healthz p50, max ms | memory MB | remark |\n"
        "|---|---|---|---|---|---|---|\n"
    )

    name: str
    health: Health
    alive: bool
    others_go_on: bool
    harmless: bool
    """The verdict of the attack itself."""
    remark: str

    def passes(self, latency_ms: float) -> bool:
        """Return whether the attack was harmless."""
        in_time = self.health.max_ms <= latency_ms
        return self.alive and self.others_go_on and self.harmless and in_time

    def row(self, latency_ms: float) -> str:
        """Return a line of the table."""
        health = self.health
        memory = f"{health.memory_before_mb} to {health.memory_max_mb}"
        cells = (
            self.name,
            _word(self.passes(latency_ms)),
            _word(self.alive),
            _word(self.others_go_on),
            f"{health.p50_ms:.0f}, {health.max_ms:.0f}",
            memory,
            self.remark.replace("|", "/"),
        )
        return f"| {' | '.join(cells)} |\n"


class Watch:
    """Requests /healthz twenty times a second from a thread, and reads the process's memory."""

    def __init__(self, url: str, pid: int) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._address = host, int(port)
        self._process = psutil.Process(pid)
        self._over = threading.Event()
        self._latencies_ms: list[float] = []
        self._memory_mb = [self._resident_mb()]
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def health(self) -> Health:
        """Return the measurements."""
        seen = sorted(self._latencies_ms) or [_UNANSWERED_MS]
        return Health(seen[len(seen) // 2], seen[-1], self._memory_mb[0], max(self._memory_mb))

    def _look(self) -> None:
        while not self._over.wait(_PAUSE_SECONDS):
            self._latencies_ms.append(self._latency_ms())
            self._memory_mb.append(self._resident_mb())

    def _latency_ms(self) -> float:
        began = time.monotonic()
        connection = http.client.HTTPConnection(*self._address, timeout=_PATIENCE_SECONDS)
        try:
            connection.request("GET", "/healthz")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return _UNANSWERED_MS
        finally:
            connection.close()
        return (time.monotonic() - began) * 1000

    def _resident_mb(self) -> int:
        try:
            return int(self._process.memory_info().rss) >> 20
        except psutil.Error:
            return 0


def _word(good: bool) -> str:
    return "yes" if good else "**no**"
