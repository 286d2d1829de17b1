"""A case in progress: its state, limits, log, model calls and result."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from itertools import chain
from typing import Any

from caseworker.core.budget.budget import Amount, Dimension
from caseworker.core.budget.stops import rfc3339
from caseworker.engine.call import CallFailedError
from caseworker.engine.context import FlowContext
from caseworker.models.gateway import Completion, LogicalCall, ModelGateway, Tier
from caseworker.models.table import CALLS_OF
from caseworker.platform.logs.redaction import redact_value
from caseworker.tools.artifacts import ARTIFACTS, file_references_in
from caseworker.tools.ports import ToolContext, ToolResult
from caseworker_cases.agent.case import Case, EscalateWhen, FinishReason
from caseworker_cases.agent.evidence import Action, CaseEvidence, compose
from caseworker_cases.agent.gate import PlanFailureKind
from caseworker_cases.agent.prompt import CaseTools

Clock = Callable[[], datetime]
"""Function that returns the current time for log entries, with a UTC offset."""

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
    """The name of a model and of its provider."""

    provider: str
    model: str

    def to_json(self) -> dict[str, str]:
        """Return the names as a JSON object."""
        return {"provider": self.provider, "model": self.model}


@dataclass(slots=True)
class TierUsage:
    """The usage of one tier."""

    calls: int = 0
    """Number of logical calls, including reprompts and failed calls."""
    answers: list[Completion] = field(default_factory=list)
    """The answers of the tier's models, with their tokens and costs."""


@dataclass(frozen=True, slots=True)
class PlanFailure:
    """The reason why one pass of the agent produced no plan."""

    kind: PlanFailureKind
    message: str = ""
    """Explanation for the next planner; empty if it would not help the planner."""


