"""Strongly connected components of the steps of a graph."""

from collections.abc import Sequence

from caseworker.core.graph.components import components, cycle_in

KNOT = {"A": ["B"], "B": ["C"], "C": ["B", "D"], "D": ["E"], "E": ["D"]}


class Watched(dict[str, Sequence[str]]):
    """Successors that record the steps they are looked up for."""

    def __init__(self, successors: dict[str, list[str]]) -> None:
        super().__init__(successors)
        self.asked: list[str] = []

    def get(self, step: str, default: object = None) -> Sequence[str]:
        self.asked.append(step)
        return super().get(step, ())


def test_components_come_in_topological_order() -> None:
    """Components are in topological order; their members keep the order of the steps."""
    assert components("EDCBA", KNOT) == [["A"], ["C", "B"], ["E", "D"]]


def test_a_cycle_begins_and_ends_with_the_first_step() -> None:
    """A cycle starts and ends with the first step; a single step needs an edge to itself."""
    assert cycle_in(["C", "B"], KNOT) == ("C", "B", "C")
    assert cycle_in(["A"], KNOT) is None
    assert cycle_in(["A"], {"A": ["A"]}) == ("A", "A")


def test_the_search_for_a_cycle_does_not_leave_its_component() -> None:
    """The search looks up only steps of its component, which keeps it fast in large graphs."""
    watched = Watched(KNOT)

    cycle_in(["A"], watched)

    assert watched.asked == ["A"]
