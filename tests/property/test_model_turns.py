"""Rate slots of a model: random calls of random runs and tenants, on virtual time.

Runs have little budget or plenty, calls take a while, and some are cancelled. For every seed,
slots keep their distance, every other call gets a slot, and a cancellation ends a wait at once.
Within a queue that does not wait for budget no call is overtaken, and nothing is left over.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.usage import BudgetExceededError
from caseworker.engine.call import Reply, Spent
from caseworker.models.ports import RateLimit
from caseworker.models.turns import Turns
from tests.support.memory_rate_limits import MemoryRateLimits
from tests.support.seeded_loop import SeededLoop, now, run
from tests.unit.engine.gateway import Gateway

LIMIT = RateLimit(model="m", requests_per_minute=60, tokens_per_minute=6000)
LITTLE = Budget(max_tokens=990)
HELD = 900
"""The tokens that another call of a run with little budget holds, leaving too little for a call."""


@dataclass
class SharedModel:
    """Some runs of some tenants whose calls share one model."""

    chance: Random
    limits: MemoryRateLimits = field(default_factory=MemoryRateLimits)
    begun: list[float] = field(default_factory=list)
    order: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """When the calls of a tenant arrived and started, for runs with plenty of budget."""
    happened: Counter[str] = field(default_factory=Counter)

    async def play(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SeededLoop)
        turns = Turns(self.limits)
        gateways = []
        async with asyncio.TaskGroup() as group:
            for _ in range(self.chance.randint(1, 6)):
                poor = self.chance.random() < 0.4
                gateway = Gateway(loop, LITTLE if poor else Budget())
                gateways.append(gateway)
                tenant = self.chance.choice("ab")
                for number in range(self.chance.randint(1, 5)):
                    call = self._call(gateway, turns, tenant, f"{number}/llm", poor=poor)
                    group.create_task(call)
                if poor:
                    group.create_task(self._hold(gateway))
        assert all(gateway.settled() for gateway in gateways)
        assert not turns._queues
        await turns.aclose()

    async def _hold(self, gateway: Gateway) -> None:
        """Let a call without a limit hold most of the budget for a while, if there is enough."""

        async def works() -> Reply:
            await asyncio.sleep(self.chance.uniform(0, 5))
            return Reply({}, Spent())

        await asyncio.sleep(self.chance.uniform(0, 2))
        held = Spent(tokens_in=HELD)
        with suppress(BudgetExceededError):
            await gateway.perform(works, key="hold/llm", cost=held)

    async def _call(
        self, gateway: Gateway, turns: Turns, tenant: str, key: str, *, poor: bool
    ) -> None:
        await asyncio.sleep(self.chance.choice((0.0, self.chance.uniform(0, 4))))
        came, patience = now(), self.chance.uniform(0, 3)

        async def works() -> Reply:
            self.begun.append(now())
            if not poor:
                self.order.setdefault(tenant, []).append((came, now()))
            await asyncio.sleep(self.chance.uniform(0, 2))
            return Reply({}, Spent(tokens_in=10 if poor else self.chance.choice((10, 100, 190))))

        made = gateway.perform(works, key=key, turn=partial(turns.turn, LIMIT, tenant))
        if self.chance.random() < 0.7:
            await made
            self.happened["made"] += 1
            return
        task: asyncio.Task[Any] = asyncio.create_task(made)
        await asyncio.wait([task], timeout=patience)
        until = now()
        if task.cancel():
            await asyncio.wait([task])
            self.happened["cancelled"] += 1
        assert now() == until


def play(seed: int) -> SharedModel:
    world = SharedModel(Random(seed))
    story = run(world.play, seed)
    assert story.leftover == ()
    for earlier, later in zip(world.begun, world.begun[1:], strict=False):
        assert later - earlier >= world.limits.every_seconds - 0.01
    asked, given_back = len(world.limits.asked), len(world.begun)
    assert asked <= 3 * given_back + 2 * world.happened["cancelled"] + 20
    return world


@given(st.integers(0, 2**32))
def test_calls_take_turns_whatever_else_they_wait_for(seed: int) -> None:
    """No deadlock occurs, no call is too early, and nothing is left over."""
    play(seed)


def test_the_stories_hold_what_they_are_about() -> None:
    """The stories contain waits, cancellations while waiting, and completed calls."""
    happened: Counter[str] = Counter()
    for seed in range(20):
        world = play(seed)
        happened += world.happened
        happened["left"] += len(world.limits.left)
        for calls in world.order.values():
            happened["in order"] += calls == sorted(calls)
    assert all(happened[what] > 5 for what in ("made", "cancelled", "left", "in order"))


@pytest.mark.parametrize("seed", range(10))
def test_a_line_is_in_the_order_of_arrival(seed: int) -> None:
    """Calls that wait only for their slot are made in order of arrival."""

    async def main() -> list[int]:
        loop, chance = asyncio.get_running_loop(), Random(seed)
        assert isinstance(loop, SeededLoop)
        gateway, turns, begun = Gateway(loop), Turns(MemoryRateLimits()), list[int]()

        async def call(number: int) -> None:
            async def works() -> Reply:
                begun.append(number)
                return Reply({}, Spent(tokens_in=chance.choice((0, 100))))

            await asyncio.sleep(number * 0.01)
            turn = partial(turns.turn, LIMIT, "t")
            await gateway.perform(works, key=f"{number}/llm", turn=turn)

        async with asyncio.TaskGroup() as group:
            for number in range(12):
                group.create_task(call(number))
        return begun

    assert run(main, seed).result == list(range(12))
