"""The scheduler on random graphs, told of their steps' ends in random order."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from app.kernel.facts import Fact, Order, SkipStep, StartStep, StepFailed, StepFinished
from app.kernel.graph import Channel, Edge, Graph, Step
from app.kernel.scheduler import Scheduler

HANDLES = ("default", "other")

Produced = Mapping[str, frozenset[str]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A graph without cycles, its steps listed in any order."""
    count = draw(st.integers(1, 9))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    found = draw(
        st.lists(st.tuples(pairs, st.sampled_from(HANDLES), st.sampled_from(Channel)), max_size=20)
    )
    edges = [
        Edge(source=f"s{low}", target=f"s{high}", source_handle=handle, channel=channel)
        for (one, other), handle, channel in found
        if (low := min(one, other)) != (high := max(one, other))
    ]
    placed = draw(st.permutations([Step(id=f"s{index}", type="any") for index in range(count)]))
    limit = draw(st.integers(1, 4))
    return Graph(id="g", steps=tuple(placed), edges=tuple(edges), max_parallel=limit)


@dataclass
class Execution:
    """One execution, played by chance alone."""

    orders: list[Order]
    facts: list[Fact]
    most_at_once: int
    done: bool


def play(graph: Graph, produced: Produced, chance: random.Random, failing: str = "") -> Execution:
    """Obey the scheduler; which running step ends next is chance."""
    scheduler = Scheduler(graph)
    orders, facts, running, most = scheduler.begin(), list[Fact](), list[str](), 0
    seen = list(orders)
    while orders or running:
        running += [order.step_id for order in orders if isinstance(order, StartStep)]
        most = max(most, len(running))
        assert not scheduler.done or not running
        if not running:
            break
        ended = running.pop(chance.randrange(len(running)))
        fact: Fact = StepFinished(ended, produced[ended])
        facts.append(StepFailed(ended) if ended == failing else fact)
        orders = scheduler.tell(facts[-1])
        seen += orders
    return Execution(seen, facts, most, scheduler.done)


def flows(graph: Graph) -> list[Edge]:
    return [edge for edge in graph.edges if edge.channel is Channel.FLOW]


def expected_to_start(graph: Graph, produced: Produced) -> set[str]:
    """By the definition alone: an entry, or a step that a value reaches."""
    targets = {edge.target for edge in flows(graph)}
    started = {step.id for step in graph.steps} - targets
    for step in sorted(targets):  # s0, s1, ... is a topological order
        reached = (
            edge.source in started and edge.source_handle in produced[edge.source]
            for edge in flows(graph)
            if edge.target == step
        )
        if any(reached):
            started.add(step)
    return started


PRODUCED = st.fixed_dictionaries(
    {f"s{index}": st.frozensets(st.sampled_from(HANDLES)) for index in range(9)}
)


@settings(max_examples=400, deadline=None)
@given(graph=graphs(), produced=PRODUCED, seed=st.integers(0, 2**32))
def test_every_step_gets_exactly_one_order_and_only_when_its_inputs_are_decided(
    graph: Graph, produced: Produced, seed: int
) -> None:
    """It starts if a value reaches it and is skipped if not; the graph is done at the end."""
    execution = play(graph, produced, random.Random(seed))

    ordered = [order.step_id for order in execution.orders]
    assert sorted(ordered) == sorted(step.id for step in graph.steps)
    started = {order.step_id for order in execution.orders if isinstance(order, StartStep)}
    assert started == expected_to_start(graph, produced)
    assert execution.done
    assert execution.most_at_once <= graph.max_parallel


@settings(max_examples=200, deadline=None)
@given(graph=graphs(), produced=PRODUCED, seed=st.integers(0, 2**32))
def test_no_step_is_ordered_before_what_leads_to_it(
    graph: Graph, produced: Produced, seed: int
) -> None:
    """Each source has ended, or was skipped itself, when its target is ordered."""
    scheduler, chance = Scheduler(graph), random.Random(seed)
    settled, running = set[str](), list[str]()
    orders = scheduler.begin()
    while True:
        for order in orders:
            sources = {edge.source for edge in flows(graph) if edge.target == order.step_id}
            assert sources <= settled
            if isinstance(order, SkipStep):
                settled.add(order.step_id)
            else:
                running.append(order.step_id)
        if not running:
            break
        ended = running.pop(chance.randrange(len(running)))
        settled.add(ended)
        orders = scheduler.tell(StepFinished(ended, produced[ended]))


@settings(max_examples=200, deadline=None)
@given(graph=graphs(), produced=PRODUCED, seed=st.integers(0, 2**32))
def test_the_same_facts_give_the_same_orders(graph: Graph, produced: Produced, seed: int) -> None:
    """Told again in the same order, another scheduler says the same, word for word."""
    execution = play(graph, produced, random.Random(seed))

    again = Scheduler(graph)
    repeated = again.begin()
    for fact in execution.facts:
        repeated += again.tell(fact)
    assert repeated == execution.orders


@settings(max_examples=200, deadline=None)
@given(graph=graphs(), produced=PRODUCED, seed=st.integers(0, 2**32), data=st.data())
def test_after_a_failure_nothing_starts_and_the_graph_ends(
    graph: Graph, produced: Produced, seed: int, data: st.DataObject
) -> None:
    """Whichever step it is, if it runs at all."""
    failing = data.draw(st.sampled_from([step.id for step in graph.steps]))
    execution = play(graph, produced, random.Random(seed), failing)

    assert execution.done
    failures = [at for at, fact in enumerate(execution.facts) if isinstance(fact, StepFailed)]
    ended_before = len(execution.facts) if not failures else failures[0] + 1
    started = [order for order in execution.orders if isinstance(order, StartStep)]
    assert len(started) <= ended_before + graph.max_parallel - 1
