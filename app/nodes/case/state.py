"""The state of a case while it is worked on, and the result that is made of it."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any

from app.llm.gateway import Completion, Tier
from app.nodes.case.case import FinishReason
from app.nodes.case.evidence import Evidence, compose
from app.nodes.case.gate import PlanFailureKind
from app.nodes.case.plan import Action, Plan
from app.tools.artifacts import ARTIFACTS, references_in
from app.tools.ports import ToolResult


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model and its provider."""

    provider: str
    model: str


@dataclass(slots=True)
class TierUsage:
    """What one tier has used; money in US dollars."""

    calls: int = 0
    """Logical calls, reprompts and failed ones included."""
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    """The part of ``tokens_in`` that came from a provider's cache."""
    tokens_reasoning: int = 0
    """The part of ``tokens_out`` that went into reasoning."""
    cost_usd: Decimal = Decimal(0)
    answers: Counter[ModelName] = field(default_factory=Counter)
    """How often each model has answered, in the order of their first answers."""

    def add(self, completion: Completion) -> None:
        """Count an answer, its tokens and its cost."""
        self.calls += 1
        self.tokens_in += completion.tokens_in
        self.tokens_out += completion.tokens_out
        self.tokens_cached += completion.tokens_cached
        self.tokens_reasoning += completion.tokens_reasoning
        self.cost_usd += completion.cost_usd
        self.answers[ModelName(completion.provider, completion.model)] += 1

    @property
    def tokens(self) -> int:
        """Input plus output tokens."""
        return self.tokens_in + self.tokens_out


@dataclass(frozen=True, slots=True)
class PlanFailure:
    """Why a pass has no plan to execute."""

    kind: PlanFailureKind
    message: str = ""
    """For the next planner; empty if it cannot learn anything from the failure."""


def _by_tier() -> dict[Tier, TierUsage]:
    return {tier: TierUsage() for tier in Tier}


@dataclass(slots=True, kw_only=True)
class CaseState:
    """Everything that changes while a case is worked on."""

    models: dict[Tier, ModelName]
    tier: Tier = Tier.SMALL
    evidence: list[Evidence] = field(default_factory=list)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    """The files that tools have made: objects with a name, a URL and more."""
    logs: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[Tier, TierUsage] = field(default_factory=_by_tier)
    tool_calls: int = 0
    passes: dict[Tier, int] = field(default_factory=lambda: dict.fromkeys(Tier, 0))
    """How often each tier has planned and acted."""
    act_steps: int = 0
    """Passes of the small tier that the gate decides on."""
    stalled_rounds: int = 0
    best_metric: float = 0.0
    plan_failure: PlanFailure | None = None
    """Of the current pass."""
    previous_plan: Plan | None = None
    failure: str | None = None
    """What was wrong with the last pass, for the next planner."""
    verified: bool = False
    finish_reason: FinishReason | None = None
    wrapped_up: str | None = None
    """A model's summary of the evidence, where that is no answer by itself."""

    @property
    def answer(self) -> str | None:
        """The best answer that the evidence holds so far."""
        answer = compose(self.evidence)
        return self.wrapped_up if answer is None else answer.text

    @property
    def path(self) -> str:
        """The current pass in call keys, such as ``small/1``."""
        return f"{self.tier.value}/{self.passes[self.tier]}"

    def begin_pass(self, *, gated: bool) -> None:
        """Begin to plan and act once more; ``gated`` passes of the small tier are ACT steps."""
        self.passes[self.tier] += 1
        if gated and self.tier is Tier.SMALL:
            self.act_steps += 1
        self.plan_failure = None

    def add_evidence(
        self, action: Action, result: ToolResult, *, warning: str | None = None
    ) -> Evidence:
        """Append an action and its result; files are named there and described in ``artifacts``."""
        made = references_in(result)
        self.artifacts.extend(made)
        files = tuple(file["name"] for file in made)
        found = Evidence(
            number=len(self.evidence) + 1,
            tier=self.tier,
            act_step=self.passes[self.tier],
            tool=action.tool,
            args=action.args,
            result={**result, ARTIFACTS: list(files)} if files else result,
            warning=warning,
            files=files,
        )
        self.evidence.append(found)
        return found

    def measure(self, metric: float, *, min_improvement: float) -> None:
        """Record a new metric; too little improvement is a stalled round."""
        improved = metric - self.best_metric >= min_improvement
        self.best_metric = max(self.best_metric, metric)
        self.stalled_rounds = 0 if improved else self.stalled_rounds + 1

    def escalate(self) -> None:
        """Hand the case to the big tier, evidence included."""
        self.tier = Tier.BIG
        self.plan_failure = None


def result_of(state: CaseState, answer: str | None) -> dict[str, Any]:
    """Return the result so far; ``answer`` is the state's, which is not computed twice."""
    result: dict[str, Any] = {
        "verified": state.verified,
        "finish_reason": state.finish_reason.value if state.finish_reason else None,
        "logs": list(state.logs),
        "evidence": [found.to_dict() for found in state.evidence],
        "artifacts": list(state.artifacts),
        "counters": _counters(state),
        "models": {
            tier.value: {
                **asdict(named),
                "used": [
                    {**asdict(model), "calls": calls}
                    for model, calls in state.usage[tier].answers.items()
                ],
            }
            for tier, named in state.models.items()
        },
    }
    return result if answer is None else {"answer": answer, **result}


def _counters(state: CaseState) -> dict[str, Any]:
    usage = state.usage
    tokens = {tier.value: token_usage(usage[tier]) for tier in Tier}
    return {
        "llm_calls_small": usage[Tier.SMALL].calls,
        "llm_calls_big": usage[Tier.BIG].calls,
        "tool_calls": state.tool_calls,
        "act_steps": state.act_steps,
        "tokens": {**tokens, "total": token_usage(*usage.values())},
    }


def token_usage(*used: TierUsage | Completion) -> dict[str, int | float]:
    """Return the sums of tokens and cost, as results and logs show them."""
    return {
        "input": sum(each.tokens_in for each in used),
        "output": sum(each.tokens_out for each in used),
        "cached_input": sum(each.tokens_cached for each in used),
        "reasoning": sum(each.tokens_reasoning for each in used),
        "cost_usd": float(sum(each.cost_usd for each in used)),
    }
