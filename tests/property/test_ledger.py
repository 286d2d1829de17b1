"""Budgets under parallel work: random lanes in nested scopes, on virtual time.

Each lane reserves, works for a while, and settles at its real usage, which for tokens and cost
may exceed the estimate; some of the work is cancelled. The event loop's seed decides which lane
runs next.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from caseworker.core.budget.budget import Amount, Budget, Dimension
from caseworker.core.budget.ledger import Reservation, Scope, Waiter
from caseworker.core.budget.usage import BudgetExceededError, Charge
from tests.support.seeded_loop import run

COUNTS = (Dimension.STEPS, Dimension.API_CALLS, Dimension.TOOL_CALLS)
METERED = (Dimension.TOKENS, Dimension.COST_USD)
EVERY = (*COUNTS, *METERED)

limits = st.none() | st.integers(0, 12)
metered = st.none() | st.integers(0, 60)
budgets = st.builds(
    Budget,
    max_steps=limits,
    max_api_calls=limits,
    max_tool_calls=limits,
    max_tokens=metered,
    max_cost_dollars=st.none() | st.decimals(0, 6, places=2),
)


@dataclass(frozen=True)
class Work:
    """One piece of a lane's work."""

    scope: int
    estimated: dict[Dimension, Any]
    used: dict[Dimension, Any]
    seconds: float
    cancelled_after: float | None
    """When its task is cancelled, in seconds; its usage is still settled."""


@st.composite
def works(draw: st.DrawFn) -> Work:
    counted = draw(st.dictionaries(st.sampled_from(COUNTS), st.integers(1, 2)))
    tokens, more_tokens = draw(st.integers(0, 20)), draw(st.integers(-20, 10))
    cost, more_cost = draw(st.integers(0, 200)), draw(st.integers(-200, 100))
    metered_at = {Dimension.TOKENS: tokens, Dimension.COST_USD: Decimal(cost) / 100}
    really = {
        Dimension.TOKENS: max(0, tokens + more_tokens),
        Dimension.COST_USD: Decimal(max(0, cost + more_cost)) / 100,
    }
    return Work(
        scope=draw(st.integers(0, 3)),
        estimated={**counted, **metered_at},
        used={**counted, **really},
        seconds=draw(st.floats(0, 3)),
        cancelled_after=draw(st.none() | st.floats(0, 2)),
    )


lanes_of_work = st.lists(st.lists(works(), min_size=1, max_size=6), min_size=1, max_size=8)


