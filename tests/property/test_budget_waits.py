"""Waiting for budget: random lanes in random trees of scopes, on virtual time.

Each lane reserves, works, makes nested calls, and settles. Some lanes are cancelled while they
wait. Times are whole seconds, so a cancellation often arrives at the same instant as a grant.
For every tree and seed, no limit is exceeded, no reservation leaks, every lane ends, no lane is
overtaken, and a request is refused only if it cannot fit next to its own reservations.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caseworker.core.budget.budget import Budget, Dimension
from caseworker.core.budget.ledger import Reservation, Scope, Waiter
from caseworker.core.budget.usage import BudgetExceededError
from caseworker.engine.budget_wait import reserved
from tests.support.seeded_loop import run

CALLS, TOKENS = Dimension.API_CALLS, Dimension.TOKENS

seeds = st.integers(0, 2**32)
"""A seed determines tree, lanes and order of events; drawing each separately is slower."""


@dataclass(frozen=True)
class Call:
    """A call of a lane, with the calls made while it is in flight."""

    scope: int
    asks: dict[Dimension, int]
    share_used: float
    seconds: float
    inside: tuple["Call", ...] = ()
    cancelled_after: float | None = None


def some_tree(chance: Random) -> list[Scope]:
    """Return up to six scopes, each inside an earlier one."""

    def limits() -> Budget:
        return Budget(
            max_api_calls=chance.choice((None, chance.randint(0, 8))),
            max_tokens=chance.choice((None, chance.randint(0, 60))),
        )

    scopes = [Scope("run", limits())]
    for number in range(chance.randint(0, 5)):
        scopes.append(chance.choice(scopes).child(str(number), limits()))
    return scopes


def some_call(chance: Random, *, nested: bool = False) -> Call:
    """Return a call, optionally with nested calls or a cancellation."""
    asks = {CALLS: chance.randint(1, 2), TOKENS: chance.randint(1, 30)}
    inside = 0 if nested else chance.randint(0, 2)
    return Call(
        scope=chance.randint(0, 5),
        asks={d: asks[d] for d in chance.sample((CALLS, TOKENS), chance.randint(1, 2))},
        share_used=chance.random(),
        seconds=chance.randint(1, 3),
        inside=tuple(some_call(chance, nested=True) for _ in range(inside)),
        cancelled_after=chance.randint(1, 3) if chance.random() < 0.5 else None,
    )


@dataclass
class ScopeTree:
    """A tree of scopes, and a record of its events."""

    scopes: list[Scope] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)

    def check(self) -> None:
        for scope in self.scopes:
            for dimension, limit in scope.limits.items():
                held = scope.reserved(dimension)
                assert held >= 0
                assert scope.usage.of(dimension) + held <= limit  # type: ignore[operator]

    async def make(self, call: Call, own: tuple[dict[Dimension, int], ...] = ()) -> None:
        scope = self.scopes[call.scope % len(self.scopes)]
        try:
            async with asyncio.timeout(call.cancelled_after):
                asked = reserved(scope, call.asks, waits=lambda: self._count("waited"))
                with await asked as reservation:
                    self.check()
                    for inner in call.inside:
                        await self.make(inner, (*own, call.asks))
                    await asyncio.sleep(call.seconds)
                    used = {d: int(n * call.share_used) for d, n in call.asks.items()}
                    reservation.settle(used)
                    self._count("made")
        except TimeoutError:
            self._count("cancelled")
        except BudgetExceededError as refused:
            self._count("refused")
            if not own:
                self._require_rightly(refused, call, scope)
        self.check()

    def _count(self, what: str) -> None:
        self.happened[what] += 1

    def _require_rightly(self, refused: BudgetExceededError, call: Call, scope: Scope) -> None:
        """Require that a lane without reservations is refused only by charged usage."""
        cause = refused.cause
        by = next(s for s in scope.lineage() if s.name == cause.scope)
        dimension = Dimension(str(cause.dimension))
        assert by.usage.of(dimension) + call.asks[dimension] > by.limits[dimension]


def play(seed: int) -> ScopeTree:
    """Run all lanes; the loop raises if they deadlock."""
    chance = Random(seed)
    world = ScopeTree(some_tree(chance))
    lanes = [
        [some_call(chance) for _ in range(chance.randint(1, 4))]
        for _ in range(chance.randint(1, 8))
    ]

    async def lane(todo: list[Call]) -> None:
        for call in todo:
            await world.make(call)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for todo in lanes:
                group.create_task(lane(todo))

    assert run(main, seed).leftover == ()
    return world


@pytest.mark.req("000/B5")
@settings(max_examples=200)
@given(seed=seeds)
def test_lanes_in_any_tree_of_scopes_come_to_an_end_within_all_limits(seed: int) -> None:
    """All lanes end within all limits, with nested calls and with cancelled waits."""
    world = play(seed)

    assert len(world.scopes[0].queue) == 0
    assert all(not amount for scope in world.scopes for amount in scope.reserved_amounts.values())


@pytest.mark.req("000/B1")
@given(
    allowed=st.integers(0, 12),
    lanes=st.integers(1, 32),
    depth=st.integers(0, 3),
    seed=seeds,
)
def test_n_allowed_are_n_made_however_many_lanes_ask_and_some_give_up(
    allowed: int, lanes: int, depth: int, seed: int
) -> None:
    """A lane that reserves and then does not call makes room for another lane."""
    made = 0

    async def lane(scope: Scope, number: int) -> None:
        nonlocal made
        try:
            reservation = await reserved(scope, {CALLS: 1})
        except BudgetExceededError:
            return
        await asyncio.sleep(number % 3)
        gives_up = number < lanes - allowed and number % 2 == 0
        reservation.settle({} if gives_up else {CALLS: 1})
        made += not gives_up

    async def main() -> None:
        scope = Scope("run", Budget(max_api_calls=allowed))
        for level in range(depth):
            scope = scope.child(str(level), None)
        async with asyncio.TaskGroup() as group:
            for number in range(lanes):
                group.create_task(lane(scope, number))

    run(main, seed)

    assert made == min(allowed, lanes)


@given(
    amounts=st.lists(st.integers(1, 50), min_size=2, max_size=12),
    seconds=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    seed=seeds,
)
def test_who_comes_first_gets_its_reservation_first(
    amounts: list[int], seconds: list[int], seed: int
) -> None:
    """Smaller requests that would fit do not overtake a large one."""
    granted: dict[int, float] = {}

    async def lane(scope: Scope, number: int) -> None:
        await asyncio.sleep(number)
        with await reserved(scope, {TOKENS: amounts[number]}):
            granted[number] = asyncio.get_running_loop().time()
            await asyncio.sleep(20 + seconds[number])

    async def main() -> None:
        scope = Scope("run", Budget(max_tokens=50))
        async with asyncio.TaskGroup() as group:
            for number in range(len(amounts)):
                group.create_task(lane(scope, number))

    run(main, seed)

    times = [granted[number] for number in range(len(amounts))]
    assert times == sorted(times)


def test_random_lanes_do_wait_are_made_refused_and_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The random worlds are not vacuous; some cancellations follow a grant at the same instant."""
    late: Counter[str] = Counter()
    leave = Waiter.leave

    def left(waiter: Waiter) -> None:
        late["cancelled after a grant"] += isinstance(waiter.outcome, Reservation)
        leave(waiter)

    monkeypatch.setattr(Waiter, "leave", left)
    happened = sum((play(seed).happened for seed in range(100)), Counter[str]())

    happened += late
    outcomes = ("made", "waited", "refused", "cancelled", "cancelled after a grant")
    assert all(happened[outcome] > 10 for outcome in outcomes), happened


