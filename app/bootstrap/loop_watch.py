"""Logs which step or request held the event loop.

A thread checks a timestamp that the loop renews. When the loop is late, the thread reads the stack
that runs on the loop's thread at that moment. It walks outwards until it finds the context of a
step or the scope of a request.
"""

import asyncio
import sys
import threading
import time
from types import FrameType
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry, Counter

from app.engine.context import FlowContext

log = structlog.get_logger(__name__)

HELD_SECONDS: Final = 0.1
"""How long one callback may run before it is logged."""
BEAT_SECONDS: Final = 0.02


class LoopWatch:
    """Watches the event loop of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Declare the counter in ``registry``."""
        self._holds = Counter(
            "caseworker_event_loop_holds",
            "Times that the event loop was held for more than 100 ms, by what held it.",
            ("by",),
            registry=registry,
        )
        self._renewed_at = 0.0

    async def run(self) -> None:
        """Watch the running loop until this task is cancelled."""
        over, ident = threading.Event(), threading.get_ident()
        self._renewed_at = time.monotonic()
        thread = threading.Thread(
            target=self._watch, args=(over, ident), name="event loop watch", daemon=True
        )
        thread.start()
        try:
            while True:
                await asyncio.sleep(BEAT_SECONDS)
                self._renewed_at = time.monotonic()
        finally:
            over.set()

    def _watch(self, over: threading.Event, ident: int) -> None:
        while not over.wait(BEAT_SECONDS):
            began_at = self._renewed_at
            if time.monotonic() - began_at < HELD_SECONDS + BEAT_SECONDS:
                continue
            frame = sys._current_frames().get(ident)
            found = _holder(frame)
            del frame
            while self._renewed_at == began_at and not over.wait(BEAT_SECONDS):
                pass
            seconds = round(self._renewed_at - began_at, 3)
            self._holds.labels(found["kind"]).inc()
            log.warning("loop.held", seconds=max(seconds, HELD_SECONDS), **found)


def _holder(frame: FrameType | None) -> dict[str, Any]:
    """Return what a stack works for: fields of a log line."""
    found: dict[str, Any] = {"kind": "other"}
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if "detail" not in found and module.startswith("app."):
            found["detail"] = f"{module}:{frame.f_lineno}"
        if module.startswith(("app.", "fastapi.", "starlette.")):
            context, scope = frame.f_locals.get("context"), frame.f_locals.get("scope")
            if isinstance(context, FlowContext):
                return {
                    **found,
                    "kind": "step",
                    "run_id": context.run_id,
                    "step_id": context.path.text,
                }
            if isinstance(scope, dict) and scope.get("type") == "http":
                route = getattr(scope.get("route"), "path", "")
                return {**found, "kind": "request", "method": scope["method"], "route": route}
        frame = frame.f_back
    return found
