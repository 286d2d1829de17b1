"""Computes ("materialises") the values that linked steps provide to the steps that need them.

Each output is materialised once per execution of its graph; concurrent consumers wait for it.
Before a consumer waits, the wait-for graph is searched for a cycle. So a cycle is reported instead
of causing a deadlock, even if several steps enter it concurrently.

See docs/internals.md, "How a graph is executed".
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caseworker.core.graph.graph import Channel, Edge, GraphStep
from caseworker.engine.context import FlowContext, Materializing
from caseworker.engine.prepared import PreparedGraph

Output = tuple[str, str]
"""A step ID and the name of one of the step's output handles."""


class LinkCycleError(Exception):
    """A step depends on itself through links; the message names the cycle."""


class Materializer:
    """Materialises the links in one execution of one graph, and caches the values."""

    def __init__(self, prepared: PreparedGraph) -> None:
        self.prepared = prepared
        self.cache: dict[str, Any] = {}
        self._values: dict[Output, Any] = {}
        self._making: dict[Output, asyncio.Event] = {}
        self._needs: dict[Output, set[Output]] = {}
        """The wait-for graph: for each output in progress, the outputs that it waits for now."""
        self._by_source: dict[str, list[Edge]] = {}
        self._by_target: dict[str, list[Edge]] = {}
        for edge in prepared.graph.edges:
            self._by_source.setdefault(edge.source, []).append(edge)
            self._by_target.setdefault(edge.target, []).append(edge)

    def edges(self, node_id: str, *, incoming: bool) -> Sequence[Edge]:
        """Return the incoming or the outgoing edges of a step."""
        index = self._by_target if incoming else self._by_source
        return index.get(node_id, ())

    async def materialize(
        self, output: Output, context: FlowContext, way: tuple[Output, ...]
    ) -> Any:
        """Return an output of a linked step; materialise it on first use.

        ``way`` lists the outputs whose materialisation led here, outermost first.

        Raises:
            LinkCycleError: the output depends on itself.
            LookupError: the graph has no such step.
            TypeError: the step cannot be materialised.
        """
        # Loops because the consumer that materialises the output may fail; the next one retries.
        while output not in self._values:
            self._refuse_cycle(output, way)
            ready = self._making.get(output)
            if ready is None:
                return await self._make(output, context, way)
            await self._wait_for(output, ready, way)
        return self._values[output]

    async def _wait_for(
        self, output: Output, ready: asyncio.Event, way: tuple[Output, ...]
    ) -> None:
        if not way:
            await ready.wait()
            return
        needs = self._needs.setdefault(way[-1], set())
        needs.add(output)
        try:
            await ready.wait()
        finally:
            needs.discard(output)

    async def _make(self, output: Output, context: FlowContext, way: tuple[Output, ...]) -> Any:
        step_id, handle = output
        work = self._work_of(step_id)
        ready = self._making[output] = asyncio.Event()
        trace, started = context.run.trace, None
        try:
            started = trace.begin_node(
                context.trace_parent, "system", step_id, metadata={"materializes": handle}
            )
            trace.mark_running(started)
            inner = FlowContext(
                run=context.run,
                view=_Linked(self, (*way, output)),
                node_id=step_id,
                path=context.path.linked(step_id),
                trace_parent=started,
                scope=context.scope,
                keep=lambda _: None,
            )
            value = await work.materialize(self.prepared.steps[step_id].work.data, handle, inner)
        except Exception as error:
            if started is not None:
                trace.mark_failure(started, type(error).__name__, "It could not be materialised.")
            raise
        except BaseException as stop:
            if started is not None:
                trace.mark_halt(started, str(stop) or type(stop).__name__)
            raise
        finally:
            del self._making[output]
            ready.set()
        # No await from here on, so that woken consumers find the value in ``_made``.
        trace.mark_success(started, 0)
        self._values[output] = value
        return value

    def _work_of(self, step_id: str) -> Materializing:
        if step_id not in self.prepared.steps:
            raise LookupError(f"The graph has no step {step_id!r}.")
        node = self.prepared.steps[step_id].work.node
        if not isinstance(node, Materializing):
            raise TypeError(f"Step {step_id!r} cannot be linked: it provides nothing.")
        return node

    def _refuse_cycle(self, output: Output, way: tuple[Output, ...]) -> None:
        """Search the wait-for graph from ``output``; raise if it leads back to ``way``."""
        seen: set[Output] = {output}
        open_ways: list[tuple[Output, ...]] = [(output,)]
        while open_ways:
            ahead = open_ways.pop()
            if ahead[-1] in way:
                outputs = way[way.index(ahead[-1]) :] + ahead
                cycle = " -> ".join(f"{step_id}.{handle}" for step_id, handle in outputs)
                raise LinkCycleError(f"Links depend on themselves: {cycle}.")
            for needed in self._needs.get(ahead[-1], ()):
                if needed not in seen:
                    seen.add(needed)
                    open_ways.append((*ahead, needed))


@dataclass(frozen=True, slots=True)
class _Linked:
    """The graph view of a step while it is materialised; such a step has no inputs."""

    materializer: Materializer
    way: tuple[Output, ...]

    def upstream(self, step_id: str) -> Mapping[str, Mapping[str, Any]]:
        return {}

    def runtime(self, context: FlowContext) -> "GraphRuntime":
        return GraphRuntime(self.materializer, context, self.way)


@dataclass(frozen=True, slots=True)
class GraphRuntime:
    """Lets a step query its graph; implements ``Runtime``."""

    _materializer: Materializer
    _context: FlowContext
    _way: tuple[Output, ...] = ()

    def get_node(self, node_id: str) -> GraphStep:
        """Return a step.

        Raises:
            LookupError: the graph has no such step.
        """
        try:
            return self._materializer.prepared.steps[node_id].step
        except KeyError:
            raise LookupError(f"The graph has no step {node_id!r}.") from None

    def incoming_edges(
        self, node_id: str, *, channel: Channel | None = None, target_handle: str | None = None
    ) -> Sequence[Edge]:
        """Return the incoming edges of a step."""
        return [
            edge
            for edge in self._materializer.edges(node_id, incoming=True)
            if channel in (None, edge.channel) and target_handle in (None, edge.target_handle)
        ]

    def outgoing_edges(
        self, node_id: str, *, channel: Channel | None = None, source_handle: str | None = None
    ) -> Sequence[Edge]:
        """Return the outgoing edges of a step."""
        return [
            edge
            for edge in self._materializer.edges(node_id, incoming=False)
            if channel in (None, edge.channel) and source_handle in (None, edge.source_handle)
        ]

    async def resolve_links(self, node_id: str, target_handle: str) -> list[Any]:
        """Materialise all links to an input handle and return the values in edge order."""
        return [
            await self.materialize_output(edge.source, edge.source_handle)
            for edge in self._materializer.edges(node_id, incoming=True)
            if edge.channel is Channel.LINK and edge.target_handle == target_handle
        ]

    async def materialize_output(self, node_id: str, output_handle: str) -> Any:
        """Materialise an output of a step."""
        return await self._materializer.materialize(
            (node_id, output_handle), self._context, self._way
        )

    def cache_get(self, key: str, default: Any = None) -> Any:
        """Return a value from the cache of this graph execution."""
        return self._materializer.cache.get(key, default)

    def cache_set(self, key: str, value: Any) -> None:
        """Cache a value for the other steps of this graph execution."""
        self._materializer.cache[key] = value
