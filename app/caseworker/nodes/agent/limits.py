"""Limits of an agent: which turn is the last one, and which is refused.

A limit of N calls or turns allows N. Where the limit is 2 or more, its last one is reserved for an
answer (``wrap_up_reserve``): it is an ordinary turn in which the model is told that no tool can be
called any more. An answer in it is a completion; a call of a tool in it would need a further turn,
which the limit refuses. For tokens and cost the reserve is what the most expensive call of the
agent so far has used, because a later call reads the same conversation and a little more.
"""

from dataclasses import dataclass, field
from decimal import Decimal

from caseworker.control.budget import Amount, Dimension
from caseworker.control.ledger import Scope
from caseworker.control.stops import Stop, StopCause, StopKind
from caseworker.llm.gateway import Completion


@dataclass(slots=True, kw_only=True)
class RoomForTurns:
    """What one execution of an agent may still do."""

    scope: Scope
    calls: tuple[Dimension, ...]
    """What counts a call of its model."""
    max_turns: int | None
    """None: as many as the run may have."""
    wrap_up_reserve: int
    """1 if a call is reserved for the last answer, else 0."""
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
        most = self.max_turns
        return bool(self.wrap_up_reserve and turns and (most is None or turns < most))

    def stop_before(self, number: int) -> Stop | None:
        """Return the stop of a turn that exceeds a limit of turns or calls."""
        most = self.max_turns
        if most is not None and number > most:
            return _turn_limit(self.scope, most)
        for dimension in self._calls:
            if self.scope.remaining(dimension) == 0:
                return _tightest(self.scope, dimension).stop(dimension, 1)
        return None

    def stop_after(self, number: int) -> Stop | None:
        """Return the stop of the turn after ``number``, if ``number`` is paid from the reserve."""
        if number < 2 or not self.wrap_up_reserve:
            return None
        most = self.max_turns
        if most is not None and number >= most:
            return _turn_limit(self.scope, most, kept_for_answer=1)
        for dimension, amount in {**dict.fromkeys(self._calls, 1), **self._dearest}.items():
            left = self.scope.remaining(dimension)
            if left is None or not amount or left >= 2 * amount:
                continue
            scope = _tightest(self.scope, dimension)
            if scope.limits[dimension] >= 2 * amount:
                return scope.stop(dimension, amount, kept_for_answer=amount)
        return None

    @property
    def _calls(self) -> tuple[Dimension, ...]:
        """The dimensions of which each turn uses one."""
        return Dimension.TURNS, *self.calls, Dimension.API_CALLS


def _tightest(scope: Scope, dimension: Dimension) -> Scope:
    """Return the scope whose limit leaves the least."""
    scopes = [each for each in scope.lineage() if dimension in each.limits]
    return min(scopes, key=lambda each: each.room(dimension) or 0)


def _turn_limit(scope: Scope, most: int, *, kept_for_answer: int = 0) -> Stop:
    kept = ", of which 1 reserved for the last answer" if kept_for_answer else ""
    cause = StopCause(
        kind=StopKind.BUDGET,
        dimension=Dimension.TURNS,
        scope=scope.name,
        limit=most,
        used=most,
        reserved=kept_for_answer or None,
        requested=1,
        reason=f"Turn limit exceeded: {most} used{kept}, limit {most} (scope {scope.name})",
    )
    return Stop(cause)
