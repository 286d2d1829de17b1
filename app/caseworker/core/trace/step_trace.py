"""Step traces, derived on access from step records and the ExecutionGraph.

While a graph executes, it only provides one ``StepRecord`` per ended step, without computing or
copying anything. All other details, such as the tokens used by each step, are read later from the
records and from the ExecutionGraph, which is always recorded.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, Protocol

from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.node import ATTEMPT, FREE, NodeFields, estimated_of, number_of


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One execution of a step, with references to its inputs and outputs (no copies).

    A step of a nested graph has its own StepTrace, and its calls count only there. So the totals of
    a trace are the sums over its steps.
    """

    step_id: str
    """ID of the step; for a step of a nested graph its path, such as ``outer/inner``."""
    node_id: str
    """ID of the executed node; several steps may share a node."""
    node_type: str
    input: Any = field(repr=False)
    output: Any = field(repr=False)
    error: str | None
    start_time: datetime
    end_time: datetime
    duration_ms: float
    """Duration in milliseconds, measured by the monotonic clock."""
    tokens_used: int = 0
    """Input plus output tokens of the calls that the step itself made."""
    metadata: dict[str, Any] = field(default_factory=dict, repr=False)
    """Details of a recorded step. ``trace_node`` is its CallNode (the parent of its calls), and
    ``status`` the status of that node. ``attempts`` includes a fallback, and ``cost_usd`` covers
    the calls that the step itself made. Optional keys are ``stop_reason``, ``recovered_by`` and
    ``nested_in`` (the CallNode of the enclosing step)."""


@dataclass(slots=True)
class StepRecord:
    """The record of a step that has ended.

    Times are readings of the monotonic clock, in nanoseconds. Not frozen, because a frozen
    dataclass takes three times as long to construct.
    """

    step_id: str
    trace_node: str
    node_id: str
    node_type: str
    input: Any
    output: Any
    error: str | None
    started_ns: int
    ended_ns: int
    recovered_by: str | None = None
    """``skip`` or ``fallback``, if the step's policy recovered from a failure; otherwise None."""


