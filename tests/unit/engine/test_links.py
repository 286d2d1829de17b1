"""Links: each linked step is created once for its consumers, and cycles are reported."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from caseworker.core.graph.graph import Channel
from caseworker.engine.context import ExecutionResult, FlowContext
from caseworker.engine.materializer import LinkCycleError
from tests.unit.engine.driving import Scripted, drive, flow, graph, link, statuses

Inputs = Mapping[str, Any]


class Linked(Scripted):
    """Create scripted materials; a step of the flow resolves the links of its tools handle."""

    def __init__(self, **materials: Callable[[str, FlowContext], Any]) -> None:
        super().__init__()
        self.materials = materials
        self.made: list[tuple[str, str]] = []
        self.results: dict[str, Any] = {}

    async def execute(self, data: Any, inputs: Inputs, context: FlowContext) -> Any:
        self.seen.append((context.node_id, inputs))
        found = await context.runtime.resolve_links(context.node_id, "tools")
        self.results[context.node_id] = found
        return ExecutionResult({"default": found})

    async def materialize(self, data: Any, output_handle: str, context: FlowContext) -> Any:
        self.made.append((context.node_id, output_handle))
        await asyncio.sleep(1)
        material = self.materials.get(context.node_id)
        if material is not None:
            return await material(output_handle, context)
        below = await context.runtime.resolve_links(context.node_id, "tools")
        return {context.node_id: below}


@pytest.mark.req("004/materialize", "004/pipeline")
def test_a_step_gets_what_is_linked_to_it_in_the_order_of_the_edges() -> None:
    """A step's links resolve in edge order; linked steps are materialised, never executed."""
    node = Linked()
    outcome, world = drive(
        graph(
            "ABxyz",
            flow("A", "B"),
            link("x", "B", into="tools"),
            link("y", "B", into="tools"),
            link("z", "y", into="tools"),
        ),
        node,
    )

    assert node.results == {"A": [], "B": [{"x": []}, {"y": [{"z": []}]}]}
    assert statuses(outcome) == {"A": "completed", "B": "completed"}
    assert [step_id for step_id, _ in node.seen] == ["A", "B"]
    assert world.lifecycle("x") == []
    nodes = {n["name"]: n for n in world.gateway.graph.snapshot()["nodes"].values()}
    assert nodes["x"]["parent_id"] == nodes["B"]["node_id"]
    assert nodes["z"]["parent_id"] == nodes["y"]["node_id"]
    assert nodes["x"]["metadata"] == {"materializes": "default"}


@pytest.mark.req("004/materialize", "004/runtime-api")
def test_what_several_steps_need_is_made_once() -> None:
    """A linked output is materialised once, even for concurrent and indirect consumers."""
    node = Linked()
    wide = graph(
        "ABCxy",
        link("x", "A", into="tools"),
        link("x", "B", into="tools"),
        link("y", "C", into="tools"),
        link("x", "y", into="tools"),
        max_parallel=3,
    )
    drive(wide, node)

    assert sorted(node.made) == [("x", "default"), ("y", "default")]
    assert node.results["A"][0] is node.results["B"][0]
    assert node.results["C"] == [{"y": [{"x": []}]}]


@pytest.mark.req("004/materialize")
def test_each_output_is_made_on_its_own() -> None:
    """Each output handle of a linked step is materialised separately."""

    async def offers(handle: str, context: FlowContext) -> Any:
        return handle

    node = Linked(x=offers)
    drive(
        graph("Ax", link("x", "A", "one", "tools"), link("x", "A", "two", "tools")),
        node,
    )

    assert node.results["A"] == ["one", "two"]


@pytest.mark.req("004/materialize")
@pytest.mark.parametrize("seed", range(20))
def test_a_cycle_of_links_is_named_and_never_waited_for(seed: int) -> None:
    """A cycle that two steps enter at once is reported with its path instead of a deadlock."""
    node = Linked()
    outcome, world = drive(
        graph(
            "ABxy",
            link("x", "A", into="tools"),
            link("y", "B", into="tools"),
            link("y", "x", into="tools"),
            link("x", "y", into="tools"),
            max_parallel=2,
        ),
        node,
        seed=seed,
    )

    assert isinstance(outcome.error, LinkCycleError)
    assert "x.default" in str(outcome.error)
    assert "y.default" in str(outcome.error)
    assert " -> " in str(outcome.error)
    assert world.ended_at < 10


