"""A case in progress: its state, limits, log, model calls and result."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from caseworker.core.budget.budget import Amount, Dimension
from caseworker.core.budget.stops import rfc3339
from caseworker.engine.call import CallFailedError
from caseworker.engine.context import FlowContext
from caseworker.models.gateway import Completion, ModelGateway, Tier
from caseworker.models.ports import Message
from caseworker.models.table import CALLS_OF
from caseworker.platform.logs.redaction import redact_value
from caseworker.tools.artifacts import ARTIFACTS, references_in
from caseworker.tools.ports import ToolContext, ToolResult
from caseworker_cases.agent.case import Case, EscalateWhen, FinishReason
from caseworker_cases.agent.evidence import Action, Evidence, compose
from caseworker_cases.agent.gate import PlanFailureKind
from caseworker_cases.agent.prompt import ToolOffer

Clock = Callable[[], datetime]
"""Returns the current time for logs, with an offset."""

MAX_SUMMARY_CHARS = 300

_OURS = frozenset(
    {
        *("event", "level", "purpose", "token_usage", "attempts", "error_class", "problem"),
        *("output_summary", "failed", "metric", "passed", "checks", "stalled_rounds"),
        *("decision", "reason", "act_steps"),
    }
)
"""Log details that never contain external text; all other details are redacted."""


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model and its provider."""

    provider: str
    model: str

    def to_json(self) -> dict[str, str]:
        """Return it as JSON."""
        return {"provider": self.provider, "model": self.model}


@dataclass(slots=True)
class TierUsage:
    """The usage of one tier; costs in US dollars."""

    calls: int = 0
    """Number of logical calls, including reprompts and failed calls."""
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    """The part of ``tokens_in`` read from the provider's cache."""
    tokens_reasoning: int = 0
    """The part of ``tokens_out`` spent on reasoning."""
    cost_usd: Decimal | None = Decimal(0)
    """None if the price of a call is unknown."""
    tokens_estimated: int = 0
    """The part of the tokens that is estimated because the provider sent no counts."""
    cost_usd_estimated: Decimal = Decimal(0)
    answers: Counter[ModelName] = field(default_factory=Counter)
    """Number of answers of each model, in the order of first answers."""

    def add(self, completion: Completion) -> None:
        """Count an answer, its tokens and its cost."""
        self.calls += 1
        for name in ("tokens_in", "tokens_out", "tokens_cached", "tokens_reasoning"):
            setattr(self, name, getattr(self, name) + getattr(completion, name))
        self.cost_usd = _sum((self.cost_usd, completion.cost_usd))
        self.tokens_estimated += completion.tokens_estimated
        self.cost_usd_estimated += completion.cost_usd_estimated
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
    """Text for the next planner; empty if the failure is not useful to it."""


