"""The ExecutionTrace: an object that a caller passes to an execution to record its steps."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, Literal

from caseworker.core.trace.json_values import as_json
from caseworker.core.trace.node import JsonObject
from caseworker.core.trace.plain_text import counted, dollars_text, plain
from caseworker.core.trace.step_trace import StepSource, StepTrace, step_traces_of

EndStatus = Literal["completed", "failed", "cancelled"]
TraceStatus = Literal["running", EndStatus]

_MAX_NAMED: Final = 5
"""The maximum number of steps that a summary line names."""


@dataclass
class TraceFields:
    """Base class with the fields of an :class:`ExecutionTrace`."""

    graph_id: str
    start_time: datetime
    end_time: datetime | None = None
    status: TraceStatus = "running"
    steps: list[StepTrace] = field(default_factory=list, repr=False)
    total_tokens: int = 0
    total_cost: float = 0.0
    """Total cost in US dollars."""
    error: str | None = None


class ExecutionTrace(TraceFields):
    """A step-by-step trace of an execution.

    It records nothing itself. It follows sources (such as graph executions) and reads ``steps``,
    ``total_tokens`` and ``total_cost`` from them on access, so tracing adds almost no overhead.
    Sources may run in sequence or nested, and steps can be added manually.

    All times are in UTC. If ``start_time`` has no time zone, they are local times without a zone,
    so that they are comparable with it.
    """

    def __init__(
        self,
        graph_id: str,
        start_time: datetime,
        end_time: datetime | None = None,
        status: TraceStatus = "running",
        steps: Iterable[StepTrace] = (),
        total_tokens: int = 0,
        total_cost: float = 0.0,
        error: str | None = None,
    ) -> None:
        """Start a trace; ``total_tokens`` and ``total_cost`` must be the totals of ``steps``."""
        self._sources: list[StepSource] = []
        self._seen = _Seen()
        super().__init__(
            graph_id, start_time, end_time, status, list(steps), total_tokens, total_cost, error
        )

    def __getstate__(self) -> dict[str, object]:
        """Return the state for a copy or pickle, which no longer follows an execution."""
        names = ("graph_id", "start_time", "end_time", "status", "steps", "error")
        totals = {"total_tokens": self.total_tokens, "total_cost": self.total_cost}
        return {name: getattr(self, name) for name in names} | totals

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state of a copy or pickle."""
        self.__init__(**state)  # type: ignore[misc]

    @property
    def steps(self) -> list[StepTrace]:
        """All steps: those of the sources in the order of their start, then those added manually.

        The list is a copy; use ``add_step`` to add to the trace.
        """
        return [*self._followed().steps, *self._added]

    @steps.setter
    def steps(self, steps: list[StepTrace]) -> None:
        self._added = list(steps)

    @property
    def total_tokens(self) -> int:
        """Total number of input and output tokens of all steps."""
        return self._followed().tokens + self._added_tokens

    @total_tokens.setter
    def total_tokens(self, tokens: int) -> None:
        self._added_tokens = tokens - self._followed().tokens

    @property
    def total_cost(self) -> float:
        """Total cost of all steps in US dollars, from ``cost_usd`` in their metadata."""
        return float(self._followed().cost_usd + self._added_usd)

    @total_cost.setter
    def total_cost(self, cost_usd: float) -> None:
        self._added_usd = Decimal(str(cost_usd)) - self._followed().cost_usd

    def follow(self, source: StepSource) -> None:
        """Include all steps of ``source``: those that have ended and those that end later."""
        self._sources.append(source)

    def add_step(self, step: StepTrace) -> None:
        """Add a step that no source provides; its tokens and cost count in the totals."""
        self._added.append(step)
        self._added_tokens += step.tokens_used
        self._added_usd += _cost_of(step)

    def finish(
        self, status: EndStatus, error: str | None = None, *, at: datetime | None = None
    ) -> None:
        """Set the final status, the error and the end time (default: now); called by the engine."""
        self.status, self.error = status, error
        self.end_time = self._on_my_clock(at or datetime.now(UTC))

    def explain(self) -> str:
        """Return a summary for readers: steps, totals, slowest steps, critical path and errors."""
        steps = self.steps
        lines = [
            f"Graph: {plain(self.graph_id)}",
            f"Status: {self.status}",
            *_step_lines(steps),
            self._total_line(steps),
            *_insights(steps),
        ]
        if self.error:
            lines.append(plain(f"Error: {self.error}"))
        return "\n".join(lines)

    def to_dict(self) -> JsonObject:
        """Return the trace as a JSON object, with payloads as ``as_json`` renders them."""
        names = [each.name for each in fields(self) if each.name != "steps"]
        totals = {name: as_json(getattr(self, name)) for name in names}
        return {**totals, "steps": [_step_as_json(step) for step in self.steps]}

    def _followed(self) -> "_Seen":
        """Return the steps of all sources; cached until a source's revision changes."""
        revision = len(self._sources) + sum(source.revision for source in self._sources)
        if self._seen.revision != revision:
            steps = step_traces_of(self._sources)
            if self.start_time.tzinfo is None:
                steps = [self._without_zone(step) for step in steps]
            self._seen = _Seen(revision, steps)
        return self._seen

    def _without_zone(self, step: StepTrace) -> StepTrace:
        start, end = self._on_my_clock(step.start_time), self._on_my_clock(step.end_time)
        return replace(step, start_time=start, end_time=end)

    def _on_my_clock(self, moment: datetime) -> datetime:
        if self.start_time.tzinfo is None:
            return moment.astimezone().replace(tzinfo=None)
        return moment.astimezone(UTC)

    def _total_line(self, steps: Sequence[StepTrace]) -> str:
        ends = [self.end_time] if self.end_time else [step.end_time for step in steps]
        start = self.start_time.astimezone(UTC)
        lasted = max((end.astimezone(UTC) for end in ends), default=start) - start
        return (
            f"Total: {counted(len(steps), 'step')} in {lasted.total_seconds() * 1000:.0f}ms, "
            f"{counted(self.total_tokens, 'token')}, {dollars_text(self.total_cost)}"
        )


