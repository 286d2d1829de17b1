"""The case value, and the step data that it is built from.

A case is a question that is answered in passes. In each pass a model plans tool calls, the calls
run, and their results are verified. The small tier (model) works first. If it fails, the case
escalates to the big tier.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field

from caseworker.core.budget.budget import MAX_LIMIT
from caseworker.engine.context import Outputs
from caseworker.nodes.node_type import RunFacts
from caseworker.nodes.strict_parsing import StepData, TextField
from caseworker.nodes.templates import TextTemplate
from caseworker.nodes.toolset import ToolName
from caseworker.platform.validation import refusal

SecondPlan = Literal["auto", "off"]
"""When to double-check a model's plan. With ``auto``, a second plan is requested and compared if
nothing else confirms that the plan makes the right tool calls. ``off`` requests no second plan."""


class Mode(StrEnum):
    """How much the small tier does before the big tier is called."""

    HRM_SMALL_THEN_ESCALATE = "hrm_small_then_escalate"
    """The small tier makes up to ``act.max_steps`` passes. ``escalate`` is an alias."""
    FALLBACK_ONLY = "fallback_only"
    """The small tier makes a single pass, unless ``act.max_steps_fallback_only`` permits more."""

    @classmethod
    def _missing_(cls, value: object) -> "Mode | None":
        return cls.HRM_SMALL_THEN_ESCALATE if value == "escalate" else None


class EscalateWhen(StrEnum):
    """Which outcomes of the small tier escalate the case to the big tier."""

    FAIL = "fail"
    """Escalate on failure: no progress, an unusable plan, or a failed provider."""
    FAIL_OR_BUDGET = "fail_or_budget"
    """Escalate on failure, or when ``max_llm_calls_small`` or ``act.max_steps`` is reached."""


class FinishReason(StrEnum):
    """How a case ended: with an answer, at a limit, or with a failure of the big tier."""

    SUCCESS = "success"
    BUDGET = "budget"
    BIG_FAIL = "big_fail"


class CaseDataError(ValueError):
    """A step's data is not a valid case. The message names the field, never its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActLimits:
    """Limits for the small tier. An ACT step is a pass that the gate admitted."""

    max_steps: int
    """Maximum number of ACT steps in ``hrm_small_then_escalate``; 0 leaves everything to the big
    tier."""
    max_steps_fallback_only: int
    """Maximum number of ACT steps in ``fallback_only``, never more than ``max_steps``. With 1, a
    single pass runs and the gate decides how to continue. With 0, a single pass runs and is only
    verified."""
    no_progress_patience: int
    """Number of consecutive rounds without improvement that are tolerated. One more ends the small
    tier's work."""
    min_improvement: float
    """Minimum rise of the verifier's metric (0 to 1) that counts as an improvement."""
    escalate_when: EscalateWhen

    def max_steps_in(self, mode: Mode) -> int:
        """Return the maximum number of ACT steps in a mode."""
        if mode is Mode.FALLBACK_ONLY:
            return min(self.max_steps, self.max_steps_fallback_only)
        return self.max_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseDefaults:
    """Configured defaults for case data."""

    timezone: str
    mode: Mode
    act: ActLimits
    pass_metric: float
    """Fraction of the verifier's applicable checks that must pass, from 0 to 1."""
    second_plan: SecondPlan
    wrap_up_reserve: int
    """Number of small-tier calls (0 or 1) reserved for a final answer before the case halts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question with the settings for answering it."""

    question: str
    timezone: str
    """IANA name of the time zone that applies to dates without a zone."""
    now: datetime
    """Reference time for relative dates: by default when the run was accepted. It stays the same
    when the run is executed again."""
    expected_tools: tuple[str, ...] = ()
    gold_answer: str | None = None
    """The correct answer, used only by the verifier and never part of a prompt or a log. None if
    unknown."""
    mode: Mode
    seed: int | None = None
    act: ActLimits
    pass_metric: float
    """Fraction of the verifier's applicable checks that must pass. An answer is always required."""
    second_plan: SecondPlan

    def local_now(self) -> datetime:
        """Return ``now`` in the case's time zone."""
        return self.now.astimezone(ZoneInfo(self.timezone))


def _zone(value: str) -> str:
    try:
        return ZoneInfo(value).key
    except (KeyError, OSError, ValueError):
        raise refusal("This must be an IANA time zone, such as Europe/Paris or UTC.") from None


def _instant(value: str) -> str:
    try:
        zone = datetime.fromisoformat(value).tzinfo
    except ValueError:
        zone = None
    if zone is None:
        raise refusal("This must be an instant with its offset, such as 2025-09-08T12:00:00Z.")
    return value


_DEFAULT_INPUT = "${default}"

_Count = Annotated[int, Field(ge=0, le=MAX_LIMIT)]


class ActData(StepData):
    """Limits for the small tier. Omitted values come from the configuration."""

    max_steps: _Count | None = None
    max_steps_fallback_only: Annotated[int, Field(ge=0, le=1)] | None = None
    no_progress_patience: _Count | None = None
    min_improvement: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    escalate_when: Annotated[EscalateWhen | None, Field(strict=False)] = None


class CaseData(StepData):
    """A question with the settings for answering it.

    Defaults come from the run or the configuration.
    """

    input: TextField = Field(
        default_factory=lambda: TextTemplate.parse(_DEFAULT_INPUT),
        json_schema_extra={"default": _DEFAULT_INPUT},
    )
    """Template of the question."""
    expected_tools: Annotated[list[ToolName], Field(max_length=50)] | None = None
    """Names of tools that must be used for the answer to count as verified; null requires none."""
    gold_answer: str | None = None
    """The correct answer, used only by the verifier: no model ever sees it. Null if it is not
    known."""
    mode: Annotated[Mode | None, Field(strict=False)] = None
    seed: Annotated[int, Field(ge=-MAX_LIMIT - 1, le=MAX_LIMIT)] | None = None
    timezone: Annotated[str, AfterValidator(_zone)] | None = None
    """IANA name of the time zone for dates without a zone and for "today". Default: the run's time
    zone."""
    now: Annotated[str, AfterValidator(_instant)] | None = None
    """Reference time for relative dates. Default: when the run was accepted."""
    act: ActData | None = None
    pass_metric: Annotated[float, Field(ge=0, le=1)] | None = None
    """Fraction of the verifier's applicable checks that must pass. Default: as configured."""
    second_plan: SecondPlan | None = None
    """When to double-check a model's plan with a second plan: auto or off. Default: as
    configured."""

    def case(self, inputs: Outputs, facts: RunFacts, defaults: CaseDefaults) -> Case:
        """Build the case from a step's inputs, the facts about its run, and the defaults.

        Raises:
            MissingValueError: the question refers to a value that does not exist.
            TooMuchTextError: the values are too large.
            CaseDataError: the question is empty.
        """
        limits = {} if self.act is None else self.act.model_dump(exclude_none=True)
        question = self.input.render(inputs)
        if not question:
            raise CaseDataError("input: String should have at least 1 character")
        return Case(
            question=question,
            timezone=self.timezone or facts.timezone or defaults.timezone,
            now=facts.now if self.now is None else datetime.fromisoformat(self.now),
            expected_tools=tuple(self.expected_tools or ()),
            gold_answer=self.gold_answer,
            mode=self.mode or defaults.mode,
            seed=facts.seed if self.seed is None else self.seed,
            act=replace(defaults.act, **limits),
            pass_metric=defaults.pass_metric if self.pass_metric is None else self.pass_metric,
            second_plan=self.second_plan or defaults.second_plan,
        )