@dataclass(slots=True)
class StepUse:
    """The usage of one step, without the steps nested in it."""

    node: NodeFields
    nested_in: str | None
    attempt_nodes: int = 0
    """Number of attempt nodes below the step's node; 0 if the first attempt was the only one."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: Decimal | None = FREE
    """Cost in US dollars; None if the price of a call is unknown."""
    tokens_estimated: int = 0
    """Number of tokens that are estimates, because a response was lost."""
    cost_usd_estimated: Decimal = FREE
    """Part of the cost that is an estimate, because a response was lost."""

    @property
    def attempts(self) -> int:
        """Number of attempts, including a fallback."""
        return self.attempt_nodes or 1

    def add_call(self, node: NodeFields) -> None:
        """Add the usage of one call."""
        cost = node["cost_usd"]
        if cost is None or self.cost_usd is None:
            self.cost_usd = None
        elif cost:
            self.cost_usd += Decimal(str(cost))
        self.tokens_in += node["tokens_in"] or 0
        self.tokens_out += node["tokens_out"] or 0
        tokens, estimated_usd = estimated_of(node)
        if tokens or estimated_usd:
            self.tokens_estimated += tokens
            self.cost_usd_estimated += Decimal(str(estimated_usd))

    def add_step(self, nested: "StepUse") -> None:
        """Add the usage of a step that is nested in this one."""
        is_priced = self.cost_usd is not None and nested.cost_usd is not None
        self.cost_usd = self.cost_usd + nested.cost_usd if is_priced else None  # type: ignore[operator]
        self.tokens_in += nested.tokens_in
        self.tokens_out += nested.tokens_out
        self.tokens_estimated += nested.tokens_estimated
        self.cost_usd_estimated += nested.cost_usd_estimated


class StepSource(Protocol):
    """A source of step traces, such as a graph execution; can list its ended steps at any time."""

    @property
    def revision(self) -> int:
        """Number that increases whenever the result of ``step_traces`` changes."""
        ...

    def step_traces(self) -> Iterable[StepTrace]:
        """Return the traces of the steps that have ended, with times in UTC."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class RecordedSteps:
    """The step records of one execution, and the ExecutionGraph with the calls of the steps."""

    graph: ExecutionGraph
    records: Sequence[StepRecord]
    """Records of the ended steps; more may be added while the graph executes."""
    started_at: datetime
    """Start time with a time zone; the same moment as ``started_ns`` on the monotonic clock."""
    started_ns: int

    @property
    def revision(self) -> int:
        """Number that increases with each record and each change of the graph."""
        return len(self.records) + self.graph.revision

    def step_traces(self) -> list[StepTrace]:
        """Return the traces of the steps that have ended, with times in UTC."""
        return step_traces_of([self])

    def instant(self, reading_ns: int) -> datetime:
        """Convert a reading of the records' clock to a UTC datetime."""
        since = timedelta(microseconds=(reading_ns - self.started_ns) // 1000)
        return self.started_at.astimezone(UTC) + since


def step_traces_of(sources: Iterable[StepSource]) -> list[StepTrace]:
    """Return the steps of several sources, in the order of their start.

    Recorded steps of the same ExecutionGraph are read together. So a call counts for its nearest
    enclosing step, even if another source recorded that step.
    """
    traces: list[StepTrace] = []
    sharing = defaultdict[int, list[RecordedSteps]](list)
    for source in sources:
        if isinstance(source, RecordedSteps):
            sharing[id(source.graph)].append(source)
        else:
            traces.extend(source.step_traces())
    for recorded in sharing.values():
        traces.extend(_recorded_traces(recorded))
    traces.sort(key=lambda trace: trace.start_time.astimezone(UTC))
    return traces


def _recorded_traces(sources: Sequence[RecordedSteps]) -> Iterator[StepTrace]:
    """Yield the steps of sources that share a graph, in the order of creation of their nodes."""
    records = [(source, record) for source in sources for record in source.records]
    records.sort(key=lambda pair: number_of(pair[1].trace_node))
    uses = uses_of(_nodes_of(sources[0].graph), {record.trace_node for _, record in records})
    for source, record in records:
        use = uses.get(record.trace_node)
        yield StepTrace(
            step_id=record.step_id,
            node_id=record.node_id,
            node_type=record.node_type,
            input=record.input,
            output=record.output,
            error=record.error,
            start_time=source.instant(record.started_ns),
            end_time=source.instant(record.ended_ns),
            duration_ms=(record.ended_ns - record.started_ns) / 1e6,
            tokens_used=use.tokens_in + use.tokens_out if use else 0,
            metadata=_details(record, use),
        )


def _nodes_of(graph: ExecutionGraph) -> Iterator[NodeFields]:
    """Yield the current nodes in the order of creation."""
    capture = graph.capture()
    for record in islice(capture.records, capture.node_count):
        yield capture.overlay.get(record["node_id"], record)


def _details(record: StepRecord, use: StepUse | None) -> dict[str, Any]:
    details: dict[str, Any] = {"trace_node": record.trace_node}
    if use is not None:
        details |= {
            "status": use.node["status"],
            "stop_reason": use.node["stop_reason"],
            "attempts": use.attempts,
            "cost_usd": None if use.cost_usd is None else float(use.cost_usd),
            "nested_in": use.nested_in,
        }
    details["recovered_by"] = record.recovered_by
    return {name: value for name, value in details.items() if value is not None}


def uses_of(nodes: Iterable[NodeFields], steps: Container[str]) -> dict[str, StepUse]:
    """Return the usage of each of ``steps`` (IDs of CallNodes), in the order of ``nodes``.

    In ``nodes``, parents must come before their children. Attempt nodes have no usage of their own,
    so nothing counts twice.
    """
    uses: dict[str, StepUse] = {}
    nearest: dict[str | None, StepUse] = {}
    for node in nodes:
        node_id, parent_id = node["node_id"], node["parent_id"]
        use = nearest.get(parent_id)
        if node_id in steps:
            use = uses[node_id] = StepUse(node, None if use is None else use.node["node_id"])
        elif use is None:
            continue
        elif parent_id == use.node["node_id"] and node["name"] == ATTEMPT:
            use.attempt_nodes += node["kind"] == "system"
        nearest[node_id] = use
        use.add_call(node)
    return uses


def add_nested(uses: Mapping[str, StepUse]) -> None:
    """Add the usage of each nested step to the step that encloses it."""
    for use in reversed(list(uses.values())):
        if use.nested_in is not None:
            uses[use.nested_in].add_step(use)
