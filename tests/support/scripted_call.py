"""A call whose estimate is fixed and whose attempts a function makes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from caseworker.core.budget.ledger import FreeAmounts
from caseworker.engine.call import FREE, Call, RateSlot, Reply, Spent


@dataclass(kw_only=True, eq=False)
class ScriptedCall(Call):
    """A call whose attempts a function makes; an interrupted attempt costs the full estimate."""

    attempt: Callable[[], Awaitable[Reply]]
    cost: Spent = FREE
    """The estimate of an attempt."""
    turn: Callable[[], RateSlot] | None = None
    """Creates the rate slot of an attempt; None for an unlimited model."""

    def estimate(self, room: FreeAmounts) -> Spent:
        return self.cost

    def rate_slot(self) -> RateSlot | None:
        return None if self.turn is None else self.turn()

    async def send(self, attempt: int) -> Reply:
        return await self.attempt()

    def lost(self) -> Spent:
        return FREE if self.cost == FREE else replace(self.cost, estimated=True)
