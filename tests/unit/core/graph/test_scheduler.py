"""Which step runs next: conversations with the scheduler."""

import pytest

from caseworker.core.graph.facts import SkipStep, StartStep, StepFailed, StepFinished
from caseworker.core.graph.graph import Graph, GraphError
from caseworker.core.graph.scheduler import Scheduler, UnexpectedFactError
from caseworker.core.graph.topology import Topology
from tests.unit.core.graph.drawing import fan, flow, graph, row

DEFAULT = frozenset({"default"})


def scheduler_of(graph: Graph) -> Scheduler:
    return Scheduler(Topology(graph))


def finished(step_id: str, *handles: str) -> StepFinished:
    return StepFinished(step_id, frozenset(handles) or DEFAULT)


DIAMOND = graph("ABCD", flow("A", "B"), flow("A", "C"), flow("B", "D"), flow("C", "D"))


def test_no_more_steps_run_at_once_than_are_allowed() -> None:
    """The others wait in line, in the order in which they became ready."""
    scheduler = scheduler_of(graph("ABC", max_parallel=2))

    assert scheduler.begin() == [StartStep("A"), StartStep("B")]
    assert scheduler.tell(finished("B")) == [StartStep("C")]


def test_the_keys_of_the_outputs_will_do_as_handles() -> None:
    """Whoever drives the graph need not copy them."""
    scheduler = scheduler_of(graph("ABC", flow("A", "B", "x"), flow("A", "C", "y")))
    scheduler.begin()

    assert scheduler.tell(StepFinished("A", {"x": 1}.keys())) == [SkipStep("C"), StartStep("B")]


def test_one_topology_serves_many_executions() -> None:
    """They do not disturb one another."""
    topology = Topology(DIAMOND)
    first, second = Scheduler(topology), Scheduler(topology)
    first.begin()
    first.tell(finished("A"))
    first.tell(finished("B"))
    second.begin()

    assert second.tell(finished("A")) == [StartStep("B"), StartStep("C")]
    assert second.tell(finished("B")) == []
    assert first.tell(finished("C")) == [StartStep("D")]


def test_a_graph_without_steps_is_done_at_once() -> None:
    """There is nothing to order."""
    scheduler = scheduler_of(graph(""))

    assert scheduler.begin() == []
    assert scheduler.done


@pytest.mark.parametrize(
    "fact", [finished("A"), StepFailed("A"), finished("D"), finished("Z")], ids=str
)
def test_a_fact_about_a_step_that_does_not_run_is_refused(fact: StepFinished) -> None:
    """It was not ordered, or ended before."""
    scheduler = scheduler_of(DIAMOND)
    scheduler.begin()
    scheduler.tell(finished("A"))

    with pytest.raises(UnexpectedFactError, match=fact.step_id):
        scheduler.tell(fact)


def test_a_graph_is_begun_once() -> None:
    """A second time would start its entries again."""
    scheduler = scheduler_of(DIAMOND)
    scheduler.begin()

    with pytest.raises(UnexpectedFactError):
        scheduler.begin()


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_lets_no_step_run_is_refused(limit: int) -> None:
    """Otherwise the graph would never begin and never end."""
    with pytest.raises(GraphError, match="max_parallel"):
        scheduler_of(graph("A", max_parallel=limit))


def test_steps_that_wait_for_one_another_are_never_ordered() -> None:
    """And the graph is never done, so whoever drives it can tell."""
    scheduler = scheduler_of(graph("ABC", flow("A", "B"), flow("B", "C"), flow("C", "B")))

    assert scheduler.begin() == [StartStep("A")]
    assert scheduler.tell(finished("A")) == []
    assert not scheduler.done


def test_a_dead_path_of_any_length_is_skipped_without_a_deep_stack() -> None:
    """10,000 steps in a row."""
    scheduler = scheduler_of(row(10_000))
    scheduler.begin()

    skipped = scheduler.tell(finished("0", "elsewhere"))

    assert skipped == [SkipStep(str(index)) for index in range(1, 10_000)]
    assert scheduler.done


@pytest.mark.parametrize("lanes", [1_000, pytest.param(10_000, marks=pytest.mark.proof)])
def test_a_wide_graph_is_joined_once(lanes: int) -> None:
    """Its last step starts after all lanes, of which ten run at a time."""
    scheduler = scheduler_of(fan(lanes, max_parallel=10))
    scheduler.begin()
    running = scheduler.tell(finished("first"))
    assert len(running) == 10

    for index in range(lanes - 1):
        running += scheduler.tell(finished(f"lane{index}"))

    assert running == [StartStep(f"lane{index}") for index in range(lanes)]
    assert scheduler.tell(finished(f"lane{lanes - 1}")) == [StartStep("last")]


def test_a_finished_step_can_be_told_without_a_fact() -> None:
    """The orders are the same, and so is the refusal of what was not running."""
    told, plain = scheduler_of(DIAMOND), scheduler_of(DIAMOND)
    told.begin()
    plain.begin()

    for step_id, handles in (("A", DEFAULT), ("C", frozenset[str]()), ("B", DEFAULT)):
        assert plain.finished(step_id, handles) == told.tell(StepFinished(step_id, handles))
    with pytest.raises(UnexpectedFactError):
        plain.finished("A", DEFAULT)
    assert plain.finished("D", DEFAULT) == []
    assert plain.done


def test_a_link_of_a_chain_leaves_its_place_to_the_next_only_if_nobody_waits_for_it() -> None:
    """Steps that became ready earlier go first."""
    two_chains = graph("ABCD", flow("A", "C"), flow("B", "D"), max_parallel=1)
    scheduler = scheduler_of(two_chains)

    assert scheduler.begin() == [StartStep("A")]
    assert scheduler.tell(finished("A")) == [StartStep("B")]
    assert scheduler.tell(finished("B")) == [StartStep("C")]
    assert scheduler.tell(finished("C")) == [StartStep("D")]


def test_a_link_of_a_chain_that_produces_nothing_for_the_next_skips_it() -> None:
    """And all that comes after it."""
    scheduler = scheduler_of(graph("ABC", flow("A", "B"), flow("B", "C")))
    scheduler.begin()

    assert scheduler.tell(finished("A", "other")) == [SkipStep("B"), SkipStep("C")]
    assert scheduler.done
