"""Scopes and reservations."""

from collections.abc import Callable
from contextvars import Context
from decimal import Decimal
from typing import Any

import pytest

from caseworker.core.budget.budget import Amount, Budget, Dimension
from caseworker.core.budget.ledger import Reservation, Scope
from caseworker.core.budget.reservations import Waiter
from caseworker.core.budget.usage import BudgetExceededError, ResourceUsage

COUNTED = {
    "max_tokens": Dimension.TOKENS,
    "max_steps": Dimension.STEPS,
    "max_api_calls": Dimension.API_CALLS,
    "max_cost_dollars": Dimension.COST_USD,
    "max_llm_calls_small": Dimension.LLM_CALLS_SMALL,
    "max_llm_calls_big": Dimension.LLM_CALLS_BIG,
    "max_tool_calls": Dimension.TOOL_CALLS,
    "max_turns": Dimension.TURNS,
}


class SetClock:
    """A clock that returns the seconds a test sets."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def one_of(dimension: Dimension) -> dict[Dimension, Amount]:
    return {dimension: Decimal(1) if dimension is Dimension.COST_USD else 1}


@pytest.mark.req("000/B1")
@pytest.mark.parametrize(("name", "dimension"), COUNTED.items())
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_limit_of_n_lets_exactly_n_through(name: str, dimension: Dimension, limit: int) -> None:
    """A limit of N allows exactly N charges and refuses the next one."""
    scope = Scope("run", Budget(**{name: limit}))
    for _ in range(limit):
        scope.charge(one_of(dimension))

    with pytest.raises(BudgetExceededError):
        scope.charge(one_of(dimension))

    assert scope.usage.of(dimension) == limit
    assert scope.remaining(dimension) == 0


@pytest.mark.req("000/B1")
@pytest.mark.parametrize("dimension", COUNTED.values())
def test_no_limit_lets_everything_through(dimension: Dimension) -> None:
    """A scope without limits allows any number of charges."""
    scope = Scope("run")
    for _ in range(1000):
        scope.charge(one_of(dimension))

    assert scope.remaining(dimension) is None


def test_what_is_reserved_cannot_be_spent_by_others() -> None:
    """Reserved tokens are unavailable to other calls until the reservation is settled."""
    scope = Scope("run", Budget(max_tokens=100))
    first = scope.reserve({Dimension.TOKENS: 60})

    with pytest.raises(BudgetExceededError):
        scope.reserve({Dimension.TOKENS: 41})
    second = scope.reserve({Dimension.TOKENS: 40})
    assert scope.remaining(Dimension.TOKENS) == 0

    first.settle({Dimension.TOKENS: 10})
    assert scope.remaining(Dimension.TOKENS) == 50
    second.settle()
    assert (scope.usage.tokens_used, scope.reserved(Dimension.TOKENS)) == (10, 0)


def test_a_reservation_is_settled_once() -> None:
    """A second settlement neither charges nor releases anything."""
    scope = Scope("run", Budget(max_tokens=100))
    reservation = scope.reserve({Dimension.TOKENS: 60})

    reservation.settle({Dimension.TOKENS: 50})
    reservation.settle({Dimension.TOKENS: 50})

    assert (scope.usage.tokens_used, scope.reserved(Dimension.TOKENS)) == (50, 0)


@pytest.mark.parametrize("end", [Reservation.settle, Reservation.release])
def test_the_end_of_a_reservation_grants_the_next_pending_one(
    end: Callable[[Reservation], None],
) -> None:
    """Settling and releasing a reservation both grant the next waiter its budget."""
    scope, woken = Scope("run", Budget(max_tokens=100)), list[str]()
    held = scope.reserve({Dimension.TOKENS: 60})
    waiter = Context().run(scope.ask, {Dimension.TOKENS: 41})
    assert isinstance(waiter, Waiter)
    waiter.on_end(lambda: woken.append("waiter"))

    end(held)

    assert woken == ["waiter"]
    assert waiter.reservation().charge == {Dimension.TOKENS: 41}


@pytest.mark.req("000/B5")
def test_a_charge_counts_in_its_scope_and_in_all_around_it() -> None:
    """A charge counts in its scope and in every ancestor, so siblings share limits."""
    run = Scope("run", Budget(max_tokens=100))
    graph = run.child("graph", Budget(max_tokens=80))
    agent, other = graph.child("agent", Budget(max_tokens=50)), graph.child("other", None)

    agent.charge({Dimension.TOKENS: 50})
    other.charge({Dimension.TOKENS: 30})

    assert [s.usage.tokens_used for s in (agent, other, graph, run)] == [50, 30, 80, 80]
    assert run.remaining(Dimension.TOKENS) == 20


@pytest.mark.req("000/B5", "000/B3")
@pytest.mark.parametrize(
    ("limits", "tripped"),
    [((9, 5, 7), "run/graph"), ((5, 9, 7), "run"), ((9, 7, 5), "run/graph/agent")],
)
def test_whichever_limit_is_hit_first_is_named(limits: tuple[int, ...], tripped: str) -> None:
    """The error names the scope, the dimension, the limit and the amount used."""
    run = Scope("run", Budget(max_tool_calls=limits[0]))
    graph = run.child("graph", Budget(max_tool_calls=limits[1]))
    agent = graph.child("agent", Budget(max_tool_calls=limits[2]))
    for _ in range(5):
        agent.charge({Dimension.TOOL_CALLS: 1})

    with pytest.raises(BudgetExceededError) as refused:
        agent.charge({Dimension.TOOL_CALLS: 1})

    cause = refused.value.cause
    assert (cause.scope, cause.dimension, cause.limit, cause.used) == (tripped, "tool_calls", 5, 5)
    assert refused.value.reason == (f"Tool call limit exceeded: 5 used, limit 5 (scope {tripped})")


@pytest.mark.parametrize("next_charge", [{Dimension.STEPS: 1}, {Dimension.TOOL_CALLS: 1}, {}])
def test_after_an_overshoot_nothing_more_is_let_through(next_charge: dict[Dimension, int]) -> None:
    """A call's real usage may exceed a limit once; every later reservation is refused."""
    scope = Scope("run", Budget(max_tokens=100))
    scope.reserve({Dimension.TOKENS: 90}).settle({Dimension.TOKENS: 101})

    with pytest.raises(BudgetExceededError) as refused:
        scope.reserve(next_charge)

    assert refused.value.reason == (
        "The run's token budget is spent: 101 used, limit 100 (scope run)"
    )