class _Seen:
    """The cached steps of all sources at one revision, with their totals."""

    __slots__ = ("cost_usd", "revision", "steps", "tokens")

    def __init__(self, revision: int = 0, steps: Sequence[StepTrace] = ()) -> None:
        self.revision = revision
        self.steps = steps
        self.tokens = sum(step.tokens_used for step in steps)
        self.cost_usd = sum(map(_cost_of, steps), Decimal(0))


def _cost_of(step: StepTrace) -> Decimal:
    cost_usd = step.metadata.get("cost_usd")
    is_amount = isinstance(cost_usd, int | float | Decimal) and not isinstance(cost_usd, bool)
    return Decimal(str(cost_usd)) if is_amount else Decimal(0)


def _step_as_json(step: StepTrace) -> JsonObject:
    return {each.name: as_json(getattr(step, each.name)) for each in fields(step)}


def _step_lines(steps: Sequence[StepTrace]) -> Iterator[str]:
    """Yield a line for each step, followed by its error, retries and recovery."""
    for step in steps:
        yield plain(f"  {step.step_id} ({step.node_type}): {_ms(step.duration_ms)}")
        if step.error:
            yield plain(f"    Error: {step.error}")
        if incidents := list(_incidents(step)):
            yield plain(f"    {', '.join(incidents)}")


def _insights(steps: Sequence[StepTrace]) -> Iterator[str]:
    """Yield lines for the slowest steps, the critical path, and the step that was stopped first."""
    outermost = [step for step in steps if "nested_in" not in step.metadata]
    if len(outermost) > 1:
        slowest = sorted(outermost, key=lambda step: -step.duration_ms)[:_MAX_NAMED]
        yield f"Slowest: {_ids_with_durations(slowest, ', ')}"
    path = _critical_path(outermost)
    if len(path) < len(outermost):
        longest = sorted(path, key=lambda step: -step.duration_ms)[: 2 * _MAX_NAMED]
        yield f"Critical path: {_ids_with_durations(sorted(longest, key=_start), ' > ')}"
    halted = [step for step in steps if step.metadata.get("status") == "halt"]
    if halted:
        first = min(halted, key=_end)
        reason = first.metadata.get("stop_reason") or first.error or "no reason given"
        yield plain(f"Stopped at: {first.step_id}: {reason}")


def _critical_path(steps: Sequence[StepTrace]) -> list[StepTrace]:
    """Return the steps on the critical path, in the order of their start.

    It is computed backwards: from the step that ended last, to the last step that had ended before
    that one started, and so on.
    """
    path: list[StepTrace] = []
    for step in sorted(steps, key=lambda step: (_end(step), _start(step)), reverse=True):
        if not path or _end(step) <= _start(path[-1]):
            path.append(step)
    return path[::-1]


def _incidents(step: StepTrace) -> Iterator[str]:
    attempts = step.metadata.get("attempts")
    if isinstance(attempts, int) and attempts > 1:
        yield f"{attempts} attempts"
    if recovered_by := step.metadata.get("recovered_by"):
        yield f"recovered by {recovered_by}"


def _ids_with_durations(steps: Sequence[StepTrace], separator: str) -> str:
    return plain(separator.join(f"{step.step_id} {_ms(step.duration_ms)}" for step in steps))


def _ms(duration_ms: float) -> str:
    return f"{duration_ms:.0f}ms"


def _start(step: StepTrace) -> datetime:
    return step.start_time.astimezone(UTC)


def _end(step: StepTrace) -> datetime:
    return step.end_time.astimezone(UTC)
