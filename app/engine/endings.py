"""The ends of steps as they are told: one for each that began, unless it goes on elsewhere."""

from collections.abc import Mapping
from typing import Any

from app.control.stops import HandOver
from app.engine.events import STEP_CANCELLED, Event
from app.engine.run_context import RunContext

ABANDONED = "The step ignored its cancellation and was abandoned."


def emit_end(run: RunContext, kind: str, path: str, data: Mapping[str, Any]) -> None:
    """Tell the end of a step, unless it never began or its end was told before."""
    node = run.begun.pop(path, None)
    if node is not None and run.events is not None:
        run.events.emit(Event(type=kind, step_id=path, node_id=node, data=data))


def emit_cut_off(run: RunContext, path: str, reason: str) -> None:
    """Tell that a step was cut off; one that goes on in another process has not ended."""
    if isinstance(run.token.stop, HandOver):
        run.begun.pop(path, None)
    else:
        emit_end(run, STEP_CANCELLED, path, {"reason": reason})


def detach_inside(run: RunContext, inside: tuple[str, ...]) -> None:
    """End the steps whose paths begin so: what executed them ignored its cancellation."""
    for path in [begun for begun in run.begun if begun.startswith(inside)]:
        run.trace.mark_halt(run.begun[path], ABANDONED)
        emit_cut_off(run, path, ABANDONED)
