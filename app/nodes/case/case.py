"""What a case asks for (seed 002, 9.1), as the data of its step holds it."""

import math
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from zoneinfo import ZoneInfo


class Mode(StrEnum):
    """How much the small tier does before the big one is asked (seed 002, 17.2)."""

    HRM_SMALL_THEN_ESCALATE = "hrm_small_then_escalate"
    """The whole loop."""
    FALLBACK_ONLY = "fallback_only"
    """One pass."""


class EscalateWhen(StrEnum):
    """Which ends of the small tier's work lead to the big one (seed 002, 17.3)."""

    FAIL = "fail"
    """No progress, an unusable plan, an exhausted provider."""
    FAIL_OR_BUDGET = "fail_or_budget"
    """Also ``max_llm_calls_small`` and ``act.max_steps``."""


class FinishReason(StrEnum):
    """How a case ended (seed 002, 17.1)."""

    SUCCESS = "success"
    BUDGET = "budget"
    BIG_FAIL = "big_fail"


class CaseDataError(ValueError):
    """The data of a step is no case; the message names the field and never its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActLimits:
    """How long the small tier may go on (seed 002, requirements 6, 11 and 24).

    Raises:
        ValueError: a limit is out of its range; the message names it.
    """

    max_steps: int
    """ACT steps in ``hrm_small_then_escalate``; 0 leaves everything to the big tier."""
    max_steps_fallback_only: int
    """In ``fallback_only``: 1 is one pass that the gate rules on, 0 one that is only verified.
    Never more than ``max_steps``."""
    no_progress_patience: int
    """How many rounds in a row may bring no improvement before the small tier gives up."""
    min_improvement: float
    """By how much the metric, from 0 to 1, must rise to count as an improvement."""
    escalate_when: EscalateWhen

    def __post_init__(self) -> None:
        if self.max_steps < 0:
            raise ValueError("act.max_steps must be zero or positive.")
        if self.max_steps_fallback_only not in (0, 1):
            raise ValueError("act.max_steps_fallback_only must be 0 or 1.")
        if self.no_progress_patience < 0:
            raise ValueError("act.no_progress_patience must be zero or positive.")
        if not (math.isfinite(self.min_improvement) and self.min_improvement >= 0):
            raise ValueError("act.min_improvement must be a number from 0 up.")

    def max_steps_in(self, mode: Mode) -> int:
        """Return how many ACT steps the small tier may make in a mode (seed 002, 24.5)."""
        if mode is Mode.FALLBACK_ONLY:
            return min(self.max_steps, self.max_steps_fallback_only)
        return self.max_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseDefaults:
    """What holds for a case whose data does not say otherwise."""

    timezone: str
    mode: Mode
    act: ActLimits
    pass_metric: float
    """The share of the verifier's checks that must hold, from 0 to 1."""
    wrap_up_reserve: int
    """Calls of the small tier that a case keeps for its final answer where it would halt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question and how it is to be worked on; everything but time is decided by it.

    Raises:
        CaseDataError: there is no question, the time has no offset, or there is no such zone.
    """

    question: str
    timezone: str
    """IANA name of the zone that dates without a zone are read in."""
    now: datetime
    """When the run was accepted; stays the same when the run is executed again."""
    expected_tools: tuple[str, ...] = ()
    gold_answer: str | None = None
    """For the verifier alone: never shown to a planner, a prompt or a log."""
    mode: Mode
    seed: int | None = None
    act: ActLimits
    pass_metric: float
    """The share of the verifier's checks that must hold; an answer must exist in any case."""

    def __post_init__(self) -> None:
        if not self.question:
            raise CaseDataError("input: String should have at least 1 character")
        if self.now.tzinfo is None:
            raise CaseDataError("now must have an offset.")
        try:
            ZoneInfo(self.timezone)
        except (KeyError, OSError, ValueError):
            raise CaseDataError("timezone must be an IANA name such as Europe/Berlin.") from None

    @property
    def zone(self) -> ZoneInfo:
        """The case's time zone."""
        return ZoneInfo(self.timezone)

    def local_now(self) -> datetime:
        """Return ``now`` in the case's own zone."""
        return self.now.astimezone(self.zone)