@dataclass
class Bank:
    """A tree of scopes, with independent bookkeeping."""

    scopes: list[Scope]
    in_flight: Counter[str] = field(default_factory=Counter)
    excess: dict[tuple[str, Dimension], Amount] = field(default_factory=dict)
    """The usage of the work in flight above its estimates, summed up until it has settled."""
    happened: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Check every promise before and after a step of work."""
        yield
        for scope in self.scopes:
            for dimension, limit in scope.budget.limits().items():
                used, held = scope.usage.of(dimension), scope.reserved(dimension)
                assert held >= 0
                assert used + held <= limit + self._allowed_excess(scope, dimension)  # type: ignore[operator]

    def settled(self, scope: Scope, work: Work) -> None:
        """Record by how much permitted work has exceeded its estimate."""
        for dimension in METERED:
            over = max(0, work.used[dimension] - work.estimated[dimension])
            for around in scope.lineage():
                place = (around.name, dimension)
                self.excess[place] = self.excess.get(place, 0) + over

    def _allowed_excess(self, scope: Scope, dimension: Dimension) -> Amount:
        return 0 if dimension in COUNTS else self.excess.get((scope.name, dimension), 0)


def tree(limits: list[Budget]) -> list[Scope]:
    """Return the scopes run > graph > agent, and a second agent next to the graph."""
    top = Scope("run", limits[0])
    graph = top.child("graph", limits[1])
    return [top, graph, graph.child("agent", limits[2]), top.child("other", limits[3])]


async def do(bank: Bank, work: Work) -> None:
    scope = bank.scopes[work.scope]
    before = [[s.reserved(d) for d in EVERY] for s in bank.scopes]
    try:
        with bank.watched():
            reservation = scope.reserve(work.estimated)
    except BudgetExceededError:
        assert before == [[s.reserved(d) for d in EVERY] for s in bank.scopes]
        bank.happened["refused"] += 1
        return
    try:
        async with asyncio.timeout(work.cancelled_after):
            await asyncio.sleep(work.seconds)
        bank.happened["ended"] += 1
    except TimeoutError:
        bank.happened["cancelled"] += 1
    finally:
        bank.settled(scope, work)
        with bank.watched():
            reservation.settle(work.used)


async def lane(bank: Bank, todo: list[Work]) -> None:
    for work in todo:
        await do(bank, work)


def play(limits: list[Budget], lanes: list[list[Work]], seed: int) -> Bank:
    bank = Bank(tree(limits))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for todo in lanes:
                group.create_task(lane(bank, todo))

    story = run(main, seed)
    assert story.leftover == ()
    return bank


@settings(max_examples=60)
@given(
    limits=st.lists(budgets, min_size=4, max_size=4),
    lanes=lanes_of_work,
    seed=st.integers(0, 2**32),
)
def test_no_lane_passes_a_limit_of_its_scope_or_of_those_around_it(
    limits: list[Budget], lanes: list[list[Work]], seed: int
) -> None:
    """No limit is exceeded at any step; no reservation outlives its work or refusal."""
    bank = play(limits, lanes, seed)

    for scope in bank.scopes:
        assert [scope.reserved(dimension) for dimension in EVERY] == [0] * len(EVERY)
        for dimension, limit in scope.budget.limits().items():
            if dimension in COUNTS:
                assert scope.usage.of(dimension) <= limit


@settings(max_examples=40)
@given(
    limits=st.lists(budgets, min_size=4, max_size=4),
    lanes=lanes_of_work,
    seed=st.integers(0, 2**32),
)
def test_tokens_and_cost_are_overshot_by_one_call_a_lane_at_the_most(
    limits: list[Budget], lanes: list[list[Work]], seed: int
) -> None:
    """Once a limit is exceeded, only work that was already in flight still settles."""
    bank = Bank(tree(limits))
    late: Counter[tuple[str, Dimension]] = Counter()

    def count_late(scope: Scope) -> None:
        for around in scope.lineage():
            for dimension in METERED:
                limit = around.budget.limits().get(dimension)
                if limit is not None and around.usage.of(dimension) > limit:
                    late[around.name, dimension] += 1

    async def watched(todo: list[Work]) -> None:
        for work in todo:
            refused = bank.happened["refused"]
            await do(bank, work)
            if bank.happened["refused"] == refused:
                count_late(bank.scopes[work.scope])

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for todo in lanes:
                group.create_task(watched(todo))

    run(main, seed)

    assert max(late.values(), default=0) <= len(lanes)


@given(
    allowed=st.integers(0, 20), lanes=st.integers(1, 8), each=st.integers(1, 6), seed=st.integers(0)
)
def test_a_limit_of_n_lets_exactly_n_calls_through_however_many_lanes_ask(
    allowed: int, lanes: int, each: int, seed: int
) -> None:
    """Exactly N calls are made as long as enough lanes ask."""
    one = Work(0, {Dimension.API_CALLS: 1}, {Dimension.API_CALLS: 1}, 1.0, None)
    zero: Charge = {Dimension.TOKENS: 0, Dimension.COST_USD: Decimal(0)}
    one.estimated.update(zero)
    one.used.update(zero)

    budget = Budget(max_api_calls=allowed)
    bank = play([budget, *[Budget()] * 3], [[one] * each for _ in range(lanes)], seed)

    assert bank.scopes[0].usage.api_calls == min(allowed, lanes * each)
    assert bank.happened["refused"] == max(0, lanes * each - allowed)


amounts = st.tuples(st.integers(0, 3), st.sampled_from(EVERY), st.integers(0, 12))


@given(
    limits=st.lists(budgets, min_size=4, max_size=4),
    held=st.lists(amounts, max_size=4),
    spent=st.lists(amounts, max_size=4),
)
def test_what_remains_fits_exactly_and_one_more_does_not(
    limits: list[Budget],
    held: list[tuple[int, Dimension, int]],
    spent: list[tuple[int, Dimension, int]],
) -> None:
    """The tightest of nested limits applies, whether it is far away, reached exactly or exceeded.

    Charge, reserve and ask agree, and no remainder is negative.
    """
    scopes = tree(limits)
    for place, dimension, amount in held:
        with suppress(BudgetExceededError):  # in another context, like another task
            copy_context().run(scopes[place].reserve, {dimension: amount})
    for place, dimension, amount in spent:
        scopes[place].add({dimension: amount})

    for scope, dimension in product(scopes, EVERY):
        usages = [(each, each.usage.of(dimension)) for each in scope.lineage()]
        rests: list[Any] = [
            each.limits[dimension] - used - each.reserved(dimension)  # type: ignore[operator]
            for each, used in usages
            if dimension in each.limits
        ]
        if not rests:
            assert scope.remaining(dimension) is None
            continue
        left, more = max(0, min(rests)), Decimal("0.01") if dimension in METERED else 1
        within = all(
            each.usage.of(d) <= most for each, _ in usages for d, most in each.limits.items()
        )
        assert scope.remaining(dimension) == left
        assert ways_that_grant(scope, {dimension: left}) == (WAYS if within else set())
        assert ways_that_grant(scope, {dimension: left + more}) == set()


WAYS = {"ask", "reserve", "charge"}


def ways_that_grant(scope: Scope, charge: Charge) -> set[str]:
    """Return the functions that grant a charge; every charge is reverted."""
    found = set[str]()
    asked: Reservation | Waiter | None = None
    with suppress(BudgetExceededError):
        asked = scope.ask(charge)
    if isinstance(asked, Waiter):
        asked.leave()
    elif asked is not None:
        asked.settle()
        found.add("ask")
    with suppress(BudgetExceededError):
        scope.reserve(charge).settle()
        found.add("reserve")
    with suppress(BudgetExceededError):
        scope.charge(charge)
        found.add("charge")
        scope.add({dimension: -amount for dimension, amount in charge.items()})
    return found


@given(around=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_one_limit_of_cost_that_requires_prices_refuses_unpriced_calls(
    around: list[tuple[bool, bool]],
) -> None:
    """One cost limit that requires prices is enough to refuse an unpriced call."""
    scope: Scope | None = None
    for limits_cost, requires in around:
        budget = Budget(max_cost_dollars=1) if limits_cost else Budget()
        scope = Scope("scope", budget, parent=scope, requires_prices=requires)

    assert scope is not None
    assert scope.requires_prices() is ((True, True) in around)


def test_random_lanes_do_end_are_refused_and_are_cancelled() -> None:
    """The random worlds are not vacuous."""
    happened: Counter[str] = Counter()

    @settings(max_examples=40, deadline=None, derandomize=True, database=None)
    @given(
        limits=st.lists(budgets, min_size=4, max_size=4),
        lanes=lanes_of_work,
        seed=st.integers(0, 2**32),
    )
    def count(limits: list[Budget], lanes: list[list[Work]], seed: int) -> None:
        happened.update(play(limits, lanes, seed).happened)

    count()

    assert all(happened[outcome] > 10 for outcome in ("ended", "refused", "cancelled")), happened
