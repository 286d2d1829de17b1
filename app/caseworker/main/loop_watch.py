"""Log which step or request blocked the event loop.

A thread checks a timestamp that the loop renews. When the renewal is late, the thread reads the
current stack of the loop's thread. It walks outwards until it finds a step or a request. With
Python 3.13 and later, the log names the step or request. With earlier versions, it names only the
kind (step or request) and the code line.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Literal

import structlog
from prometheus_client import CollectorRegistry, Counter

from caseworker.engine.context import FlowContext

log = structlog.get_logger(__name__)

HELD_SECONDS: Final = 0.1
"""Time, in seconds, that one callback may block the loop before it is logged."""
BEAT_SECONDS: Final = 0.02
_LOCALS_ARE_SAFE: Final = sys.version_info >= (3, 13)
"""Whether a thread may read the local variables of a running frame in another thread.

Before Python 3.13, reading them modifies the frame; this has caused a segmentation fault.
"""


class LoopWatch:
    """Watches the event loop of this process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the counter in ``registry``."""
        self._holds = Counter(
            "caseworker_event_loop_holds",
            "Times that the event loop was blocked for more than 100 ms, by cause.",
            ("by",),
            registry=registry,
        )
        self._renewed_at = 0.0

    async def run(self) -> None:
        """Watch the running event loop until this task is cancelled."""
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
            self._holds.labels(found.kind).inc()
            log.warning(
                "loop.held",
                seconds=max(seconds, HELD_SECONDS),
                kind=found.kind,
                detail=found.place,
                run_id=found.run_id,
                step_id=found.step_id,
                method=found.method,
                route=found.route,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopHolder:
    """The step, request or other code that blocked the event loop."""

    kind: Literal["step", "request", "other"]
    place: str | None
    """Module and line of the innermost frame in the service's own code; None if there is none."""
    run_id: str | None = None
    step_id: str | None = None
    method: str | None = None
    route: str | None = None


def _holder(frame: FrameType | None) -> LoopHolder:
    """Return the step or request on whose behalf a stack executes."""
    place: str | None = None
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if place is None and module.startswith("caseworker."):
            place = f"{module}:{frame.f_lineno}"
        if _LOCALS_ARE_SAFE:
            if module.startswith(("caseworker.", "fastapi.", "starlette.")):
                found = _named(place, frame.f_locals)
                if found is not None:
                    return found
        elif module == "caseworker.engine.step_runner":
            return LoopHolder(kind="step", place=place)
        elif module == "caseworker.platform.http.application":
            return LoopHolder(kind="request", place=place)
        frame = frame.f_back
    return LoopHolder(kind="other", place=place)


def _named(place: str | None, found: Mapping[str, Any]) -> LoopHolder | None:
    """Return the step or request found in a frame's local variables, if any."""
    context, scope = found.get("context"), found.get("scope")
    if isinstance(context, FlowContext):
        run_id, step_id = context.run_id, context.path.text
        return LoopHolder(kind="step", place=place, run_id=run_id, step_id=step_id)
    if isinstance(scope, dict) and scope.get("type") == "http":
        route = getattr(scope.get("route"), "path", None)
        return LoopHolder(kind="request", place=place, method=str(scope["method"]), route=route)
    return None
