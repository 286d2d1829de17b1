"""Which step runs next: conversations with the scheduler."""

import pytest

from app.kernel.errors import GraphError, UnexpectedFactError
from app.kernel.facts import SkipStep, StartStep, StepFailed, StepFinished
from app.kernel.graph import Channel, Edge, Graph, Step
from app.kernel.scheduler import Scheduler

DEFAULT = frozenset({"default"})


def flow(source: str, target: str, handle: str = "default") -> Edge:
    return Edge(source=source, target=target, source_handle=handle, channel=Channel.FLOW)


def graph(steps: str, *edges: Edge, max_parallel: int = 9) -> Graph:
    placed = tuple(Step(id=name, type="any") for name in steps)
    return Graph(id="g", steps=placed, edges=edges, max_parallel=max_parallel)


def finished(step_id: str, *handles: str) -> StepFinished:
    return StepFinished(step_id, frozenset(handles) or DEFAULT)


DIAMOND = graph("ABCD", flow("A", "B"), flow("A", "C"), flow("B", "D"), flow("C", "D"))


def test_a_join_waits_for_every_branch() -> None:
    """D starts after B and C, never after one of them."""
    scheduler = Scheduler(DIAMOND)

    assert scheduler.begin() == [StartStep("A")]
    assert scheduler.tell(finished("A")) == [StartStep("B"), StartStep("C")]
    assert scheduler.tell(finished("B")) == []
    assert scheduler.tell(finished("C")) == [StartStep("D")]
    assert not scheduler.done
    assert scheduler.tell(finished("D")) == []
    assert scheduler.done


def test_no_more_steps_run_at_once_than_are_allowed() -> None:
    """The others wait in line, in the order in which they became ready."""
    scheduler = Scheduler(graph("ABC", max_parallel=2))

    assert scheduler.begin() == [StartStep("A"), StartStep("B")]
    assert scheduler.tell(finished("B")) == [StartStep("C")]


def test_a_path_without_a_value_is_dead_to_its_end() -> None:
    """A produced nothing on its handle `no`: what follows there is skipped, and reported."""
    scheduler = Scheduler(
        graph("ABCD", flow("A", "B", "yes"), flow("A", "C", "no"), flow("C", "D"))
    )
    scheduler.begin()

    assert scheduler.tell(finished("A", "yes")) == [SkipStep("C"), SkipStep("D"), StartStep("B")]
    assert scheduler.tell(finished("B")) == []
    assert scheduler.done


def test_a_join_with_one_live_branch_starts() -> None:
    """A dead path ends where a live one joins it."""
    scheduler = Scheduler(
        graph("ABCD", flow("A", "B", "yes"), flow("A", "C", "no"), flow("B", "D"), flow("C", "D"))
    )
    scheduler.begin()

    assert scheduler.tell(finished("A", "yes")) == [SkipStep("C"), StartStep("B")]
    assert scheduler.tell(finished("B")) == [StartStep("D")]


def test_a_value_that_takes_two_edges_to_one_step_starts_it_once() -> None:
    """Two handles of A lead to B."""
    scheduler = Scheduler(graph("AB", flow("A", "B", "x"), flow("A", "B", "y")))
    scheduler.begin()

    assert scheduler.tell(finished("A", "x", "y")) == [StartStep("B")]


def test_links_route_nothing() -> None:
    """A dependency neither delays the step that needs it nor starts it again."""
    link = Edge(source="A", target="B", channel=Channel.LINK)
    scheduler = Scheduler(graph("AB", link))

    assert scheduler.begin() == [StartStep("A"), StartStep("B")]


def test_after_a_failure_nothing_further_is_started() -> None:
    """What runs may still end; the graph is done then."""
    scheduler = Scheduler(graph("ABC", flow("A", "C"), max_parallel=2))
    scheduler.begin()

    assert scheduler.tell(StepFailed("B")) == []
    assert not scheduler.done
    assert scheduler.tell(finished("A")) == []
    assert scheduler.done


def test_a_graph_without_steps_is_done_at_once() -> None:
    """There is nothing to order."""
    scheduler = Scheduler(graph(""))

    assert scheduler.begin() == []
    assert scheduler.done


@pytest.mark.parametrize(
    "fact", [finished("A"), StepFailed("A"), finished("D"), finished("Z")], ids=str
)
def test_a_fact_about_a_step_that_does_not_run_is_refused(fact: StepFinished) -> None:
    """It was not ordered, or ended before."""
    scheduler = Scheduler(DIAMOND)
    scheduler.begin()
    scheduler.tell(finished("A"))

    with pytest.raises(UnexpectedFactError, match=fact.step_id):
        scheduler.tell(fact)


def test_a_graph_is_begun_once() -> None:
    """A second time would start its entries again."""
    scheduler = Scheduler(DIAMOND)
    scheduler.begin()

    with pytest.raises(UnexpectedFactError):
        scheduler.begin()


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (graph("AA"), "same id"),
        (graph("A", flow("A", "B")), "'B'"),
        (graph("B", flow("A", "B")), "'A'"),
        (graph("A", max_parallel=0), "max_parallel"),
    ],
)
def test_a_graph_that_cannot_be_ordered_is_refused(broken: Graph, said: str) -> None:
    """Before anything starts."""
    with pytest.raises(GraphError, match=said):
        Scheduler(broken)


def test_steps_that_wait_for_one_another_are_never_ordered() -> None:
    """And the graph is never done, so whoever drives it can tell."""
    scheduler = Scheduler(graph("ABC", flow("B", "C"), flow("C", "B")))

    assert scheduler.begin() == [StartStep("A")]
    assert scheduler.tell(finished("A")) == []
    assert not scheduler.done
