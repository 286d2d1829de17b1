"""Graphs that are steps of other graphs."""

import asyncio
from typing import Any

import pytest

from tests.unit.nodes.world import NodeRun, flow, function, graph, settle_down, step


@function("twice")
def twice(context: Any) -> Any:
    return context.input * 2


@function("break")
def broken(context: Any) -> Any:
    raise ValueError("it broke")


TWICE = {"name": "twice"}
INNER = graph(step("a", "function", TWICE), step("b", "function", TWICE), flow("a", "b"))


def outer(inner: dict[str, Any] | None = None, **data: Any) -> dict[str, Any]:
    return graph(step("s", "subgraph", {"graph": inner or INNER, **data}))


def node_run(**settings: Any) -> NodeRun:
    return NodeRun(functions=[twice, broken], **settings)


async def test_a_graph_works_on_the_inputs_of_its_step() -> None:
    """The output of the only last step becomes the step's output; inner steps have nested paths."""
    here = node_run()

    assert (await here.run(outer(), default=3)).steps["s"].outputs == {"default": 12}
    assert here.began() == ["s", "s/a", "s/b"]


async def test_outputs_can_be_chosen_and_named() -> None:
    """An output can come from any executed step."""
    outputs = {
        "half": {"step": "a", "handle": "default"},
        "whole": {"step": "b", "handle": "default"},
    }

    outcome = await node_run().run(outer(outputs=outputs), default=3)

    assert outcome.steps["s"].outputs == {"half": 6, "whole": 12}


async def test_an_output_that_a_dead_path_leads_to_is_not_produced() -> None:
    """Edges from the missing output are dead in the outer graph."""
    inner = graph(
        step(
            "r",
            "router",
            {
                "routes": [{"when": {"path": "default", "op": "exists"}, "to": "a"}],
                "otherwise": "b",
            },
        ),
        step("x", "function", TWICE),
        step("y", "function", TWICE),
        flow("r", "x", "a"),
        flow("r", "y", "b"),
    )
    outputs = {
        "yes": {"step": "x", "handle": "default"},
        "no": {"step": "y", "handle": "default"},
    }
    of = graph(
        step("s", "subgraph", {"graph": inner, "outputs": outputs}),
        step("after", "function", TWICE),
        flow("s", "after", "no"),
    )

    outcome = await node_run().run(of, default=3)

    assert outcome.steps["s"].outputs == {"yes": 6}
    assert outcome.steps["after"].status == "skipped"


async def test_a_failure_inside_is_a_failure_of_the_step_and_what_was_produced_is_kept() -> None:
    """The policy of the outer step applies."""
    inner = graph(
        step("a", "function", TWICE), step("b", "function", {"name": "break"}), flow("a", "b")
    )
    outputs = {
        "half": {"step": "a", "handle": "default"},
        "whole": {"step": "b", "handle": "default"},
    }

    outcome = await node_run().run(outer(inner, outputs=outputs), default=3)

    assert isinstance(outcome.error, ValueError)
    assert (outcome.steps["s"].status, outcome.steps["s"].outputs) == ("failed", {"half": 6})


async def test_a_graph_that_is_stopped_keeps_what_it_had_produced() -> None:
    """Outputs of the inner steps are kept too."""
    begun = asyncio.Event()

    @function("wait")
    async def waiting(context: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    inner = graph(
        step("a", "function", TWICE), step("b", "function", {"name": "wait"}), flow("a", "b")
    )
    outputs = {"half": {"step": "a", "handle": "default"}}
    here = NodeRun(functions=[twice, waiting])
    running = asyncio.create_task(here.run(outer(inner, outputs=outputs), default=3))
    await begun.wait()

    here.token.cancel("enough")
    running.cancel()
    outcome = await running
    await settle_down()

    assert (outcome.steps["s"].status, outcome.steps["s"].outputs) == ("cancelled", {"half": 6})


@pytest.mark.parametrize(
    ("inner", "data", "places"),
    [
        (graph(step("a", "function", TWICE), step("b", "function", TWICE)), {}, ["outputs"]),
        (INNER, {"outputs": {"x": {"step": "c", "handle": "default"}}}, ["outputs.x.step"]),
        (INNER, {"outputs": {"x": {"step": "b", "handle": "other"}}}, ["outputs.x.handle"]),
        (INNER, {"outputs": {"x": {"step": "b"}}}, ["outputs.x.handle"]),
        ({"steps": [], "edges": []}, {}, ["graph.steps"]),
        ({"name": "registered"}, {}, ["graph"]),
        ("graph", {}, ["graph"]),
    ],
)
def test_a_graph_and_its_outputs_are_checked(
    inner: Any, data: dict[str, Any], places: list[str]
) -> None:
    """With several last steps, the outputs must be named."""
    assert node_run().places(outer(inner, **data)) == [f"steps.0.data.{place}" for place in places]


def test_edges_leave_a_subgraph_on_its_outputs_only() -> None:
    """The outputs are the named ones, or those of the last step."""
    for data in ({}, {"outputs": {"x": {"step": "b", "handle": "default"}}}):
        of = outer(**data)
        of["steps"].append(step("t", "function", TWICE))
        of["edges"] = [flow("s", "t", "y")]
        assert node_run().places(of) == ["edges.0.source_handle"]