@pytest.mark.req("004/materialize")
def test_a_step_that_depends_on_itself_is_a_cycle() -> None:
    """The error message shows the path of the cycle."""
    node = Linked()
    outcome, _ = drive(
        graph("Ax", link("x", "A", into="tools"), link("x", "x", into="tools")), node
    )

    assert str(outcome.error) == "Links depend on themselves: x.default -> x.default."


def test_what_fails_to_be_made_fails_the_step_and_is_tried_again_by_the_next() -> None:
    """A failed materialisation is not cached, so the next request tries again."""
    attempts: list[str] = []

    async def fails_once(handle: str, context: FlowContext) -> Any:
        attempts.append(handle)
        if len(attempts) == 1:
            raise RuntimeError("something private")
        return "made"

    async def tries_twice(context: FlowContext) -> list[Any]:
        try:
            return await context.runtime.resolve_links("A", "tools")
        except RuntimeError:
            return await context.runtime.resolve_links("A", "tools")

    class Twice(Linked):
        async def execute(self, data: Any, inputs: Inputs, context: FlowContext) -> Any:
            return ExecutionResult({"default": await tries_twice(context)})

    outcome, world = drive(graph("Ax", link("x", "A", into="tools")), Twice(x=fails_once))

    assert outcome.steps["A"].outputs == {"default": ["made"]}
    made = [n for n in world.gateway.graph.snapshot()["nodes"].values() if n["name"] == "x"]
    assert [n["status"] for n in made] == ["fail", "success"]
    assert made[0]["stop_reason"] == "It could not be materialised."


def test_a_step_that_makes_nothing_cannot_be_linked() -> None:
    """Linking to a step that materialises nothing fails with a message that names the step."""

    class Asks(Scripted):
        async def execute(self, data: Any, inputs: Inputs, context: FlowContext) -> Any:
            await context.runtime.materialize_output("x", "default")

    outcome, _ = drive(graph("Ax", link("x", "A")), Asks())

    assert str(outcome.error) == "Step 'x' cannot be linked: it provides nothing."


@pytest.mark.req("004/runtime-api")
def test_a_node_can_ask_for_its_surroundings() -> None:
    """The runtime lists steps and edges by channel and handle, and offers a cache for all steps."""
    found: dict[str, Any] = {}

    class Asks(Scripted):
        async def execute(self, data: Any, inputs: Inputs, context: FlowContext) -> Any:
            runtime = context.runtime
            if context.node_id == "A":
                runtime.cache_set("key", "value")
                return ExecutionResult({"default": 1})
            found["cached"] = runtime.cache_get("key"), runtime.cache_get("no", "default")
            found["node"] = runtime.get_node("A").type
            found["in"] = [edge.source for edge in runtime.incoming_edges("B")]
            found["flow"] = [
                edge.source for edge in runtime.incoming_edges("B", channel=Channel.FLOW)
            ]
            found["handle"] = [
                edge.source for edge in runtime.incoming_edges("B", target_handle="tools")
            ]
            found["out"] = [edge.target for edge in runtime.outgoing_edges("A")]
            found["out handle"] = runtime.outgoing_edges("A", source_handle="other")
            found["upstream"] = dict(context.upstream)
            with pytest.raises(LookupError, match="no step 'Z'"):
                runtime.get_node("Z")
            return ExecutionResult({"default": 2})

    outcome, _ = drive(graph("ABx", flow("A", "B"), link("x", "B", into="tools")), Asks())

    assert outcome.error is None
    assert found == {
        "cached": ("value", "default"),
        "node": "scripted",
        "in": ["A", "x"],
        "flow": ["A"],
        "handle": ["x"],
        "out": ["B"],
        "out handle": [],
        "upstream": {"A": {"default": 1}},
    }
