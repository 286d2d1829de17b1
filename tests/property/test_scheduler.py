"""The scheduler on random graphs whose steps end in random order."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.core.graph.facts import Fact, Order, SkipStep, StartStep, StepFailed, StepFinished
from caseworker.core.graph.graph import StepGraph
from caseworker.core.graph.scheduler import Scheduler
from caseworker.core.graph.topology import Topology
from tests.property import graph_oracle as oracle
from tests.property.random_graphs import HANDLES, MOST_STEPS, graphs

Produced = Mapping[str, frozenset[str]]


PRODUCED = st.fixed_dictionaries(
    {f"s{number}": st.frozensets(st.sampled_from(HANDLES)) for number in range(MOST_STEPS)}
)


@dataclass
class Execution:
    """One execution of a graph; the running step that ends next is random."""

    graph: StepGraph
    produced: Produced
    chance: random.Random
    orders: list[Order] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    settled: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(Topology(self.graph))
        self.obey(self.scheduler.begin())

    def obey(self, orders: list[Order]) -> None:
        self.orders += orders
        self.running += [order.step_id for order in orders if isinstance(order, StartStep)]
        self.settled |= {order.step_id for order in orders if isinstance(order, SkipStep)}
        assert self.scheduler.done == (not self.running)

    def end_one(self, *, badly: bool = False) -> list[Order]:
        """Let one of the running steps end, and return the new orders."""
        ended = self.running.pop(self.chance.randrange(len(self.running)))
        self.settled.add(ended)
        fact = StepFailed(ended) if badly else StepFinished(ended, self.produced[ended])
        self.facts.append(fact)
        orders = self.scheduler.apply(fact)
        self.obey(orders)
        return orders


def executions() -> st.SearchStrategy[Execution]:
    """Draw executions that have started."""
    return st.builds(Execution, graphs(circles=False), PRODUCED, st.randoms(use_true_random=False))


@pytest.mark.req("004/kernel", "004/subgraph")
@given(execution=executions())
def test_every_active_step_gets_exactly_one_order_and_no_other_gets_any(
    execution: Execution,
) -> None:
    """A step starts if a value reaches it, else it is skipped; the graph ends."""
    while execution.running:
        execution.end_one()

    ordered = [order.step_id for order in execution.orders]
    assert sorted(ordered) == sorted(oracle.active(execution.graph))
    started = {order.step_id for order in execution.orders if isinstance(order, StartStep)}
    assert started == oracle.started(execution.graph, execution.produced)


@pytest.mark.req("000/P1", "000/P2")
@given(execution=executions())
def test_a_step_is_ordered_once_what_leads_to_it_is_decided_and_there_is_a_place(
    execution: Execution,
) -> None:
    """The step does not wait for unrelated steps of its layer."""
    routes = oracle.routes(execution.graph)
    sources: dict[str, set[str]] = {step: set() for step in oracle.active(execution.graph)}
    for edge in routes:
        sources[edge.target].add(edge.source)
    while execution.running:
        ordered = {order.step_id for order in execution.orders}
        decided = {step for step in sources if sources[step] <= execution.settled}
        limit = execution.graph.max_parallel
        assert len(execution.running) <= limit
        assert ordered <= decided
        assert ordered == decided or len(execution.running) == limit
        execution.end_one()


@given(execution=executions())
def test_the_same_facts_give_the_same_orders(execution: Execution) -> None:
    """Another scheduler with the same facts in the same order gives identical orders."""
    while execution.running:
        execution.end_one()

    again = Scheduler(Topology(execution.graph))
    repeated = again.begin()
    for fact in execution.facts:
        repeated += again.apply(fact)
    assert repeated == execution.orders


@given(execution=executions(), good=st.integers(0, MOST_STEPS), after=st.randoms())
def test_after_a_failure_nothing_is_ordered_and_the_graph_ends(
    execution: Execution, good: int, after: random.Random
) -> None:
    """After a failure no step is started, whether parallel steps finish or are cancelled."""
    while execution.running and good:
        execution.end_one()
        good -= 1
    badly = True
    while execution.running:
        assert execution.end_one(badly=badly) == []
        badly = after.random() < 0.5
    assert execution.scheduler.done
