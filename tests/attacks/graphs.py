"""Graphs that are small to write and large to execute."""

from itertools import pairwise
from typing import Any

Graph = dict[str, Any]

_FLOW = {"channel": "flow"}
_ALWAYS = {"path": "default", "op": "exists"}


def _router(step_id: str, *handles: str, mode: str = "all") -> dict[str, Any]:
    routes = [{"when": _ALWAYS, "to": handle} for handle in handles]
    return {"id": step_id, "type": "router", "data": {"mode": mode, "routes": routes}}


def _edge(source: str, handle: str, target: str) -> dict[str, Any]:
    return {
        "source": source,
        "source_handle": handle,
        "target": target,
        "target_handle": "default",
        "data": _FLOW,
    }


def laughs(steps: int, width: int) -> Graph:
    """Return routers of ``width`` handles, each joined into one input: values grow every step."""
    handles = [f"o{number}" for number in range(width)]
    return {
        "steps": [_router(f"r{number}", *handles) for number in range(steps)],
        "edges": [
            _edge(f"r{number}", handle, f"r{number + 1}")
            for number in range(steps - 1)
            for handle in handles
        ],
    }


def deep(levels: int) -> Graph:
    """Return a chain in which every step wraps the previous value in a list."""
    chain = [f"s{number}" for number in range(levels)]
    edges = [_edge("k", "o", chain[0])]
    for before, after in pairwise(chain):
        edges += [_edge(before, "o", after), _edge("k", "o", after)]
    return {"steps": [_router(name, "o") for name in ("k", *chain)], "edges": edges}


def repeat_input(name: str) -> Graph:
    """Return a map whose every item is the input ``name``."""
    route = {"when": {"path": name, "op": "exists"}, "to": "default"}
    step = {"type": "router", "data": {"routes": [route], "value": name}}
    data = {"over": "default", "step": step, "max_items": 10_000}
    return {"steps": [{"id": "m", "type": "map", "data": data}], "edges": []}


def patterns(count: int, *, repeated: int) -> Graph:
    """Return a step whose JSON Schema is short and slow to compile."""
    written = [{"pattern": f"[\\p{{L}}\\p{{N}}]{{{repeated}}}{number}"} for number in range(count)]
    data = {"prompt": "x", "output_schema": {"allOf": written}}
    return {"steps": [{"id": "a", "type": "llm", "data": data}], "edges": []}


def nested_maps() -> Graph:
    """Return a map over ``list`` in a map in a map."""
    step: dict[str, Any] = {
        "type": "router",
        "data": {"routes": [{"when": _ALWAYS, "to": "default"}], "value": "index"},
    }
    for _ in range(3):
        step = {"type": "map", "data": {"over": "list", "step": step, "max_items": 10_000}}
    return {"steps": [{"id": "m", **step}], "edges": []}


def doubling_schema(levels: int) -> Graph:
    """Return an approval whose schema refers twice to the next of ``levels`` schemas, and so on."""
    both = {f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(levels)}
    definitions = both | {f"d{levels}": {"type": "integer"}}
    changes = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions}
    data = {"message": "?", "changes": changes}
    return {"steps": [{"id": "a", "type": "approval", "data": data}], "edges": []}
