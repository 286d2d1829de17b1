"""Where the work on a case stands."""

from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from app.llm.gateway import Completion, Tier
from app.nodes.case.answer import compose
from app.nodes.case.case import FinishReason
from app.nodes.case.evidence import Evidence
from app.nodes.case.gate import TroubleKind
from app.nodes.case.plan import Action, Plan
from app.tools.keeping import ARTIFACTS, references_in
from app.tools.ports import ToolResult


@dataclass(frozen=True, slots=True)
class ModelName:
    """Who answers for a tier."""

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
        """Count the tokens and the cost of an answer."""
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
class Trouble:
    """Why a pass has no plan to execute."""

    kind: TroubleKind
    message: str = ""
    """For the next planner; empty if there is nothing to learn from it."""


def _by_tier() -> dict[Tier, TierUsage]:
    return {tier: TierUsage() for tier in Tier}


@dataclass(slots=True, kw_only=True)
class CaseState:
    """Everything that the work on a case changes. The gate and the verifier only read it."""

    models: dict[Tier, ModelName]
    tier: Tier = Tier.SMALL
    evidence: list[Evidence] = field(default_factory=list)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    """The files that tools have made: objects with a name, a URL and more (seed 002, 9.4)."""
    logs: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[Tier, TierUsage] = field(default_factory=_by_tier)
    tool_calls: int = 0
    passes: dict[Tier, int] = field(default_factory=lambda: dict.fromkeys(Tier, 0))
    """How often each tier has planned and acted."""
    act_steps: int = 0
    """Passes of the small tier that the gate rules on."""
    stalled_rounds: int = 0
    best_metric: float = 0.0
    trouble: Trouble | None = None
    """Of the current pass."""
    previous_plan: Plan | None = None
    failure: str | None = None
    """What was wrong last, for the next planner."""
    verified: bool = False
    finish_reason: FinishReason | None = None
    wrapped_up: str | None = None
    """What a model made of the evidence where that is no answer by itself."""

    @property
    def answer(self) -> str | None:
        """The best answer that the evidence holds so far."""
        answer = compose(self.evidence)
        return self.wrapped_up if answer is None else answer.text

    @property
    def path(self) -> str:
        """Names the current pass in call keys, such as ``small/1``."""
        return f"{self.tier.value}/{self.passes[self.tier]}"

    def begin_pass(self, *, gated: bool) -> None:
        """Begin to plan and act once more; ``gated`` passes of the small tier are ACT steps."""
        self.passes[self.tier] += 1
        if gated and self.tier is Tier.SMALL:
            self.act_steps += 1
        self.trouble = None

    def add_evidence(
        self, action: Action, result: ToolResult, *, warning: str | None = None
    ) -> Evidence:
        """Append what an action brought (seed 002, 5.4).

        The evidence names the files that were made; all that is known of them is beside it.
        """
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
        """Take in a new metric; too little improvement is a stalled round (seed 002, 6.4, 11.1)."""
        improved = metric - self.best_metric >= min_improvement
        self.best_metric = max(self.best_metric, metric)
        self.stalled_rounds = 0 if improved else self.stalled_rounds + 1

    def escalate(self) -> None:
        """Hand the case to the big tier, evidence and all (seed 002, 11.4)."""
        self.tier = Tier.BIG
        self.trouble = None
