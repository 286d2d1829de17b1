"""Graphs to post and to register."""

import hashlib
from typing import Any

from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.accept.expansion import canonical
from caseworker.runs.graphs import NewDefinition
from caseworker.runs.run import DefinitionRef

TENANT = "default"


def flat(*step_ids: str, **members: Any) -> dict[str, Any]:
    """Return a graph of unconnected steps."""
    steps = [{"id": step_id, "type": "case", "data": {}} for step_id in step_ids]
    return {"steps": steps, "edges": [], **members}


def half_used() -> dict[str, Any]:
    """Return a graph with a warning: its second step is never executed."""
    return flat("a", "b", entry=["a"])


def edge(source: str, target: str, **data: Any) -> dict[str, Any]:
    """Return an edge between the default handles with ``data``."""
    handles = {"source_handle": "default", "target_handle": "default"}
    return {"source": source, "target": target, **handles, "data": data}


def containing(*inner: dict[str, Any], kind: str = "subgraph") -> dict[str, Any]:
    """Return a graph with a step for each nested graph, inline or by name."""
    steps = [
        {"id": f"inner-{index}", "type": kind, "data": {"graph": graph, "outputs": {}}}
        for index, graph in enumerate(inner)
    ]
    return {"steps": steps, "edges": []}


def named(name: str, version: int | None = None) -> dict[str, Any]:
    """Return a reference to a registered graph, used instead of the graph."""
    return {"name": name} if version is None else {"name": name, "version": version}


def new_graph(
    name: str,
    graph: dict[str, Any] | None = None,
    *,
    uses: tuple[DefinitionRef, ...] = (),
    tenant: str = TENANT,
    description: str | None = None,
    kind: DefinitionKind = DefinitionKind.GRAPH,
) -> NewDefinition:
    """Return a graph, or another kind of definition, as the service passes it to the store."""
    graph = graph or flat("a")
    text = canonical(graph)
    return NewDefinition(
        tenant=tenant,
        kind=kind,
        name=name,
        description=description,
        content=graph,
        sha256=hashlib.sha256(text).hexdigest(),
        size_bytes=len(text),
        uses=uses,
    )


def llm_step(step_id: str, prompt: str, **more: Any) -> dict[str, Any]:
    """Return a step that calls the small model."""
    return {"id": step_id, "type": "llm", "data": {"prompt": prompt}, **more}


def flow(source: str, target: str, handle: str) -> dict[str, Any]:
    return {**edge(source, target, channel="flow"), "target_handle": handle}


def map_run(prompt: str, items: int, *, lanes: int) -> dict[str, Any]:
    """Return a graph that calls the small model for each item of a list, on several lanes."""
    inner = {"type": "llm", "data": {"prompt": prompt}}
    data = {"step": inner, "max_parallel": lanes}
    return {
        "kind": "graph",
        "graph": {"steps": [{"id": "m", "type": "map", "data": data}], "edges": []},
        "inputs": {"default": list(range(items))},
    }


def tool_step(step_id: str, tool: str, **args: Any) -> dict[str, Any]:
    return {"id": step_id, "type": "tool", "data": {"tool": tool, "args": args}}
