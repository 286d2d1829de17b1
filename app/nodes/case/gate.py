"""The ACT gate: continue, stop or escalate (seed 002, requirements 6 and 11; spec, section 8).

A pure function. What ends the small tier's work is of three kinds:

- a *failure* of the tier (no progress, an unusable plan, an exhausted provider) escalates;
- a *limit of the tier* (``max_llm_calls_small``, ``act.max_steps``) escalates under
  ``fail_or_budget`` and stops the run under ``fail``;
- a *limit of the run* (tool calls, tokens, cost) stops it, because the big tier is bound by it too.

Nothing escalates to a big tier that may not be asked even once. The gate is asked before every
pass, so a limit of N lets exactly N through and a natural finish on the last one is a success.
"""

from dataclasses import dataclass
from enum import StrEnum

from app.control.budget import Dimension
from app.llm.gateway import Tier
from app.nodes.case.case import ActLimits, EscalateWhen, Mode

BIG_ATTEMPTS = 2
"""The first attempt of the big tier and one retry (seed 002, 3.3)."""

ACT_STEPS = "act_steps"
"""What a stop calls the limit ``act.max_steps``."""


class Decision(StrEnum):
    """What happens next."""

    CONTINUE = "continue"
    STOP = "stop"
    ESCALATE = "escalate"


class Reason(StrEnum):
    """Why the gate rules as it does."""

    ROOM_LEFT = "room_left"
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


class TroubleKind(StrEnum):
    """Why a pass has no plan to execute."""

    UNUSABLE_PLAN = "unusable_plan"
    CANNOT = "planner_cannot"
    PROVIDER_FAILED = "provider_failed"
    CALLS_USED = "llm_calls_used"
    """The tier's limit of LLM calls kept the planner from being asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a case stands when the gate is asked; None is unlimited."""

    tier: Tier = Tier.SMALL
    passed: bool = False
    passes: int = 0
    """Passes of the current tier."""
    trouble: TroubleKind | None = None
    """Of the last pass."""
    stalled_rounds: int = 0
    act_steps: int = 0
    small_calls_left: int | None = None
    big_calls_left: int | None = None
    big_calls: int = 0
    """Calls of the big tier so far."""
    spent: Dimension | None = None
    """A limit of the whole run of which nothing is left."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the gate decided and why."""

    decision: Decision
    reason: Reason
    dimension: str | None = None
    """The limit that stops the run."""


_LIMITS = {
    Reason.SMALL_CALLS_USED: Dimension.LLM_CALLS_SMALL.value,
    Reason.STEPS_USED: ACT_STEPS,
}

_FAILURES = {
    TroubleKind.UNUSABLE_PLAN: Reason.UNUSABLE_PLAN,
    TroubleKind.CANNOT: Reason.CANNOT,
    TroubleKind.PROVIDER_FAILED: Reason.PROVIDER_FAILED,
}


def rule(standing: Standing, mode: Mode, act: ActLimits) -> Ruling:
    """Say what happens next."""
    if standing.passed:
        return Ruling(Decision.STOP, Reason.PASSED)
    if standing.tier is Tier.BIG:
        return _rule_big(standing)
    if standing.spent is not None:
        return Ruling(Decision.STOP, Reason.RUN_LIMIT, standing.spent.value)
    reason = _failure(standing, mode, act) or _limit(standing, mode, act)
    if reason is None:
        return Ruling(Decision.CONTINUE, Reason.ROOM_LEFT)
    limit = _LIMITS.get(reason)
    if limit is not None and act.escalate_when is EscalateWhen.FAIL:
        return Ruling(Decision.STOP, reason, limit)
    if standing.big_calls_left == 0:
        return Ruling(Decision.STOP, reason, limit or Dimension.LLM_CALLS_BIG.value)
    return Ruling(Decision.ESCALATE, reason)


def _failure(standing: Standing, mode: Mode, act: ActLimits) -> Reason | None:
    """Return in what the small tier has failed."""
    if standing.trouble in _FAILURES:
        return _FAILURES[standing.trouble]
    if standing.stalled_rounds > act.no_progress_patience:
        return Reason.NO_PROGRESS
    only_verified = mode is Mode.FALLBACK_ONLY and act.max_steps_in(mode) == 0
    return Reason.NOT_VERIFIED if only_verified and standing.passes else None


def _limit(standing: Standing, mode: Mode, act: ActLimits) -> Reason | None:
    """Return which limit of its own the small tier has reached."""
    if standing.small_calls_left == 0 or standing.trouble is TroubleKind.CALLS_USED:
        return Reason.SMALL_CALLS_USED
    if mode is Mode.FALLBACK_ONLY and not standing.passes:
        return None  # one pass always runs (spec, section 8)
    return Reason.STEPS_USED if standing.act_steps >= act.max_steps_in(mode) else None


def _rule_big(standing: Standing) -> Ruling:
    """Rule on the big tier; its last attempt is a failure of its own, not a limit."""
    if standing.trouble is TroubleKind.CALLS_USED and not standing.big_calls:
        return Ruling(Decision.STOP, Reason.BIG_CALLS_USED, Dimension.LLM_CALLS_BIG.value)
    no_more = standing.trouble in (TroubleKind.CANNOT, TroubleKind.CALLS_USED)
    if no_more or standing.passes >= BIG_ATTEMPTS or standing.big_calls_left == 0:
        return Ruling(Decision.STOP, Reason.BIG_FAILED)
    if standing.spent is not None:
        return Ruling(Decision.STOP, Reason.RUN_LIMIT, standing.spent.value)
    return Ruling(Decision.CONTINUE, Reason.ROOM_LEFT)
