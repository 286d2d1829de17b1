"""Short notation for graphs: steps are single letters or a list of names."""

from collections.abc import Iterable
from itertools import pairwise

from caseworker.core.graph.graph import DEFAULT_HANDLE, Channel, Edge, GraphStep, StepGraph


def flow(
    source: str, target: str, handle: str = DEFAULT_HANDLE, into: str = DEFAULT_HANDLE
) -> Edge:
    return Edge(
        source=source,
        target=target,
        source_handle=handle,
        target_handle=into,
        channel=Channel.FLOW,
    )


def link(
    source: str, target: str, handle: str = DEFAULT_HANDLE, into: str = DEFAULT_HANDLE
) -> Edge:
    return Edge(
        source=source,
        target=target,
        source_handle=handle,
        target_handle=into,
        channel=Channel.LINK,
    )


def graph(
    steps: Iterable[str],
    *edges: Edge,
    entry: Iterable[str] | None = None,
    max_parallel: int = 9,
) -> StepGraph:
    return StepGraph(
        id="g",
        steps=tuple(GraphStep(id=name, type="any") for name in steps),
        edges=edges,
        entry=None if entry is None else tuple(entry),
        max_parallel=max_parallel,
    )


def row(count: int) -> StepGraph:
    """Return steps ``0``, ``1``, ... one after the other."""
    names = [str(index) for index in range(count)]
    return graph(names, *(flow(one, other) for one, other in pairwise(names)))


def fan(width: int, *, max_parallel: int = 9) -> StepGraph:
    """Return ``width`` steps between ``first`` and ``last``."""
    lanes = [f"lane{index}" for index in range(width)]
    out = (flow("first", lane) for lane in lanes)
    back = (flow(lane, "last") for lane in lanes)
    return graph(["first", *lanes, "last"], *out, *back, max_parallel=max_parallel)
