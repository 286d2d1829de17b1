"""One case at work: its state, its limits, its log, and the calls of its models."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.control.budget import Amount, Dimension
from app.control.ledger import Scope
from app.engine.call import CallFailedError
from app.engine.context import FlowContext
from app.llm.gateway import Completion, ModelGateway, Tier
from app.llm.ports import Message
from app.nodes.case.case import Case, EscalateWhen
from app.nodes.case.prompt import ToolOffer
from app.nodes.case.state import CaseState
from app.observability.redaction import redact_value
from app.tools.ports import ToolContext

Clock = Callable[[], datetime]
"""Returns the time for logs, with an offset."""

MAX_SUMMARY_CHARS = 300

_OURS = frozenset(
    {
        *("event", "level", "purpose", "token_usage", "attempts", "error_class", "problem"),
        *("output_summary", "failed", "metric", "passed", "checks", "stalled_rounds"),
        *("decision", "reason", "act_steps"),
    }
)
"""Details that never hold text from outside; all others are redacted."""

CALLS_OF = {Tier.SMALL: Dimension.LLM_CALLS_SMALL, Tier.BIG: Dimension.LLM_CALLS_BIG}


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseWork:
    """The case, its state, and where it runs.

    What is left of a limit is counted by the case itself and not read from the scope: when a run
    is executed again, the scope already holds what the lost execution has spent, although its
    calls are only about to be replayed. The scope still decides on every new call.
    """

    case: Case
    state: CaseState
    context: FlowContext
    log: "CaseLog"
    models: ModelGateway
    tools: ToolOffer
    tool_context: ToolContext
    wrap_up_reserve: int
    """Calls of the small tier that are kept for the final answer, where one is needed."""
    limits: Mapping[Dimension, Amount]
    """The tightest limit of every dimension, of the step and everything around it."""

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
        """The calls of the small tier that are reserved for the final answer.

        Zero unless the end of planning would be the end of the case, its evidence is no answer by
        itself, and the limit is 2 or more.
        """
        limit = self.limits.get(CALLS_OF[Tier.SMALL], 0)
        escalates = self.case.act.escalate_when is EscalateWhen.FAIL_OR_BUDGET
        is_end = not (escalates and self.calls_left(Tier.BIG) != 0)
        return self.wrap_up_reserve if limit >= 2 and is_end and self.wants_wrap_up else 0

    @property
    def wants_wrap_up(self) -> bool:
        """True if tools have found something that is no answer by itself."""
        evidence = self.state.evidence
        found = any(not (piece.failed or piece.refused) for piece in evidence)
        return self.wrap_up_reserve > 0 and found and self.state.answer is None

    def exhausted(self) -> Dimension | None:
        """Return a limit of the whole run of which nothing is left for another pass.

        A cost limit of which nothing was used is not exhausted: models may be free.
        """
        usage = self.state.usage.values()
        used: dict[Dimension, Amount] = {
            Dimension.TOOL_CALLS: self.state.tool_calls,
            Dimension.TOKENS: sum(tier.tokens for tier in usage),
        }
        if cost := sum(tier.cost_usd for tier in usage):
            used[Dimension.COST_USD] = cost
        limits = self.limits
        reached = (name for name, amount in used.items() if amount >= limits.get(name, math.inf))
        return next(reached, None)

    async def ask(
        self,
        tier: Tier,
        *,
        name: str,
        key: str,
        messages: Sequence[Message],
        json_schema: Mapping[str, Any],
    ) -> Completion:
        """Ask a tier; the call counts as soon as it has begun, whatever becomes of it.

        Raises:
            CallFailedError: the provider failed, its retries included.
            Stop: a limit or a cancel request prevented or ended the call.
        """
        usage, scope, dimension = self.state.usage[tier], self.context.scope, CALLS_OF[tier]
        charged = scope.usage.of(dimension)
        try:
            completion = await self.models.complete(
                self.context,
                tier=tier,
                name=name,
                key=key,
                messages=messages,
                json_schema=json_schema,
                seed=self.case.seed,
            )
        except CallFailedError:
            usage.calls += 1
            raise
        except BaseException:
            usage.calls += scope.usage.of(dimension) > charged
            raise
        usage.add(completion)
        return completion


def tightest_limits(scope: Scope) -> dict[Dimension, Amount]:
    """Return the tightest limit of every dimension, of a scope and its ancestors."""
    tightest: dict[Dimension, Amount] = {}
    for view in scope.lineage():
        for dimension, limit in view.budget.limits().items():
            tightest[dimension] = min(limit, tightest.get(dimension, limit))
    return tightest


class CaseLog:
    """The log of a case: one JSON object a step, redacted."""

    def __init__(self, run_id: str, state: CaseState, clock: Clock) -> None:
        self._run_id = run_id
        self._state = state
        self._clock = clock

    def add(self, step_type: str, **details: Any) -> None:
        """Log one step of the current tier; ``details`` are JSON values."""
        self._state.logs.append(
            {
                "ts": self._clock().isoformat(),
                "run_id": self._run_id,
                "tier": self._state.tier.value,
                "step_type": step_type,
                **{
                    name: value if name in _OURS else redact_value(value, name=name)
                    for name, value in details.items()
                },
            }
        )


def summary(value: Any) -> str:
    """Return the beginning of a text, or of a JSON value as text, redacted before it is cut."""
    shown = redact_value(value)
    text = shown if isinstance(shown, str) else json.dumps(shown, sort_keys=True)
    return text if len(text) <= MAX_SUMMARY_CHARS else f"{text[:MAX_SUMMARY_CHARS]}…"
