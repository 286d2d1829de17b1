"""One case while it is worked on: what planner, executor and verification share."""

from dataclasses import dataclass, field

from app.control.budget import Amount, Dimension
from app.control.ledger import Scope
from app.engine.context import FlowContext
from app.llm.gateway import Tier
from app.nodes.case.case import Case, EscalateWhen
from app.nodes.case.log import CaseLog
from app.nodes.case.offer import ToolOffer
from app.nodes.case.state import CaseState
from app.tools.ports import ToolContext

CALLS_OF = {Tier.SMALL: Dimension.LLM_CALLS_SMALL, Tier.BIG: Dimension.LLM_CALLS_BIG}


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseWork:
    """The case, where it stands, and where it runs.

    What is left of a limit is counted by the case itself and not read from the scope: when a run
    is executed again, the scope already holds what the lost execution has spent, although its
    calls are only about to be replayed. The scope still has the last word on every new call.
    """

    case: Case
    state: CaseState
    context: FlowContext
    log: CaseLog
    tools: ToolOffer
    tool_context: ToolContext
    wrap_up_reserve: int
    """Calls of the small tier that are kept for the final answer, where there is need of any."""
    limits: dict[Dimension, Amount] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "limits", _limits(self.context.scope))

    def calls_left(self, tier: Tier) -> int | None:
        """Return how often a tier may still be asked; None is unlimited."""
        limit = self.limits.get(CALLS_OF[tier])
        return None if limit is None else max(0, int(limit) - self.state.usage[tier].calls)

    def planning_calls_left(self, tier: Tier) -> int | None:
        """Return how often a tier may still be asked for a plan; None is unlimited."""
        left = self.calls_left(tier)
        if left is None or tier is not Tier.SMALL:
            return left
        return max(0, left - self.kept_back)

    @property
    def kept_back(self) -> int:
        """The small tier's calls that planning leaves alone (spec, section 3).

        None unless the end of planning would be the end of the case, and its evidence is no answer
        by itself; and none of a limit below 2.
        """
        limit = self.limits.get(CALLS_OF[Tier.SMALL])
        escalates = self.case.act.escalate_when is EscalateWhen.FAIL_OR_BUDGET
        if limit is None or limit < 2 or (escalates and self.calls_left(Tier.BIG) != 0):
            return 0
        return self.wrap_up_reserve if self.wants_wrap_up else 0

    @property
    def wants_wrap_up(self) -> bool:
        """True where tools have found something that is no answer by itself."""
        evidence = self.state.evidence
        found = any(not (piece.failed or piece.refused) for piece in evidence)
        return self.wrap_up_reserve > 0 and found and self.state.answer is None

    def spent(self) -> Dimension | None:
        """Return a limit of the whole run of which nothing is left for another pass.

        A cost limit that was never drawn on is not spent: models may be free.
        """
        usage = self.state.usage.values()
        used: dict[Dimension, Amount] = {
            Dimension.TOOL_CALLS: self.state.tool_calls,
            Dimension.TOKENS: sum(tier.tokens for tier in usage),
        }
        cost = sum(tier.cost_usd for tier in usage)
        if cost:
            used[Dimension.COST_USD] = cost
        reached = (
            dimension
            for dimension, amount in used.items()
            if dimension in self.limits and amount >= self.limits[dimension]
        )
        return next(reached, None)


def _limits(scope: Scope) -> dict[Dimension, Amount]:
    """Return the tightest limit of every dimension, here and above."""
    tightest: dict[Dimension, Amount] = {}
    for view in scope.lineage():
        for dimension, limit in view.budget.limits().items():
            tightest[dimension] = min(limit, tightest.get(dimension, limit))
    return tightest
