"""The order in which the scheduler starts and skips steps."""

import pytest

from caseworker.core.graph.facts import SkipStep, StartStep, StepFailed, StepFinished
from caseworker.core.graph.graph import GraphError, StepGraph
from caseworker.core.graph.scheduler import Scheduler, UnexpectedFactError
from caseworker.core.graph.topology import Topology
from tests.unit.core.graph.drawing import fan, flow, graph, row

DEFAULT = frozenset({"default"})


def scheduler_of(graph: StepGraph) -> Scheduler:
    return Scheduler(Topology(graph))


def finished(step_id: str, *handles: str) -> StepFinished:
    return StepFinished(step_id, frozenset(handles) or DEFAULT)


DIAMOND = graph("ABCD", flow("A", "B"), flow("A", "C"), flow("B", "D"), flow("C", "D"))


def test_no_more_steps_run_at_once_than_are_allowed() -> None:
    """Steps beyond max_parallel are queued in the order in which they became ready."""
    scheduler = scheduler_of(graph("ABC", max_parallel=2))

    assert scheduler.begin() == [StartStep("A"), StartStep("B")]
    assert scheduler.apply(finished("B")) == [StartStep("C")]


def test_the_keys_of_the_outputs_will_do_as_handles() -> None:
    """The keys view of the outputs is accepted as the set of handles, without a copy."""
    scheduler = scheduler_of(graph("ABC", flow("A", "B", "x"), flow("A", "C", "y")))
    scheduler.begin()

    assert scheduler.apply(StepFinished("A", {"x": 1}.keys())) == [SkipStep("C"), StartStep("B")]


def test_one_topology_serves_many_executions() -> None:
    """Two executions of one topology do not affect each other."""
    topology = Topology(DIAMOND)
    first, second = Scheduler(topology), Scheduler(topology)
    first.begin()
    first.apply(finished("A"))
    first.apply(finished("B"))
    second.begin()

    assert second.apply(finished("A")) == [StartStep("B"), StartStep("C")]
    assert second.apply(finished("B")) == []
    assert first.apply(finished("C")) == [StartStep("D")]


def test_a_graph_without_steps_is_done_at_once() -> None:
    """A graph without steps is done at once and orders nothing."""
    scheduler = scheduler_of(graph(""))

    assert scheduler.begin() == []
    assert scheduler.done


@pytest.mark.parametrize(
    "fact", [finished("A"), StepFailed("A"), finished("D"), finished("Z")], ids=str
)
def test_a_fact_about_a_step_that_does_not_run_is_refused(fact: StepFinished) -> None:
    """A fact about a step that was not started or has ended is rejected."""
    scheduler = scheduler_of(DIAMOND)
    scheduler.begin()
    scheduler.apply(finished("A"))

    with pytest.raises(UnexpectedFactError, match=fact.step_id):
        scheduler.apply(fact)


def test_a_graph_is_begun_once() -> None:
    """A second begin is rejected, because it would start the entry steps again."""
    scheduler = scheduler_of(DIAMOND)
    scheduler.begin()

    with pytest.raises(UnexpectedFactError):
        scheduler.begin()


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_lets_no_step_run_is_refused(limit: int) -> None:
    """A max_parallel below 1 is rejected, because the graph would never start or end."""
    with pytest.raises(GraphError, match="max_parallel"):
        scheduler_of(graph("A", max_parallel=limit))


def test_steps_that_wait_for_one_another_are_never_ordered() -> None:
    """Steps of a cycle never start, and the scheduler does not report the graph as done."""
    scheduler = scheduler_of(graph("ABC", flow("A", "B"), flow("B", "C"), flow("C", "B")))

    assert scheduler.begin() == [StartStep("A")]
    assert scheduler.apply(finished("A")) == []
    assert not scheduler.done


def test_a_dead_path_of_any_length_is_skipped_without_a_deep_stack() -> None:
    """A dead path of 10,000 steps is skipped without recursion."""
    scheduler = scheduler_of(row(10_000))
    scheduler.begin()

    skipped = scheduler.apply(finished("0", "elsewhere"))

    assert skipped == [SkipStep(str(index)) for index in range(1, 10_000)]
    assert scheduler.done


@pytest.mark.parametrize("lanes", [1_000, pytest.param(10_000, marks=pytest.mark.proof)])
def test_a_wide_graph_is_joined_once(lanes: int) -> None:
    """The last step starts once, after all parallel steps, of which ten run at a time."""
    scheduler = scheduler_of(fan(lanes, max_parallel=10))
    scheduler.begin()
    running = scheduler.apply(finished("first"))
    assert len(running) == 10

    for index in range(lanes - 1):
        running += scheduler.apply(finished(f"lane{index}"))

    assert running == [StartStep(f"lane{index}") for index in range(lanes)]
    assert scheduler.apply(finished(f"lane{lanes - 1}")) == [StartStep("last")]


def test_a_finished_step_can_be_told_without_a_fact() -> None:
    """``finished`` returns the same orders as a fact and rejects a step that is not running."""
    told, plain = scheduler_of(DIAMOND), scheduler_of(DIAMOND)
    told.begin()
    plain.begin()

    for step_id, handles in (("A", DEFAULT), ("C", frozenset[str]()), ("B", DEFAULT)):
        assert plain.finished(step_id, handles) == told.apply(StepFinished(step_id, handles))
    with pytest.raises(UnexpectedFactError):
        plain.finished("A", DEFAULT)
    assert plain.finished("D", DEFAULT) == []
    assert plain.done


def test_a_link_of_a_chain_leaves_its_place_to_the_next_only_if_nobody_waits_for_it() -> None:
    """Steps that became ready earlier start before the next step of a chain."""
    two_chains = graph("ABCD", flow("A", "C"), flow("B", "D"), max_parallel=1)
    scheduler = scheduler_of(two_chains)

    assert scheduler.begin() == [StartStep("A")]
    assert scheduler.apply(finished("A")) == [StartStep("B")]
    assert scheduler.apply(finished("B")) == [StartStep("C")]
    assert scheduler.apply(finished("C")) == [StartStep("D")]


def test_a_link_of_a_chain_that_produces_nothing_for_the_next_skips_it() -> None:
    """A chain whose first step produces other handles is skipped to its end."""
    scheduler = scheduler_of(graph("ABC", flow("A", "B"), flow("B", "C")))
    scheduler.begin()

    assert scheduler.apply(finished("A", "other")) == [SkipStep("B"), SkipStep("C")]
    assert scheduler.done