async def by_another(scope: Scope, asks: dict[Dimension, int]) -> Reservation:
    """Reserve in another task."""
    return await asyncio.create_task(reserved(scope, asks))


def in_story(story: Any) -> None:
    assert run(story, 0).leftover == ()


def test_who_needs_nothing_of_what_is_contested_does_not_wait() -> None:
    """A call that needs no tokens does not wait behind a call that does."""

    async def story() -> None:
        scope = Scope("run", Budget(max_tokens=100, max_tool_calls=5))
        with await by_another(scope, {TOKENS: 90}):
            waiting = asyncio.create_task(reserved(scope, {TOKENS: 50, Dimension.TOOL_CALLS: 1}))
            await asyncio.sleep(1)
            assert not waiting.done()
            async with asyncio.timeout(0.1):
                await reserved(scope, {Dimension.TOOL_CALLS: 1})
        (await waiting).settle()

    in_story(story)


def test_the_last_of_a_dimension_is_kept_for_who_came_first() -> None:
    """The first lane waits for tokens and needs the one remaining tool call."""

    async def story() -> None:
        scope = Scope("run", Budget(max_tokens=100, max_tool_calls=1))
        holding = await by_another(scope, {TOKENS: 90})
        both = {TOKENS: 50, Dimension.TOOL_CALLS: 1}
        async with asyncio.TaskGroup() as group:
            first = group.create_task(reserved(scope, both))
            await asyncio.sleep(1)
            second = group.create_task(reserved(scope, {Dimension.TOOL_CALLS: 1}))
            await asyncio.sleep(1)
            assert not second.done()
            holding.settle({TOKENS: 1})
            (await first).settle()
        assert second.done()

    in_story(story)


