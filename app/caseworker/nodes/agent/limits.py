"""An agent's turn and call limits: which turn is the last permitted one, and which is refused.

A limit of N calls or turns permits N. If the limit is 2 or more, the last one is reserved for an
answer (``wrap_up_reserve``). In that turn the model is informed that no more tools can be called.
An answer in it completes the agent. A tool call would need another turn, which the limit refuses.
For tokens and cost, the reserve equals the agent's most expensive call so far, because a later call
reads the same conversation and slightly more.
"""

from dataclasses import dataclass, field
from decimal import Decimal

from caseworker.core.budget.budget import Amount, Dimension
from caseworker.core.budget.ledger import Scope
from caseworker.core.budget.reservations import free_amounts
from caseworker.core.budget.stops import Stop, StopCause, StopKind
from caseworker.models.gateway import Completion


@dataclass(slots=True, kw_only=True)
class TurnCapacity:
    """Decides whether an agent may start another turn within its limits."""

    scope: Scope
    calls: tuple[Dimension, ...]
    """Budget dimensions that count a call to the agent's model."""
    max_turns: int | None
    """Maximum number of turns; None means that only the run limits them."""
    wrap_up_reserve: int
    """Number of calls reserved for the last answer: 1 or 0."""
    _dearest: dict[Dimension, Amount] = field(default_factory=dict)

    def answered(self, completion: Completion) -> None:
        """Record the tokens and cost of a model call, which determine the reserve."""
        cost: dict[Dimension, Amount] = {
            Dimension.TOKENS: completion.tokens_in + completion.tokens_out,
            Dimension.COST_USD: completion.cost_usd or Decimal(0),
        }
        self._dearest = {name: max(self._dearest.get(name, 0), cost[name]) for name in cost}

    def allows_wrap_up(self, turns: int) -> bool:
        """Return whether a final answer may be requested after ``turns`` turns."""
        limit = self.max_turns
        return bool(self.wrap_up_reserve and turns and (limit is None or turns < limit))

    def stop_before(self, number: int) -> Stop | None:
        """Return a stop if turn ``number`` would exceed a turn or call limit; otherwise None."""
        limit = self.max_turns
        if limit is not None and number > limit:
            return _turn_limit_stop(self.scope, limit)
        for dimension in self._calls:
            if self.scope.remaining(dimension) == 0:
                return _tightest(self.scope, dimension).stop(dimension, 1)
        return None

    def stop_after(self, number: int) -> Stop | None:
        """Return a stop if turn ``number`` is the last permitted one, reserved for the answer.

        The caller raises the stop if the turn gives no answer. None means that another turn may
        follow.
        """
        if number < 2 or not self.wrap_up_reserve:
            return None
        turn_limit = self.max_turns
        if turn_limit is not None and number >= turn_limit:
            return _turn_limit_stop(self.scope, turn_limit, kept_for_answer=1)
        for dimension, amount in {**dict.fromkeys(self._calls, 1), **self._dearest}.items():
            remaining = self.scope.remaining(dimension)
            if remaining is None or not amount or remaining >= 2 * amount:
                continue
            scope = _tightest(self.scope, dimension)
            if scope.limits[dimension] >= 2 * amount:
                return scope.stop(dimension, amount, kept_for_answer=amount)
        return None

    @property
    def _calls(self) -> tuple[Dimension, ...]:
        """The dimensions in which each turn uses one unit."""
        return Dimension.TURNS, *self.calls, Dimension.API_CALLS


def _tightest(scope: Scope, dimension: Dimension) -> Scope:
    """Return the scope with the smallest remaining amount."""
    scopes = [each for each in scope.lineage() if dimension in each.limits]
    return min(scopes, key=lambda each: free_amounts((each,))[dimension])


def _turn_limit_stop(scope: Scope, limit: int, *, kept_for_answer: int = 0) -> Stop:
    note = ", of which 1 reserved for the last answer" if kept_for_answer else ""
    cause = StopCause(
        kind=StopKind.BUDGET,
        dimension=Dimension.TURNS,
        scope=scope.name,
        limit=limit,
        used=limit,
        reserved=kept_for_answer or None,
        requested=1,
        reason=f"Turn limit exceeded: {limit} used{note}, limit {limit} (scope {scope.name})",
    )
    return Stop(cause)