@dataclass(slots=True, kw_only=True)
class CaseState:
    """The mutable state of a case."""

    models: dict[Tier, ModelName]
    tier: Tier = Tier.SMALL
    evidence: list[CaseEvidence] = field(default_factory=list)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    """Files that tools created, as JSON objects with name, URL and other fields."""
    logs: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[Tier, TierUsage] = field(
        default_factory=lambda: {tier: TierUsage() for tier in Tier}
    )
    tool_calls: int = 0
    passes: dict[Tier, int] = field(default_factory=lambda: dict.fromkeys(Tier, 0))
    """Number of passes so far, by tier. A pass plans, executes and verifies once."""
    act_steps: int = 0
    """Number of gated passes of the small tier."""
    stalled_rounds: int = 0
    best_metric: float = 0.0
    plan_failure: PlanFailure | None = None
    """Why the current pass has no plan; None if it has one."""
    failure: str | None = None
    """Description of the last pass's errors, for the next planner; None without errors."""
    succeeded_plans: set[str] = field(default_factory=set)
    """The plans whose calls have all succeeded, each as JSON with sorted keys."""
    planned_by: str = ""
    """ID of the trace node for the model call that produced the last plan."""
    verified: bool | None = False
    """Whether the answer is verified. None if only the plan's tool calls are unconfirmed."""
    checks: Mapping[str, bool | None] = field(default_factory=dict)
    """Latest results of the verifier's checks, by name; None for a check that does not apply."""
    confirmed_by: str | None = None
    """Name of the independent check that passed; None if none did."""
    finish_reason: FinishReason | None = None
    wrapped_up: str | None = None
    """A model's final answer, requested if no answer can be composed from the evidence; otherwise
    None."""

    @property
    def answer(self) -> str | None:
        """The best answer so far: composed from the evidence, or else the model's final answer."""
        answer = compose(self.evidence)
        return self.wrapped_up if answer is None else answer.text

    def answers(self) -> Iterator[Completion]:
        """Yield the answers of all models."""
        return chain.from_iterable(used.answers for used in self.usage.values())

    @property
    def path(self) -> str:
        """Name of the current pass in call keys, such as ``small/1``."""
        return f"{self.tier.value}/{self.passes[self.tier]}"

    def begin_pass(self, *, gated: bool) -> None:
        """Start a pass.

        A pass of the small tier is counted in ``act_steps`` if it is ``gated``: the gate then
        decides whether to continue, stop or escalate.
        """
        self.passes[self.tier] += 1
        if gated and self.tier is Tier.SMALL:
            self.act_steps += 1
        self.plan_failure = None

    def add_evidence(self, action: Action, result: ToolResult, **about: Any) -> CaseEvidence:
        """Append an action with its result; move descriptions of files to ``artifacts``.

        ``about`` holds further fields of the evidence.
        """
        references = file_references_in(result)
        self.artifacts.extend(references)
        files = tuple(file["name"] for file in references)
        piece = CaseEvidence(
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
        self.evidence.append(piece)
        return piece

    def measure(self, metric: float, *, min_improvement: float) -> None:
        """Record a new metric; count the round as stalled if the metric improved too little."""
        improved = metric - self.best_metric >= min_improvement
        self.best_metric = max(self.best_metric, metric)
        self.stalled_rounds = 0 if improved else self.stalled_rounds + 1

    def escalate(self) -> None:
        """Switch to the big tier and keep the evidence."""
        self.tier = Tier.BIG
        self.plan_failure = None


def case_result_of(state: CaseState, answer: str | None) -> dict[str, Any]:
    """Return the case's result so far as JSON.

    ``answer`` is the current answer, passed in so that it is not computed twice.
    """
    result: dict[str, Any] = {
        "verified": state.verified,
        "verification": {"checks": dict(state.checks), "confirmed_by": state.confirmed_by},
        "finish_reason": state.finish_reason.value if state.finish_reason else None,
        "logs": list(state.logs),
        "evidence": [piece.to_dict() for piece in state.evidence],
        "artifacts": list(state.artifacts),
        "counters": {
            "llm_calls_small": state.usage[Tier.SMALL].calls,
            "llm_calls_big": state.usage[Tier.BIG].calls,
            "tool_calls": state.tool_calls,
            "act_steps": state.act_steps,
            "tokens": {
                **{tier.value: token_usage(*used.answers) for tier, used in state.usage.items()},
                "total": token_usage(*state.answers()),
            },
        },
        "models": {
            tier.value: {
                **model_name.to_json(),
                "used": [
                    {**model.to_json(), "calls": calls}
                    for model, calls in Counter(
                        ModelName(each.provider, each.model) for each in state.usage[tier].answers
                    ).items()
                ],
            }
            for tier, model_name in state.models.items()
        },
    }
    return result if answer is None else {"answer": answer, **result}


def _cost(answers: Iterable[Completion]) -> Decimal | None:
    """Return the total cost in US dollars, or None if the price of any call is unknown."""
    total = Decimal(0)
    for each in answers:
        if each.cost_usd is None:
            return None
        total += each.cost_usd
    return total


def token_usage(*answers: Completion) -> dict[str, int | float | None]:
    """Return the total tokens and cost as JSON in the format of results and logs.

    ``cost_usd`` is None if the price of any call is unknown.
    """
    cost_usd = _cost(answers)
    return {
        "input": sum(each.tokens_in for each in answers),
        "output": sum(each.tokens_out for each in answers),
        "cached_input": sum(each.tokens_cached for each in answers),
        "reasoning": sum(each.tokens_reasoning for each in answers),
        "cost_usd": None if cost_usd is None else float(cost_usd),
        "estimated": sum(each.tokens_estimated for each in answers),
        "cost_usd_estimated": float(sum(each.cost_usd_estimated for each in answers)),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseWork:
    """A case with its state and the services that it needs.

    The case counts the remainder of each limit itself and does not read it from the budget scope.
    When a run is executed again, the scope already includes the spending of the lost execution,
    although its calls have not been replayed yet. The scope still decides on every new call.
    """

    case: Case
    state: CaseState
    context: FlowContext
    log: "CaseLog"
    models: ModelGateway
    tools: CaseTools
    tool_context: ToolContext
    wrap_up_reserve: int
    """Number of small-tier calls (0 or 1) reserved for a final answer."""
    limits: Mapping[Dimension, Amount]
    """Tightest limit for each dimension except time, over the step and its enclosing scopes."""

    def calls_left(self, tier: Tier) -> int | None:
        """Return the number of calls left for a tier; None means unlimited."""
        limit = self.limits.get(CALLS_OF[tier])
        return None if limit is None else max(0, int(limit) - self.state.usage[tier].calls)

    def planning_calls_left(self, tier: Tier) -> int | None:
        """Return the number of planning calls left for a tier; None means unlimited."""
        remaining = self.calls_left(tier)
        if remaining is None or tier is not Tier.SMALL:
            return remaining
        return max(0, remaining - self.kept_back)

    @property
    def kept_back(self) -> int:
        """Number of small-tier calls that planning must leave for the final answer.

        It is zero if the case can still escalate, if no final answer is needed, or if the limit is
        below 2.
        """
        limit = self.limits.get(CALLS_OF[Tier.SMALL], 0)
        escalates = self.case.act.escalate_when is EscalateWhen.FAIL_OR_BUDGET
        is_end = not (escalates and self.calls_left(Tier.BIG) != 0)
        return self.wrap_up_reserve if limit >= 2 and is_end and self.wants_wrap_up else 0

    @property
    def wants_wrap_up(self) -> bool:
        """Whether a final answer is needed: tools returned results, but they form no answer."""
        evidence = self.state.evidence
        has_result = any(not (piece.failed or piece.refused) for piece in evidence)
        return self.wrap_up_reserve > 0 and has_result and self.state.answer is None

    def exhausted(self) -> Dimension | None:
        """Return an exhausted limit of the whole run, or None if none is exhausted.

        A cost limit without any cost so far is not exhausted, because models may be free.
        """
        state = self.state
        used: dict[Dimension, Amount] = {
            Dimension.LLM_CALLS: sum(tier.calls for tier in state.usage.values()),
            Dimension.TOOL_CALLS: state.tool_calls,
            Dimension.TOKENS: sum(each.tokens_in + each.tokens_out for each in state.answers()),
        }
        if cost := _cost(state.answers()):
            used[Dimension.COST_USD] = cost
        limits = self.limits
        reached = (name for name, amount in used.items() if amount >= limits.get(name, math.inf))
        return next(reached, None)

    async def ask(self, tier: Tier, *, name: str, **about: Any) -> Completion:
        """Call a tier's model. The call counts once it has started, regardless of its outcome.

        ``about`` are further fields of the ``LogicalCall``.

        Raises:
            CallFailedError: the provider failed after all retries.
            Stop: a limit or a cancel request prevented or ended the call.
        """
        tier_usage, scope, dimension = self.state.usage[tier], self.context.scope, CALLS_OF[tier]
        call = LogicalCall(tier=tier, name=name, seed=self.case.seed, **about)
        calls_before = scope.usage.of(dimension)
        try:
            completion = await self.models.complete(self.context, call)
        except BaseException as error:
            was_charged = scope.usage.of(dimension) > calls_before  # a refused call is not
            if was_charged or isinstance(error, CallFailedError):
                tier_usage.calls += 1
            raise
        tier_usage.calls += 1
        tier_usage.answers.append(completion)
        step_type = "wrap_up" if name == "wrap_up" else "plan"
        self.log_failures(step_type, *completion.failed, completion.node_id)
        return completion

    def log_failures(self, step_type: str, *nodes: str, **about: Any) -> None:
        """Log the failed attempts of successful calls, given the IDs of the calls' trace nodes."""
        failures = (each for node in nodes for each in self.context.run.trace.failures_of(node))
        fields = {"event": "attempt_failed", "level": "warning", **about}
        for error_class, error in failures:
            self.log.add(step_type, **fields, error_class=error_class, error=error)


@dataclass(frozen=True, slots=True)
class CaseLog:
    """The redacted log of a case; each entry is a JSON object."""

    run_id: str
    state: CaseState
    clock: Clock

    def add(self, step_type: str, **details: Any) -> None:
        """Append an entry for the current tier; ``details`` are JSON values."""
        fields = {
            name: value if name in _OURS else redact_value(value, name=name)
            for name, value in details.items()
        }
        about = {"ts": rfc3339(self.clock()), "run_id": self.run_id}
        tier = self.state.tier.value
        self.state.logs.append({**about, "tier": tier, "step_type": step_type, **fields})


def summary(value: Any) -> str:
    """Return the start of a value as text, redacted before it is truncated."""
    redacted = redact_value(value)
    text = redacted if isinstance(redacted, str) else json.dumps(redacted, sort_keys=True)
    return text if len(text) <= MAX_SUMMARY_CHARS else f"{text[:MAX_SUMMARY_CHARS]}…"
