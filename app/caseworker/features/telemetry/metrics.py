"""Counts runs and requests for /metrics, in Prometheus format.

A run is counted once, when it ends, from its usage and the snapshot of its ExecutionGraph. Nothing
is counted while it runs. If several processes executed it, the one that ends it counts everything.
No label holds arbitrary text from callers: every label has a bounded number of values, and run IDs
are never labels.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram

from caseworker.core.trace.node import OVERRUN_USD, imported_from_run
from caseworker.runs.run import Run

RunLabel = Literal["tenant", "agent"]
"""Optional labels for run metrics, which the operator can enable."""

MAX_VALUES: Final = 100
"""Maximum number of values per label; further values are counted as ``other``."""

OTHER: Final = "other"

AT_ONCE: Final = 2000
"""Maximum number of CallNodes that are counted on the event loop. For larger graphs, a thread is
used."""

_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,99}", re.ASCII)

_RUN_SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
_CALL_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Bounded:
    """Limits a label's values: at most ``MAX_VALUES``, and only short ASCII names."""

    def __init__(self) -> None:
        self._labels_seen: dict[str, str] = {}

    def __call__(self, value: str | None) -> str:
        """Return the label value to use for ``value``.

        That is ``other`` if the value is not allowed, and an empty text for None.
        """
        if value is None:
            return ""
        if (label := self._labels_seen.get(value)) is not None:
            return label
        if len(self._labels_seen) >= MAX_VALUES or not _SANE.fullmatch(value):
            return OTHER
        self._labels_seen[value] = value
        return value


