"""How large a graph is, with the graphs that stand inside it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from app.kernel.validation import Problem
from app.runs.graphs import GraphLimits

NESTED = "graph"
"""The key under which a graph stands in the data of a step."""

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def canonical(graph: Mapping[str, Any]) -> bytes:
    """Return a graph as JSON that is the same for graphs that are equal."""
    return _CANONICAL.encode(graph).encode()


@dataclass(frozen=True, slots=True)
class GraphSize:
    """What the limits of graphs are compared with."""

    size_bytes: int
    steps: int
    edges: int
    depth: int

    @classmethod
    def of(cls, graph: Mapping[str, Any]) -> Self:
        """Measure a graph; one that is given by name counts as the name."""
        steps = edges = depth = 0
        level: list[Mapping[str, Any]] = [graph]
        while level:
            depth += 1
            steps += sum(_length(one.get("steps")) for one in level)
            edges += sum(_length(one.get("edges")) for one in level)
            level = [inner for one in level for inner in _graphs_in(one)]
        return cls(len(canonical(graph)), steps, edges, depth)

    def with_inside(self, inner: Self, *, level: int) -> Self:
        """Return the size once ``inner`` stands in it, below ``level`` graphs."""
        return type(self)(
            self.size_bytes + inner.size_bytes,
            self.steps + inner.steps,
            self.edges + inner.edges,
            max(self.depth, level + inner.depth),
        )

    def beyond(self, limits: GraphLimits) -> tuple[Problem, ...]:
        """Return what is too large."""
        compared = (
            (self.size_bytes, limits.max_bytes, "take at most {} bytes as JSON", "max_graph_bytes"),
            (self.steps, limits.max_steps, "have at most {} steps", "max_graph_steps"),
            (self.edges, limits.max_edges, "have at most {} edges", "max_graph_edges"),
            (self.depth, limits.max_depth, "nest at most {} deep", "max_graph_depth"),
        )
        return tuple(
            Problem("", f"A graph may {what.format(most)}, with all in it ({name}).")
            for size, most, what, name in compared
            if size > most
        )


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _graphs_in(graph: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the graphs that stand directly inside a graph."""
    unseen: list[Any] = [graph]
    while unseen:
        value = unseen.pop()
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if key == NESTED and isinstance(inner, dict) and isinstance(inner.get("steps"), list):
                yield inner
            elif isinstance(inner, dict | list):
                unseen.append(inner)
