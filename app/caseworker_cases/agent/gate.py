"""The ACT gate: decides before each pass whether to continue, stop or escalate.

The decision is a pure function. A pass is one round of planning, executing and verifying. The small
tier's work ends for one of three reasons:

- a *failure* of the tier (no progress, an unusable plan, a failed provider) escalates;
- a *limit of the tier* (``max_llm_calls_small``, ``act.max_steps``) escalates under
  ``fail_or_budget`` and stops the run under ``fail``;
- a *limit of the run* (tool calls, tokens, cost) stops it, because it also applies to the big tier.

The case does not escalate to a big tier that has no calls left. The gate decides before every pass,
so a limit of N permits exactly N passes, and success in the last pass counts.
"""

from dataclasses import dataclass
from enum import StrEnum

from caseworker.core.budget.budget import Dimension
from caseworker.models.gateway import Tier
from caseworker_cases.agent.case import ActLimits, EscalateWhen, Mode

BIG_ATTEMPTS = 2
"""Maximum number of passes of the big tier: the first attempt and one retry."""

ACT_STEPS = "act_steps"
"""Dimension reported when ``act.max_steps`` stops a case."""


class NextAction(StrEnum):
    """The next action of the loop."""

    CONTINUE = "continue"
    STOP = "stop"
    ESCALATE = "escalate"


class Reason(StrEnum):
    """Why the gate decided as it did."""

    WITHIN_LIMITS = "within_limits"
    PASSED = "passed"
    NO_PROGRESS = "no_progress"
    NOT_VERIFIED = "not_verified"
    UNUSABLE_PLAN = "unusable_plan"
    CANNOT = "planner_cannot"
    PROVIDER_FAILED = "provider_failed"
    SMALL_CALLS_USED = "max_llm_calls_small"
    STEPS_USED = "act_max_steps"
    BIG_CALLS_USED = "max_llm_calls_big"
    RUN_LIMIT = "run_limit"
    BIG_FAILED = "big_fail"


class PlanFailureKind(StrEnum):
    """Why a pass has no plan to execute."""

    UNUSABLE_PLAN = "unusable_plan"
    CANNOT = "planner_cannot"
    PROVIDER_FAILED = "provider_failed"
    CALLS_USED = "llm_calls_used"
    """The tier's limit of LLM calls was reached, so the planner was not called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateInput:
    """The facts on which the gate decides.

    In a field for a number of remaining calls, None means unlimited.
    """

    tier: Tier = Tier.SMALL
    passed: bool = False
    unconfirmed: bool = False
    """Whether the answer lacks only the confirmation that the plan makes the right tool calls."""
    passes: int = 0
    """Number of passes of the current tier so far."""
    plan_failure: PlanFailureKind | None = None
    """Why the last pass had no plan; None if it had one."""
    stalled_rounds: int = 0
    act_steps: int = 0
    small_calls_left: int | None = None
    big_calls_left: int | None = None
    big_calls: int = 0
    """Number of calls to the big tier so far."""
    exhausted: Dimension | None = None
    """An exhausted limit of the whole run; None if none is exhausted."""


@dataclass(frozen=True, slots=True)
class GateDecision:
    """A decision of the gate, with its reason."""

    decision: NextAction
    reason: Reason
    dimension: str | None = None
    """Name of the limit that stops the case; None if no limit does."""


_LIMITS = {
    Reason.SMALL_CALLS_USED: Dimension.LLM_CALLS_SMALL.value,
    Reason.STEPS_USED: ACT_STEPS,
}


def decide(state: GateInput, mode: Mode, act: ActLimits) -> GateDecision:
    """Decide whether to continue, stop or escalate."""
    if state.passed:
        return GateDecision(NextAction.STOP, Reason.PASSED)
    if state.tier is Tier.BIG:
        return _decide_big(state)
    if state.exhausted is not None:
        return GateDecision(NextAction.STOP, Reason.RUN_LIMIT, state.exhausted.value)
    reason = _failure(state, mode, act) or _limit(state, mode, act)
    if reason is None:
        return GateDecision(NextAction.CONTINUE, Reason.WITHIN_LIMITS)
    limit = _LIMITS.get(reason)
    if limit is not None and act.escalate_when is EscalateWhen.FAIL:
        return GateDecision(NextAction.STOP, reason, limit)
    if state.big_calls_left == 0:
        return GateDecision(NextAction.STOP, reason, limit or Dimension.LLM_CALLS_BIG.value)
    return GateDecision(NextAction.ESCALATE, reason)


def _failure(state: GateInput, mode: Mode, act: ActLimits) -> Reason | None:
    """Return the failure of the small tier, or None."""
    if state.plan_failure not in (None, PlanFailureKind.CALLS_USED):
        return Reason(state.plan_failure)
    if state.stalled_rounds > act.no_progress_patience:
        return Reason.NO_PROGRESS
    if state.unconfirmed and state.small_calls_left != 0:
        return Reason.NOT_VERIFIED
    only_verified = mode is Mode.FALLBACK_ONLY and act.max_steps_in(mode) == 0
    return Reason.NOT_VERIFIED if only_verified and state.passes else None


def _limit(state: GateInput, mode: Mode, act: ActLimits) -> Reason | None:
    """Return the small tier's own limit that is exhausted, or None."""
    if state.small_calls_left == 0 or state.plan_failure is PlanFailureKind.CALLS_USED:
        return Reason.SMALL_CALLS_USED
    if mode is Mode.FALLBACK_ONLY and not state.passes:
        return None  # the first pass always runs
    return Reason.STEPS_USED if state.act_steps >= act.max_steps_in(mode) else None


def _decide_big(state: GateInput) -> GateDecision:
    """Decide for the big tier; exhausting its attempts is a failure, not a limit."""
    if state.plan_failure is PlanFailureKind.CALLS_USED and not state.big_calls:
        return GateDecision(NextAction.STOP, Reason.BIG_CALLS_USED, Dimension.LLM_CALLS_BIG.value)
    if state.unconfirmed and (state.exhausted or state.big_calls_left == 0):
        limit = state.exhausted or Dimension.LLM_CALLS_BIG
        return GateDecision(NextAction.STOP, Reason.RUN_LIMIT, limit.value)
    failures = (PlanFailureKind.CANNOT, PlanFailureKind.CALLS_USED)
    gave_up = state.unconfirmed or state.plan_failure in failures
    if gave_up or state.passes >= BIG_ATTEMPTS or state.big_calls_left == 0:
        return GateDecision(NextAction.STOP, Reason.BIG_FAILED)
    if state.exhausted is not None:
        return GateDecision(NextAction.STOP, Reason.RUN_LIMIT, state.exhausted.value)
    return GateDecision(NextAction.CONTINUE, Reason.WITHIN_LIMITS)
