"""Problems of a graph as a whole: cycles, shared persistent nodes and unreachable steps."""

from collections.abc import Mapping

import pytest

from caseworker.core.graph.graph import StepGraph
from caseworker.core.graph.validation import Problem, Severity, Traits, problems_of
from tests.unit.core.graph.drawing import fan, flow, graph, link, row

ERROR, WARNING = Severity.ERROR, Severity.WARNING


def problems(checked: StepGraph, holders: Mapping[str, str] | None = None) -> tuple[Problem, ...]:
    """Return the problems; ``holders`` maps a step to its persistent nodes, one letter each."""
    held = holders or {}
    return problems_of(checked, lambda step: Traits(holds=frozenset(held.get(step.id, ""))))


def said(
    checked: StepGraph, holders: Mapping[str, str] | None = None
) -> list[tuple[str, Severity]]:
    return [(problem.place, problem.severity) for problem in problems(checked, holders)]


def test_a_circle_of_flow_is_refused_with_its_path() -> None:
    """A flow cycle is reported with its path, at the edge that closes it."""
    circle = graph("ABCD", flow("A", "B"), flow("B", "C"), flow("C", "D"), flow("D", "B"))

    (problem,) = problems(circle)

    assert problem.place == "edges.3"
    assert problem.severity is ERROR
    assert problem.message == (
        "The edges on channel flow form a cycle: B -> C -> D -> B. Remove one of them."
    )


def test_circles_that_touch_are_told_once_and_others_apart() -> None:
    """Overlapping cycles are reported once, by the shortest path; separate ones separately."""
    knot = [flow("A", "B"), flow("B", "C"), flow("C", "B"), flow("C", "D"), flow("D", "B")]
    other = [flow("A", "E"), flow("E", "E")]

    found = problems(graph("ABCDE", *knot, *other))

    assert [problem.place for problem in found] == ["edges.2", "edges.6"]
    assert "B -> C -> B." in found[0].message


def test_an_edge_into_an_entry_is_a_warning() -> None:
    """An edge into an entry is a warning: the entry does not wait, so the value is lost."""
    (problem,) = problems(graph("AB", flow("A", "B"), entry="AB"))

    assert (problem.place, problem.severity) == ("edges.0", WARNING)
    assert "'B' is an entry, so it starts without waiting for 'A'" in problem.message


@pytest.mark.req("000/P4")
def test_two_parallel_steps_on_one_persistent_node_are_refused() -> None:
    """The message names both steps and the persistent node, and suggests two fixes."""
    (problem,) = problems(graph("ABC", flow("A", "B"), flow("A", "C")), {"B": "n", "C": "n"})

    assert (problem.place, problem.severity) == ("steps.2", ERROR)
    assert problem.message == (
        "Steps 'B' and 'C' both use the persistent node 'n' and can run in parallel."
        " Add a dependency between them, or set max_parallel to 1."
    )


@pytest.mark.req("000/P4")
def test_an_edge_into_an_entry_keeps_no_steps_apart() -> None:
    """An edge into an entry does not order two steps that share a persistent node."""
    both = graph("BC", flow("B", "C"), entry="BC")

    assert said(both, {"B": "n", "C": "n"}) == [("edges.0", WARNING), ("steps.1", ERROR)]


@pytest.mark.req("004/subgraph")
def test_a_step_that_takes_no_part_is_a_warning() -> None:
    """An unreachable step is a warning; a linked step is reachable."""
    (problem,) = problems(graph("ALX", link("L", "A"), entry="A"))

    assert (problem.place, problem.severity) == ("steps.2", WARNING)
    assert problem.message == "Step 'X' is never executed: no path leads to it from an entry."


def test_places_are_those_of_the_graph_that_was_given() -> None:
    """Places refer to the original graph, although broken parts are removed before the check."""
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
    """Chains, cycles and fans of thousands of steps are checked without recursion."""
    deep, wide = row(count), fan(count)
    circle = graph([s.id for s in deep.steps], *deep.edges, flow(str(count - 1), "0"), entry="0")
    every_step = dict.fromkeys([*(s.id for s in deep.steps), *(s.id for s in wide.steps)], "n")

    assert problems(deep, every_step) == ()
    assert len(problems(wide, every_step)) == count - 1
    message = problems(circle)[-1].message
    assert f"0 -> 1 -> 2 -> 3 -> 4 -> ({count - 9} more) -> {count - 4}" in message