def test_late_costs_are_counted_whatever_the_limit_says() -> None:
    """Costs that arrive late count even beyond the limit, because the money was spent."""
    run = Scope("run", Budget(max_cost_dollars=1))
    run.child("agent", None).add({Dimension.COST_USD: Decimal(3)})

    assert run.usage.of(Dimension.COST_USD) == 3


def test_what_is_still_in_flight_is_shown_as_if_it_were_spent() -> None:
    """The displayed usage includes reservations, which abandoned calls may still cost."""
    clock = SetClock()
    scope = Scope("run", usage=ResourceUsage(api_calls=1, before_seconds=2, clock=clock))
    reservation = scope.reserve({Dimension.API_CALLS: 1, Dimension.COST_USD: Decimal("0.5")})
    clock.now += 1

    shown = scope.to_dict()
    assert (shown["api_calls"], shown["cost_usd"], shown["seconds"]) == (2, 0.5, 3)
    assert scope.usage.api_calls == 1

    reservation.settle({Dimension.API_CALLS: 1, Dimension.COST_USD: Decimal("0.1")})
    shown = scope.to_dict()
    assert (shown["api_calls"], shown["cost_usd"]) == (2, 0.1)


def test_before_a_further_charge_one_can_ask_whether_anything_is_left() -> None:
    """The check covers the limits of the scope and its ancestors, including seconds."""
    clock = SetClock()
    run = Scope("run", Budget(max_time_seconds=10), usage=ResourceUsage(clock=clock))
    agent = run.child("agent", Budget(max_turns=2))
    agent.require_something_left()

    agent.charge({Dimension.TURNS: 2})
    with pytest.raises(BudgetExceededError, match=r"Turn .*run/agent"):
        agent.require_something_left()

    clock.now += 10
    with pytest.raises(BudgetExceededError, match=r"Time .*scope run\)"):
        run.require_something_left()