def test_a_call_inside_a_call_does_not_wait_for_the_call_around_it() -> None:
    """The call would wait for a reservation that is settled only after it, so it is refused."""

    async def story() -> None:
        scope = Scope("run", Budget(max_tokens=100))
        with await reserved(scope, {TOKENS: 60}), pytest.raises(BudgetExceededError) as refused:
            await reserved(scope, {TOKENS: 50})
        cause = refused.value.cause
        found = (cause.used, cause.reserved, cause.requested, cause.limit, cause.scope)
        assert found == (0, 60, 50, 100, "run")

    in_story(story)


def test_a_cancel_that_follows_a_grant_gives_the_reservation_back() -> None:
    """A waits for 5 of 10; the holder settles, and A is cancelled before it runs again."""

    async def story() -> None:
        scope = Scope("run", Budget(max_tokens=10))
        holding = await by_another(scope, {TOKENS: 10})
        waiting = asyncio.create_task(reserved(scope, {TOKENS: 5}))
        await asyncio.sleep(1)
        holding.settle()
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        assert scope.remaining(TOKENS) == 10

    in_story(story)


@given(asks=st.lists(st.integers(1, 20), min_size=2, max_size=6), order=st.randoms(), seed=seeds)
def test_of_calls_that_wait_for_one_another_only_the_last_to_ask_is_refused(
    asks: list[int], order: Random, seed: int
) -> None:
    """None of these calls can be settled before another one, because together they hold the limit.

    A call without a reservation waits from the start and is not refused.
    """
    arrivals = list(range(len(asks)))
    order.shuffle(arrivals)
    refused: list[int] = []

    async def outer(scope: Scope, number: int) -> None:
        with await reserved(scope, {TOKENS: 20}):
            await asyncio.sleep(1 + arrivals[number])
            try:
                (await reserved(scope, {TOKENS: asks[number]})).settle()
            except BudgetExceededError:
                refused.append(arrivals[number])

    async def main() -> None:
        scope = Scope("run", Budget(max_tokens=20 * len(asks)))
        async with asyncio.TaskGroup() as group:
            for number in range(len(asks)):
                group.create_task(outer(scope, number))
            await asyncio.sleep(0.5)
            (await by_another(scope, {TOKENS: 20})).settle()

    assert run(main, seed).leftover == ()
    assert refused == [len(asks) - 1]


def test_a_reservation_that_is_settled_in_a_thread_wakes_who_waits() -> None:
    """The waiter is on the event loop, and the reservation is settled in a thread."""

    async def story() -> None:
        scope = Scope("run", Budget(max_tokens=10))
        holding = await by_another(scope, {TOKENS: 10})
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(reserved(scope, {TOKENS: 5}))
            await asyncio.sleep(0)
            await asyncio.get_running_loop().run_in_executor(None, holding.settle)
        waiting.result().settle()

    asyncio.run(story())