class _Cells:
    """Cache of a metric's children by label: the lookup in the library costs more than counting."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric
        self._children: dict[tuple[str, ...], Any] = {}

    def __call__(self, *labels: str) -> Any:
        child = self._children.get(labels)
        if child is None:
            child = self._metric.labels(*labels) if labels else self._metric
            self._children[labels] = child
        return child


class RunMetrics:
    """Counts runs, as a :class:`RunObserver`, and API requests."""

    def __init__(self, registry: CollectorRegistry, labels: Sequence[RunLabel] = ()) -> None:
        """Declare the metrics in ``registry``; ``labels`` are added to the run metrics."""
        self._labels = tuple(labels)
        self._values = {label: Bounded() for label in labels}
        self._models, self._tools, self._stops = Bounded(), Bounded(), Bounded()
        self._repaired = Bounded()
        self._counting: set[asyncio.Task[None]] = set()

        def counter(name: str, says: str, *names: str) -> _Cells:
            return _Cells(Counter(f"caseworker_{name}", says, names, registry=registry))

        def times(name: str, buckets: Sequence[float], says: str, *names: str) -> _Cells:
            name = f"caseworker_{name}"
            return _Cells(Histogram(name, says, names, registry=registry, buckets=buckets))

        self._accepted = counter("runs_accepted", "Runs accepted.", "kind", *self._labels)
        says = "Active execution time of ended runs; the count is the number of ended runs."
        names = ("kind", "status", *self._labels)
        self._run_seconds = times("run_duration_seconds", _RUN_SECONDS, says, *names)
        says = (
            "Time from acceptance to the first start of a run, or to its end if it never started."
        )
        self._waited = times("run_wait_seconds", _RUN_SECONDS, says, "kind")
        says = "Runs that ended without completing, by cause."
        self._stopped = counter("run_stops", says, "stop", "dimension")
        says = "Runs started here that an earlier execution had already started."
        self._takeovers = counter("run_takeovers", says)
        self._steps = counter("steps", "Steps executed.")
        self._turns = counter("turns", "Agent turns.")
        says = "Duration of model calls including retries; the count is the number of calls."
        names = ("model", "status")
        self._model_seconds = times("model_call_duration_seconds", _CALL_SECONDS, says, *names)
        says = "Duration of tool calls including retries; the count is the number of calls."
        names = ("tool", "status")
        self._tool_seconds = times("tool_call_duration_seconds", _CALL_SECONDS, says, *names)
        self._tokens = counter("tokens", "Model tokens, including estimates.", "model", "direction")
        says = "Known cost in US dollars, including estimates."
        self._cost = counter("cost_usd", says, "model", *self._labels)
        says = "US dollars by which model calls cost more than was reserved for them."
        self._overrun = counter("overrun_cost_usd", says, "model")
        self._repairs = counter("model_reply_repairs", "Repaired faults in model replies.", "kind")
        self._retries = counter("retries", "Retries after a failure.", "kind")
        says = "Duration of HTTP requests until the end of the response, except event streams."
        names = ("method", "route", "status")
        self._request_seconds = times(
            "http_request_duration_seconds", _REQUEST_SECONDS, says, *names
        )

    def accepted(self, run: Run) -> None:
        """Count a run that was accepted."""
        self._accepted(run.kind.value, *self._label_values(run)).inc()

    def started(self, run: Run) -> None:
        """Count a recovery if an earlier execution had already started the run."""
        if run.attempts > 1:
            self._takeovers().inc()

    def ended(self, run: Run, graph: Mapping[str, Any] | None) -> None:
        """Count a run that has ended, and the calls in its graph."""
        label_values = self._label_values(run)
        self._run_seconds(run.kind.value, run.status.value, *label_values).observe(
            run.active_seconds
        )
        started_at = run.started_at or run.finished_at
        if started_at is not None:
            waited = (started_at - run.created_at).total_seconds()
            self._waited(run.kind.value).observe(max(0.0, waited))
        if (stop := run.stop) is not None:
            self._stopped(self._stops(stop["kind"]), self._stops(stop.get("dimension"))).inc()
        usage = run.usage or {}
        if steps := usage.get("steps"):
            self._steps().inc(steps)
        if turns := usage.get("turns"):
            self._turns().inc(turns)
        if graph is None:
            return
        nodes = graph["nodes"]
        if len(nodes) <= AT_ONCE:
            self._count(nodes, label_values)
            return
        counting = asyncio.to_thread(self._count, nodes, label_values)
        self._counting.add(task := asyncio.create_task(counting, name="metrics of a large run"))
        task.add_done_callback(self._counting.discard)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request; ``route`` is the path template, not the actual path."""
        self._request_seconds(method, route, str(status)).observe(seconds)

    def _label_values(self, run: Run) -> tuple[str, ...]:
        """Return the values of the labels that the operator enabled."""
        if not self._labels:
            return ()
        ref = run.request.definition_ref
        values = {"tenant": run.key.tenant, "agent": None if ref is None else ref.name}
        return tuple(self._values[label](values[label]) for label in self._labels)

    def _count(self, nodes: Mapping[str, Mapping[str, Any]], label_values: tuple[str, ...]) -> None:
        for node in nodes.values():
            kind = node["kind"]
            if node["retries_used"]:
                self._retries("step" if kind == "system" else kind).inc(node["retries_used"])
            if kind == "system" or (node["metadata"] and imported_from_run(node) is not None):
                continue
            seconds = ((node["end_ts_ms"] or node["start_ts_ms"]) - node["start_ts_ms"]) / 1000
            if kind == "tool":
                self._tool_seconds(self._tools(node["name"]), node["status"]).observe(seconds)
                continue
            model = self._models(node["model"])
            if node["metadata"] and (overrun := node["metadata"].get(OVERRUN_USD)):
                self._overrun(model).inc(overrun)
            for repair in node["metadata"].get("repairs", ()) if node["metadata"] else ():
                self._repairs(self._repaired(repair)).inc()
            self._model_seconds(model, node["status"]).observe(seconds)
            if node["tokens_in"]:
                self._tokens(model, "input").inc(node["tokens_in"])
            if node["tokens_out"]:
                self._tokens(model, "output").inc(node["tokens_out"])
            if node["cost_usd"]:
                self._cost(model, *label_values).inc(node["cost_usd"])