@pytest.mark.req("000/B2")
def test_the_shortest_time_counts_and_is_named() -> None:
    """A child's time limit starts with the child; the error names the scope that ran out."""
    clock = SetClock()
    run = Scope("run", Budget(max_time_seconds=10), usage=ResourceUsage(clock=clock))
    assert run.remaining_seconds() == 10
    clock.now += 4
    agent = run.child("agent", Budget(max_time_seconds=5))
    assert agent.remaining_seconds() == 5

    clock.now += 3
    assert (agent.remaining_seconds(), run.remaining_seconds()) == (2, 3)
    cause = agent.time_limit_error().cause
    assert (cause.scope, cause.dimension, cause.limit) == ("run/agent", "seconds", 5)

    long = run.child("long", Budget(max_time_seconds=60))
    assert long.remaining_seconds() == 3
    cause = run.time_limit_error().cause
    assert (cause.scope, cause.dimension, cause.limit) == ("run", "seconds", 10)
    assert Scope("free").remaining_seconds() is None


def test_a_warning_is_given_once_at_seventy_and_at_ninety_percent() -> None:
    """The scope that owns the limit warns once per threshold, also when a child spends."""
    told: list[tuple[Any, ...]] = []
    run = Scope(
        "run",
        Budget(max_tool_calls=10),
        warn=lambda scope, dimension, share: told.append((scope.name, dimension, share)),
    )
    agent = run.child("agent", Budget(max_tool_calls=20))

    for _ in range(6):
        agent.charge({Dimension.TOOL_CALLS: 1})
    assert told == []
    for _ in range(4):
        agent.charge({Dimension.TOOL_CALLS: 1})

    assert told == [("run", "tool_calls", 0.7), ("run", "tool_calls", 0.9)]


@pytest.mark.req("000/B5")
def test_what_nodes_write_into_a_usage_is_seen_by_the_next_charge_here_and_above() -> None:
    """Direct changes of a usage count in the next charge of the scope and of its ancestors."""
    run = Scope("run", Budget(max_tokens=10, max_steps=100))
    step = run.child("step", Budget(max_steps=100))
    step.charge({Dimension.STEPS: 1})

    step.usage.tokens_used += 11

    for scope in (step, run):
        with pytest.raises(BudgetExceededError) as refused:
            scope.charge({Dimension.STEPS: 1})
        assert refused.value.cause.dimension is Dimension.TOKENS
    assert run.usage.steps_executed == 1


@pytest.mark.req("000/B1")
def test_what_a_node_writes_into_a_usage_is_seen_by_the_next_charge_of_its_scope() -> None:
    """A direct change of a usage is noticed after an earlier charge found nothing exceeded."""
    scope = Scope("run", Budget(max_tokens=10))
    scope.charge({Dimension.STEPS: 1})

    scope.usage.tokens_used = 11

    with pytest.raises(BudgetExceededError):
        scope.charge({Dimension.STEPS: 1})


@pytest.mark.req("000/B1")
@pytest.mark.parametrize("allowed", [Budget(max_steps=9), Budget()])
def test_scopes_that_share_a_usage_each_see_what_the_others_charge(allowed: Budget) -> None:
    """A scope notices charges that another scope makes on their shared usage."""
    usage = ResourceUsage()
    strict = Scope("strict", Budget(max_steps=1, max_turns=9), usage=usage)
    strict.charge({Dimension.TURNS: 1})
    generous = Scope("generous", allowed, usage=usage)

    generous.charge({Dimension.STEPS: 2})

    with pytest.raises(BudgetExceededError):
        strict.charge({Dimension.TURNS: 1})


class ReadMeanwhile(dict[Dimension, Any]):
    """Amounts that a concurrent thread changes just after they were read."""

    def __init__(self, usage: ResourceUsage) -> None:
        super().__init__(usage.amounts)
        self.usage = usage
        self.written = False

    def get(self, dimension: Dimension, default: Any = None) -> Any:
        found = super().get(dimension, default)
        if dimension is Dimension.TOKENS and not self.written:
            self.written = True
            self.usage.tokens_used += 100
        return found


@pytest.mark.req("000/B4")
def test_what_a_thread_writes_into_a_usage_while_it_is_looked_at_is_seen_next() -> None:
    """A concurrent change of the usage lets at most one charge through."""
    scope = Scope("run", Budget(max_tokens=10))
    amounts = ReadMeanwhile(scope.usage)
    scope.usage.amounts = amounts
    scope.charge({Dimension.STEPS: 1})
    assert amounts.written

    with pytest.raises(BudgetExceededError):
        scope.charge({Dimension.STEPS: 1})
