"""Log which step or request blocked the event loop.

A thread looks at the loop regularly. If the loop is executing a callback, the thread schedules
another one. If that one is late, the thread reads the current stack of the loop's thread. It walks
outwards until it finds a step or a request. An idle loop is not woken. With
Python 3.13 and later, the log names the step or request. With earlier versions, it names only the
kind (step or request) and the code line. The time for which the loop's thread was ready but got no
processor does not count: that is the load of the machine, and part of the metric
``caseworker_event_loop_lag_seconds``.
"""

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal

import structlog
from prometheus_client import CollectorRegistry, Counter

from caseworker.engine.context import FlowContext

log = structlog.get_logger(__name__)

HELD_SECONDS: Final = 0.1
"""Time, in seconds, that one callback may block the loop before it is logged."""
LOOK_SECONDS: Final = 0.05
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

    async def run(self) -> None:
        """Watch the running event loop until this task is cancelled."""
        over, loop = threading.Lock(), asyncio.get_running_loop()
        over.acquire()
        watching = threading.Thread(
            target=self._watch,
            args=(over, loop, threading.get_ident(), threading.get_native_id(), _below_the_loop()),
            name="event loop watch",
            daemon=True,
        )
        watching.start()
        try:
            await loop.create_future()
        finally:
            over.release()

    def _watch(
        self,
        over: threading.Lock,
        loop: asyncio.AbstractEventLoop,
        ident: int,
        native_id: int,
        idle: FrameType,
    ) -> None:
        while not over.acquire(timeout=LOOK_SECONDS):
            if sys._current_frames().get(ident) is idle:
                continue
            began_at, renewed = time.monotonic(), threading.Event()
            waited = _processor_wait_seconds(native_id)
            try:
                loop.call_soon_threadsafe(renewed.set)
            except RuntimeError:  # the loop has just been closed
                return
            if renewed.wait(HELD_SECONDS) or not over.locked():
                continue
            holder = _holder(sys._current_frames().get(ident))
            while not renewed.wait(LOOK_SECONDS) and over.locked():
                pass
            waited = _processor_wait_seconds(native_id) - waited
            seconds = round(time.monotonic() - began_at - waited, 3)
            if seconds > HELD_SECONDS:
                self._report(holder, seconds)

    def _report(self, holder: "LoopHolder", seconds: float) -> None:
        self._holds.labels(holder.kind).inc()
        log.warning(
            "loop.held",
            seconds=seconds,
            kind=holder.kind,
            detail=holder.place,
            run_id=holder.run_id,
            step_id=holder.step_id,
            method=holder.method,
            route=holder.route,
        )


def _processor_wait_seconds(native_id: int) -> float:
    """Return for how long a thread of this process has been ready without running; 0 if unknown.

    Only Linux has it, in nanoseconds: the second number in ``schedstat``.
    """
    try:
        fields = Path(f"/proc/self/task/{native_id}/schedstat").read_text(encoding="ascii").split()
    except OSError:
        return 0.0
    return int(fields[1]) / 1e9


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


def _below_the_loop() -> FrameType:
    """Return the frame that runs the loop; with uvloop it is the innermost one of an idle loop."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_flags & inspect.CO_COROUTINE:
        frame = frame.f_back
    return frame


def _holder(frame: FrameType | None) -> LoopHolder:
    """Return the step or request on whose behalf a stack executes."""
    place: str | None = None
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if place is None and module.startswith("caseworker."):
            place = f"{module}:{frame.f_lineno}"
        if _LOCALS_ARE_SAFE:
            if module.startswith(("caseworker.", "fastapi.", "starlette.")):
                holder = _holder_in(place, frame.f_locals)
                if holder is not None:
                    return holder
        elif module == "caseworker.engine.step_runner":
            return LoopHolder(kind="step", place=place)
        elif module == "caseworker.platform.http.application":
            return LoopHolder(kind="request", place=place)
        frame = frame.f_back
    return LoopHolder(kind="other", place=place)


def _holder_in(place: str | None, variables: Mapping[str, Any]) -> LoopHolder | None:
    """Return the step or request found in a frame's local variables, if any."""
    context, scope = variables.get("context"), variables.get("scope")
    if isinstance(context, FlowContext):
        run_id, step_id = context.run_id, context.path.text
        return LoopHolder(kind="step", place=place, run_id=run_id, step_id=step_id)
    if isinstance(scope, dict) and scope.get("type") == "http":
        route = getattr(scope.get("route"), "path", None)
        return LoopHolder(kind="request", place=place, method=str(scope["method"]), route=route)
    return None
