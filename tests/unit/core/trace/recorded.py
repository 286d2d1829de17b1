"""An execution with a manual clock that creates step records and their calls."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.step_trace import RecordedSteps, StepRecord
from tests.support.manual_clock import ManualClock

START_MS = 1_740_000_000_000
START = datetime.fromtimestamp(START_MS / 1000, UTC)
START_NS = 5_000_000
"""The reading of the record clock at the start."""


@dataclass
class Execution:
    """Replaces the engine: begins and ends steps and appends their records."""

    clock: ManualClock = field(default_factory=lambda: ManualClock(START_MS))
    records: list[StepRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.graph = ExecutionGraph("run-1", now_ms=self.clock)
        self.root = self.graph.create_root("run")
        self.source = RecordedSteps(self.graph, self.records, START, START_NS)

    def at(self, ms: int) -> None:
        """Set the clock to a time after the start."""
        self.clock.now = START_MS + ms

    def begin(self, step_id: str, parent: str | None = None, **record: Any) -> "RunningStep":
        """Begin a step; ``record`` holds fields of its record."""
        node = self.graph.begin_node(
            parent or self.root, "system", step_id, metadata={"step_type": "function"}
        )
        self.graph.mark_running(node)
        return RunningStep(self, step_id, node, self.reading(), record)

    def run(self, step_id: str, start: int, end: int, **record: Any) -> str:
        """Execute a step between two times; return its CallNode."""
        self.at(start)
        step = self.begin(step_id, **record)
        self.at(end)
        step.end()
        return step.node

    def call(self, parent: str, *, tokens: int = 0, cost_usd: float | None = 0.0) -> str:
        """Make an LLM call that takes no time."""
        node = self.graph.begin_node(parent, "llm", "plan", "nano")
        self.graph.mark_success(node, cost_usd, tokens, 0)
        return node

    def reading(self) -> int:
        """Return the current reading of the record clock in nanoseconds."""
        return START_NS + (self.clock.now - START_MS) * 1_000_000


@dataclass
class RunningStep:
    """A step that has not ended."""

    execution: Execution
    step_id: str
    node: str
    started_ns: int
    record: dict[str, Any]

    def end(self, stop: str | None = None) -> None:
        """Halt the step for ``stop``, or end it with the status that its record implies."""
        graph, error = self.execution.graph, self.record.get("error")
        if stop is not None:
            graph.mark_halt(self.node, stop)
        elif error is not None and "recovered_by" not in self.record:
            graph.mark_failure(self.node, "ValueError", error)
        else:
            graph.mark_success(self.node, 0)
        self.execution.records.append(
            StepRecord(
                step_id=self.step_id,
                trace_node=self.node,
                node_id=self.record.get("node_id", self.step_id),
                node_type=self.record.get("node_type", "function"),
                input=self.record.get("input"),
                output=self.record.get("output"),
                error=error,
                started_ns=self.started_ns,
                ended_ns=self.execution.reading(),
                recovered_by=self.record.get("recovered_by"),
            )
        )
