"""What is wrong with a graph as a whole: circles, shared nodes, steps left out."""

from collections.abc import Mapping

import pytest

from caseworker.core.graph.graph import Graph
from caseworker.core.graph.validation import Problem, Severity, Traits, problems_of
from tests.unit.core.graph.drawing import fan, flow, graph, link, row

ERROR, WARNING = Severity.ERROR, Severity.WARNING


def problems(checked: Graph, holders: Mapping[str, str] | None = None) -> tuple[Problem, ...]:
    """``holders`` says which persistent nodes, single letters, a step uses."""
    held = holders or {}
    return problems_of(checked, lambda step: Traits(holds=frozenset(held.get(step.id, ""))))


def said(checked: Graph, holders: Mapping[str, str] | None = None) -> list[tuple[str, Severity]]:
    return [(problem.place, problem.severity) for problem in problems(checked, holders)]


def test_a_circle_of_flow_is_refused_with_its_path() -> None:
    """At the edge that closes it."""
    circle = graph("ABCD", flow("A", "B"), flow("B", "C"), flow("C", "D"), flow("D", "B"))

    (problem,) = problems(circle)

    assert problem.place == "edges.3"
    assert problem.severity is ERROR
    assert problem.message == (
        "The edges on channel flow lead in a circle: B -> C -> D -> B. Remove one of them."
    )


def test_circles_that_touch_are_told_once_and_others_apart() -> None:
    """The shortest way round, through the step that the graph lists first."""
    knot = [flow("A", "B"), flow("B", "C"), flow("C", "B"), flow("C", "D"), flow("D", "B")]
    other = [flow("A", "E"), flow("E", "E")]

    found = problems(graph("ABCDE", *knot, *other))

    assert [problem.place for problem in found] == ["edges.2", "edges.6"]
    assert "B -> C -> B." in found[0].message


def test_an_edge_into_an_entry_is_a_warning() -> None:
    """B starts at once, so what A gives would be lost."""
    (problem,) = problems(graph("AB", flow("A", "B"), entry="AB"))

    assert (problem.place, problem.severity) == ("edges.0", WARNING)
    assert "'B' is an entry, so it starts without waiting for 'A'" in problem.message


@pytest.mark.req("000/P4")
def test_two_parallel_steps_on_one_persistent_node_are_refused() -> None:
    """The message names the steps and the node, and says what to do."""
    (problem,) = problems(graph("ABC", flow("A", "B"), flow("A", "C")), {"B": "n", "C": "n"})

    assert (problem.place, problem.severity) == ("steps.2", ERROR)
    assert problem.message == (
        "Steps 'B' and 'C' both use the persistent node 'n' and can run in parallel."
        " Add a dependency between them, or set max_parallel to 1."
    )


@pytest.mark.req("000/P4")
def test_an_edge_into_an_entry_keeps_no_steps_apart() -> None:
    """The entry does not wait."""
    both = graph("BC", flow("B", "C"), entry="BC")

    assert said(both, {"B": "n", "C": "n"}) == [("edges.0", WARNING), ("steps.1", ERROR)]


@pytest.mark.req("004/subgraph")
def test_a_step_that_takes_no_part_is_a_warning() -> None:
    """L does: it is linked."""
    (problem,) = problems(graph("ALX", link("L", "A"), entry="A"))

    assert (problem.place, problem.severity) == ("steps.2", WARNING)
    assert problem.message == "Step 'X' is never executed: nothing leads to it from an entry."


def test_places_are_those_of_the_graph_that_was_given() -> None:
    """Although what is broken is set aside before the whole is looked at."""
    circle = (flow("B", "C"), flow("C", "B", "x"), flow("C", "B", "y"))
    broken = graph("ABCDB", flow("A", "Z"), flow("A", "B"), *circle)

    assert said(broken, {"B": "n", "D": "n"}) == [
        ("steps.4.id", ERROR),
        ("edges.0.target", ERROR),
        ("edges.3", ERROR),
        ("steps.3", ERROR),
    ]
    assert said(graph("ABB", entry="A")) == [("steps.2.id", ERROR), ("steps.1", WARNING)]


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.proof)])
def test_a_large_graph_is_checked_without_a_deep_stack(count: int) -> None:
    """Thousands of steps in a row, in a circle, and side by side."""
    deep, wide = row(count), fan(count)
    circle = graph([s.id for s in deep.steps], *deep.edges, flow(str(count - 1), "0"), entry="0")
    every_step = dict.fromkeys([*(s.id for s in deep.steps), *(s.id for s in wide.steps)], "n")

    assert problems(deep, every_step) == ()
    assert len(problems(wide, every_step)) == count - 1
    message = problems(circle)[-1].message
    assert f"0 -> 1 -> 2 -> 3 -> 4 -> ({count - 9} more) -> {count - 4}" in message
