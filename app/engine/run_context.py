"""What all steps of one run share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.control.ledger import Scope
from app.engine.calls import Calls
from app.engine.cancellation import CancellationToken
from app.engine.events import EventSink
from app.engine.ports import Journal
from app.engine.step_slots import StepSlots
from app.trace.execution_graph import ExecutionGraph

DEFAULT_GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What all steps of one run share."""

    run_id: str
    root: str
    """The CallNode of the run."""
    trace: ExecutionGraph
    scope: Scope
    token: CancellationToken
    calls: Calls
    journal: Journal | None = None
    """None where nothing outlives the process: no step is replayed, no barrier is passed."""
    events: EventSink | None = None
    services: Mapping[type, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    """What the steps of the run tell one another; it does not outlive its execution."""
    chat_id: str | None = None
    slots: StepSlots = field(default_factory=StepSlots)
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    """How long cancelled work may take to end before it is abandoned."""
    begun: dict[str, str] = field(default_factory=dict)
    """The steps of which a start was told and no end yet: their CallNodes by their paths."""
    over: Callable[[], None] = lambda: None
    """Called when work that was abandoned has come to its end."""
    notes: list[Any] | None = None
    """Executions of graphs whose steps a trace reads (``step_records.py``), if any."""