@dataclass(slots=True, kw_only=True)
class CaseState:
    """The mutable state of a case."""

    models: dict[Tier, ModelName]
    tier: Tier = Tier.SMALL
    evidence: list[Evidence] = field(default_factory=list)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    """The files that tools created: objects with name, URL and other fields."""
    logs: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[Tier, TierUsage] = field(
        default_factory=lambda: {tier: TierUsage() for tier in Tier}
    )
    tool_calls: int = 0
    passes: dict[Tier, int] = field(default_factory=lambda: dict.fromkeys(Tier, 0))
    """Number of passes of each tier."""
    act_steps: int = 0
    """Number of gated passes of the small tier."""
    stalled_rounds: int = 0
    best_metric: float = 0.0
    plan_failure: PlanFailure | None = None
    """Why the current pass has no plan, if so."""
    failure: str | None = None
    """The errors of the last pass, for the next planner."""
    planned_by: str = ""
    """The call node of the model call that produced the last plan."""
    verified: bool | None = False
    """None if only the operation of the answer is unconfirmed."""
    checks: Mapping[str, bool | None] = field(default_factory=dict)
    """The latest checks of the verifier; None for a check that does not apply."""
    confirmed_by: str | None = None
    """The independent check that passed."""
    finish_reason: FinishReason | None = None
    wrapped_up: str | None = None
    """A model's summary of evidence that contains no answer."""

    @property
    def answer(self) -> str | None:
        """The best answer so far: composed from the evidence, else the model's summary."""
        answer = compose(self.evidence)
        return self.wrapped_up if answer is None else answer.text

    @property
    def path(self) -> str:
        """The current pass as a part of call keys, such as ``small/1``."""
        return f"{self.tier.value}/{self.passes[self.tier]}"

    def begin_pass(self, *, gated: bool) -> None:
        """Start a pass; ``gated`` passes of the small tier count as ACT steps."""
        self.passes[self.tier] += 1
        if gated and self.tier is Tier.SMALL:
            self.act_steps += 1
        self.plan_failure = None

    def add_evidence(self, action: Action, result: ToolResult, **about: Any) -> Evidence:
        """Append an action with its result; move descriptions of files to ``artifacts``.

        ``about`` are further fields of the evidence.
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
            files=files,
            planner=self.models[self.tier].provider,
            **about,
        )
        self.evidence.append(found)
        return found

    def measure(self, metric: float, *, min_improvement: float) -> None:
        """Record a new metric; the round is stalled if it improves too little."""
        improved = metric - self.best_metric >= min_improvement
        self.best_metric = max(self.best_metric, metric)
        self.stalled_rounds = 0 if improved else self.stalled_rounds + 1

    def escalate(self) -> None:
        """Switch to the big tier and keep the evidence."""
        self.tier = Tier.BIG
        self.plan_failure = None


def result_of(state: CaseState, answer: str | None) -> dict[str, Any]:
    """Return the result so far; ``answer`` is passed in to avoid computing it twice."""
    result: dict[str, Any] = {
        "verified": state.verified,
        "verification": {"checks": dict(state.checks), "confirmed_by": state.confirmed_by},
        "finish_reason": state.finish_reason.value if state.finish_reason else None,
        "logs": list(state.logs),
        "evidence": [found.to_dict() for found in state.evidence],
        "artifacts": list(state.artifacts),
        "counters": {
            "llm_calls_small": state.usage[Tier.SMALL].calls,
            "llm_calls_big": state.usage[Tier.BIG].calls,
            "tool_calls": state.tool_calls,
            "act_steps": state.act_steps,
            "tokens": {
                **{tier.value: token_usage(used) for tier, used in state.usage.items()},
                "total": token_usage(*state.usage.values()),
            },
        },
        "models": {
            tier.value: {
                **named.to_json(),
                "used": [
                    {**model.to_json(), "calls": calls}
                    for model, calls in state.usage[tier].answers.items()
                ],
            }
            for tier, named in state.models.items()
        },
    }
    return result if answer is None else {"answer": answer, **result}


def _sum(costs: Iterable[Decimal | None]) -> Decimal | None:
    """Return the sum of costs, or None if one of them is unknown."""
    found = list(costs)
    known = [cost for cost in found if cost is not None]
    return sum(known, Decimal(0)) if len(known) == len(found) else None


def token_usage(*used: TierUsage | Completion) -> dict[str, int | float | None]:
    """Return total tokens and cost in the form used in results and logs.

    ``cost_usd`` is None if the price of a call is unknown.
    """
    cost_usd = _sum(each.cost_usd for each in used)
    return {
        "input": sum(each.tokens_in for each in used),
        "output": sum(each.tokens_out for each in used),
        "cached_input": sum(each.tokens_cached for each in used),
        "reasoning": sum(each.tokens_reasoning for each in used),
        "cost_usd": None if cost_usd is None else float(cost_usd),
        "estimated": sum(each.tokens_estimated for each in used),
        "cost_usd_estimated": float(sum(each.cost_usd_estimated for each in used)),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseWork:
    """The case, its state and its context.

    The case counts the remainder of each limit itself and does not read it from the scope. When a
    run is executed again, the scope already includes the spending of the lost execution, although
    its calls are only about to be replayed. The scope still decides on every new call.
    """

    case: Case
    state: CaseState
    context: FlowContext
    log: "CaseLog"
    models: ModelGateway
    tools: ToolOffer
    tool_context: ToolContext
    wrap_up_reserve: int
    """1 if a call of the small tier is reserved for a final answer, else 0."""
    limits: Mapping[Dimension, Amount]
    """The tightest limit of each dimension except time, over the step and its enclosing scopes."""

    def calls_left(self, tier: Tier) -> int | None:
        """Return the remaining calls of a tier; None is unlimited."""
        limit = self.limits.get(CALLS_OF[tier])
        return None if limit is None else max(0, int(limit) - self.state.usage[tier].calls)

    def planning_calls_left(self, tier: Tier) -> int | None:
        """Return the remaining planning calls of a tier; None is unlimited."""
        left = self.calls_left(tier)
        if left is None or tier is not Tier.SMALL:
            return left
        return max(0, left - self.kept_back)

    @property
    def kept_back(self) -> int:
        """The calls of the small tier reserved for the final answer.

        Zero unless the end of planning would end the case, the evidence contains no answer yet, and
        the limit is 2 or more.
        """
        limit = self.limits.get(CALLS_OF[Tier.SMALL], 0)
        escalates = self.case.act.escalate_when is EscalateWhen.FAIL_OR_BUDGET
        is_end = not (escalates and self.calls_left(Tier.BIG) != 0)
        return self.wrap_up_reserve if limit >= 2 and is_end and self.wants_wrap_up else 0

    @property
    def wants_wrap_up(self) -> bool:
        """True if tools returned results that do not compose to an answer."""
        evidence = self.state.evidence
        found = any(not (piece.failed or piece.refused) for piece in evidence)
        return self.wrap_up_reserve > 0 and found and self.state.answer is None

    def exhausted(self) -> Dimension | None:
        """Return an exhausted limit of the whole run, or None.

        A cost limit without any cost so far is not exhausted, because models may be free.
        """
        usage = self.state.usage.values()
        used: dict[Dimension, Amount] = {
            Dimension.LLM_CALLS: sum(tier.calls for tier in usage),
            Dimension.TOOL_CALLS: self.state.tool_calls,
            Dimension.TOKENS: sum(tier.tokens for tier in usage),
        }
        if cost := _sum(tier.cost_usd for tier in usage):
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
        """Call a tier; the call counts once it has started, regardless of its outcome.

        Raises:
            CallFailedError: the provider failed after all retries.
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
        step_type = "wrap_up" if name == "wrap_up" else "plan"
        self.log_failures(step_type, *completion.failed, completion.node_id)
        return completion

    def log_failures(self, step_type: str, *nodes: str, **about: Any) -> None:
        """Log the failed attempts of successful calls, given by their call nodes."""
        found = (each for node in nodes for each in self.context.run.trace.failures_of(node))
        shown = {"event": "attempt_failed", "level": "warning", **about}
        for error_class, error in found:
            self.log.add(step_type, **shown, error_class=error_class, error=error)


@dataclass(frozen=True, slots=True)
class CaseLog:
    """The redacted log of a case, with one JSON object for each entry."""

    run_id: str
    state: CaseState
    clock: Clock

    def add(self, step_type: str, **details: Any) -> None:
        """Append an entry for the current tier; ``details`` are JSON values."""
        shown = {
            name: value if name in _OURS else redact_value(value, name=name)
            for name, value in details.items()
        }
        about = {"ts": rfc3339(self.clock()), "run_id": self.run_id}
        tier = self.state.tier.value
        self.state.logs.append({**about, "tier": tier, "step_type": step_type, **shown})


def summary(value: Any) -> str:
    """Return the start of a text, or of a JSON value as text, redacted before truncation."""
    shown = redact_value(value)
    text = shown if isinstance(shown, str) else json.dumps(shown, sort_keys=True)
    return text if len(text) <= MAX_SUMMARY_CHARS else f"{text[:MAX_SUMMARY_CHARS]}…"
