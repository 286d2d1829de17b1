"""Whether an agent has room for a further turn beside its last answer.

What is left of a budget must pay the turn and, where the limit allows two calls or more, a last
answer after it. The answer is expected to cost what the dearest call of the agent so far has cost:
it reads the same conversation, and a little more.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal

from app.control.budget import Amount, Dimension
from app.control.ledger import Scope
from app.control.stops import Stop, StopCause, StopKind
from app.llm.gateway import Completion
from app.llm.tiers import CALLS_OF, Tier


@dataclass(slots=True, kw_only=True)
class RoomForTurns:
    """What one execution of an agent may still do."""

    scope: Scope
    tier: Tier
    max_turns: int | None
    """None: as many as the run may have."""
    wrap_up_reserve: int
    """How many last answers are kept back."""
    _dearest: dict[Dimension, Amount] = field(default_factory=dict)

    def answered(self, completion: Completion) -> None:
        """Note what a call of the model has cost."""
        cost: dict[Dimension, Amount] = {
            Dimension.TOKENS: completion.tokens_in + completion.tokens_out,
            Dimension.COST_USD: completion.cost_usd or Decimal(0),
        }
        self._dearest = {name: max(self._dearest.get(name, 0), cost[name]) for name in cost}

    def allows_wrap_up(self, turns: int) -> bool:
        """Return whether a last answer may be asked for after so many turns."""
        few = self.max_turns is not None and self.max_turns < 2
        return bool(self.wrap_up_reserve and turns and not few)

    def stop_before(self, number: int) -> Stop | None:
        """Return the stop that a turn would meet, or that would leave no room for an answer."""
        most = self.max_turns
        if most is not None and number > most:
            return _turn_limit(self.scope, most)
        used_up = next(self._used_up(begun=number > 1), None)
        if used_up is None:
            return None
        dimension, requested = used_up
        return _tightest(self.scope, dimension).stop(dimension, requested)

    def _used_up(self, *, begun: bool) -> Iterator[tuple[Dimension, Amount]]:
        """Yield what leaves no room for a turn beside a last answer, and how much that needs."""
        for dimension in (Dimension.TURNS, CALLS_OF[self.tier], Dimension.API_CALLS):
            left = self.scope.remaining(dimension)
            kept = 0
            if begun and left is not None and dimension is not Dimension.TURNS:
                limit = _tightest(self.scope, dimension).limits[dimension]
                kept = self.wrap_up_reserve if limit >= 2 else 0
            if left is not None and left <= kept:
                yield dimension, 1
        for dimension, most in self._dearest.items():
            left = self.scope.remaining(dimension)
            if self.wrap_up_reserve and left is not None and most <= left < 2 * most:
                yield dimension, 2 * most


def _tightest(scope: Scope, dimension: Dimension) -> Scope:
    """Return the scope whose limit leaves the least."""
    scopes = [each for each in scope.lineage() if dimension in each.limits]
    return min(scopes, key=lambda each: each.room(dimension) or 0)


def _turn_limit(scope: Scope, most: int) -> Stop:
    cause = StopCause(
        kind=StopKind.BUDGET,
        dimension=Dimension.TURNS,
        scope=scope.name,
        limit=most,
        used=most,
        requested=1,
        reason=f"Turn limit exceeded: {most} used, limit {most} (scope {scope.name})",
    )
    return Stop(cause)
