"""Routers pass a value on and skip the branches that get none."""

from typing import Any

import pytest

from caseworker.nodes.templates import MissingValueError
from tests.unit.nodes.world import NodeRun, flow, function, graph, step


@function("echo")
def echo(context: Any) -> Any:
    return context.input


def routed(*ways: str, **router: Any) -> dict[str, Any]:
    """Return a router with one step behind each of its routes."""
    behind = [step(way, "function", {"name": "echo"}) for way in ways]
    edges = [flow("r", way, way) for way in ways]
    return graph(step("r", "router", router), *behind, *edges)


def route(to: str, op: str, *value: Any, path: str = "default") -> dict[str, Any]:
    comparison = {"path": path, "op": op, **({"value": value[0]} if value else {})}
    return {"when": comparison, "to": to}


PRICES = [route("cheap", "lt", 10), route("fair", "lt", 100)]


async def reached(of: dict[str, Any], **inputs: Any) -> dict[str, Any]:
    """Return the output of each step whose branch was taken."""
    outcome = await NodeRun(functions=[echo]).run(of, **inputs)
    assert outcome.error is None
    return {
        step_id: report.outputs["default"]
        for step_id, report in outcome.steps.items()
        if step_id != "r" and report.status == "completed"
    }


@pytest.mark.parametrize(
    ("price", "way"),
    [
        (5, {"cheap": 5}),
        (50, {"fair": 50}),
        (500, {"dear": 500}),
        ("5", {"cheap": "5"}),
        ("five", {"dear": "five"}),
    ],
)
async def test_the_first_route_that_applies_is_taken(price: Any, way: dict[str, Any]) -> None:
    """If no route matches, `otherwise` is taken; the other branches are skipped."""
    of = routed("cheap", "fair", "dear", routes=PRICES, otherwise="dear")

    assert await reached(of, default=price) == way


async def test_all_routes_that_apply_can_be_taken() -> None:
    """The mode `all` takes every matching route."""
    of = routed("cheap", "fair", routes=PRICES, mode="all")

    assert await reached(of, default=5) == {"cheap": 5, "fair": 5}


async def test_a_value_that_no_route_takes_goes_nowhere() -> None:
    """All steps behind the router are skipped, and the run does not fail."""
    assert await reached(routed("cheap", "fair", routes=PRICES), default=500) == {}


async def test_another_value_than_the_input_can_be_sent() -> None:
    """The value is selected by a path, like the compared value."""
    routes = [route("yes", "ge", 18, path="person.age")]
    of = routed("yes", routes=routes, value="person.name")

    assert await reached(of, person={"age": 18, "name": "Ada"}) == {"yes": "Ada"}


async def test_a_value_that_is_missing_is_a_failure_that_names_it() -> None:
    """The error names the missing path."""
    of = routed("yes", routes=[route("yes", "missing", path="x")], value="person.name")

    error = await NodeRun(functions=[echo]).failure(of, person={})

    assert isinstance(error, MissingValueError)
    assert str(error) == "There is no value at person.name."


def test_an_edge_can_only_leave_on_a_way_of_the_router() -> None:
    """An edge from an unknown handle would never be taken."""
    of = routed("cheap", "fair", routes=PRICES)
    of["edges"].append(flow("r", "fair", "otherwise"))

    assert NodeRun(functions=[echo]).places(of) == ["edges.2.source_handle"]
