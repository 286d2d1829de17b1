"""Large bodies, graphs and maps are processed outside the event loop; small ones are not."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from caseworker.nodes.catalog import NodeCatalog
from caseworker.nodes.subgraph import MapData
from caseworker.platform.http import request as requests
from caseworker.runs.accept import definitions
from caseworker.runs.accept.expansion import Expansion, GraphSize
from caseworker.runs.http import runs
from tests.support.graph_documents import flat
from tests.support.tenants import Tenants

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUTES = [{"when": {"path": "default", "op": "exists"}, "to": "a"}]
LARGE = 2_000
"""Number of steps or items that make a graph or a map large."""


Noted = Callable[[Any, str], list[bool]]


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    """Return a function that notes for each call of a function whether it held the event loop."""

    def note(owner: Any, name: str) -> list[bool]:
        on_loop: list[bool] = []
        original = owner.__dict__[name]
        call = original.__func__ if isinstance(original, classmethod) else original

        def noting(*given: Any, **options: Any) -> Any:
            on_loop.append(threading.current_thread() is threading.main_thread())
            return call(*given, **options)

        replacement = classmethod(noting) if isinstance(original, classmethod) else noting
        monkeypatch.setattr(owner, name, replacement)
        return on_loop

    return note


def graph_run(steps: int, name: str = "s") -> dict[str, Any]:
    """Return the body of a run; ``name`` makes its graph another one, which no cache holds."""
    step = {"type": "router", "data": {"routes": ROUTES}}
    graph = {"steps": [{"id": f"{name}{n}", **step} for n in range(steps)], "edges": []}
    return {"kind": "graph", "graph": graph, "inputs": {"default": 1}}


@pytest.mark.parametrize(("steps", "on_loop"), [(2, True), (LARGE, False)])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (requests, "read_json"),
        (runs, "request_hash"),
        (NodeCatalog, "examine"),
        (GraphSize, "of"),
        (Expansion, "_named_in"),
        (Expansion, "_filled"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
async def test_a_large_graph_of_a_run_holds_up_no_other_request(
    tenants: Tenants, noted: Noted, owner: Any, name: str, steps: int, on_loop: bool
) -> None:
    """It is read, hashed, measured, expanded and checked in a thread."""
    calls = noted(owner, name)

    run = await tenants.ask("a", "POST", "/runs", graph_run(steps, name), prefer="wait=60")

    assert run.json()["status"] == "completed", run.text
    assert set(calls) == {on_loop}


@pytest.mark.parametrize(("steps", "on_loop"), [(2, True), (LARGE, False)])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(requests, "read_json"), (definitions, "canonical"), (NodeCatalog, "examine")],
    ids=lambda each: each if isinstance(each, str) else "",
)
async def test_a_large_graph_to_register_holds_up_no_other_request(
    tenants: Tenants, noted: Noted, owner: Any, name: str, steps: int, on_loop: bool
) -> None:
    """It is read, checked and written as canonical JSON in a thread."""
    calls = noted(owner, name)
    graph = flat(*(f"step-{n}-{'x' * 30}" for n in range(steps)))

    answer = await tenants.ask("a", "POST", "/graphs", {"name": "g", "graph": graph})

    assert answer.is_success, answer.text
    assert set(calls) == {on_loop}


async def test_a_small_graph_that_contains_a_large_one_holds_up_no_other_request(
    tenants: Tenants, noted: Noted
) -> None:
    """What counts is the size of the graph with all that it contains."""
    large = graph_run(LARGE)["graph"]
    await tenants.ask("a", "POST", "/graphs", {"name": "large", "graph": large})
    examined, filled = noted(NodeCatalog, "examine"), noted(Expansion, "_filled")
    outputs = {"x": {"step": "s0", "handle": "a"}}
    step = {"id": "s", "type": "subgraph", "data": {"graph": {"name": "large"}, "outputs": outputs}}
    body = {"kind": "graph", "graph": {"steps": [step], "edges": []}, "inputs": {"default": 1}}

    run = await tenants.ask("a", "POST", "/runs", body, prefer="wait=60")

    assert run.json()["status"] == "completed", run.text
    assert set(examined) == {False}
    assert filled[0] is False


@pytest.mark.parametrize(("items", "on_loop"), [(3, True), (LARGE + 1, False)])
@pytest.mark.parametrize("name", ["graph_for", "outputs_of"])
async def test_a_map_of_many_items_holds_up_no_other_run(
    tenants: Tenants, noted: Noted, name: str, items: int, on_loop: bool
) -> None:
    """Its graph is built, and its outputs are collected, in a thread."""
    calls = noted(MapData, name)
    data = {"max_items": 5000, "step": {"type": "router", "data": {"routes": ROUTES}}}
    graph = {"steps": [{"id": "m", "type": "map", "data": data}], "edges": []}
    body = {"kind": "graph", "graph": graph, "inputs": {"default": list(range(items))}}

    run = await tenants.ask("a", "POST", "/runs", body, prefer="wait=60")

    assert run.json()["status"] == "completed", run.text
    assert calls[-1] is on_loop
