"""A case, and the data of the step that it is made from."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field

from caseworker.control.budget import MAX_LIMIT
from caseworker.engine.context import Outputs
from caseworker.nodes.node_type import RunFacts
from caseworker.nodes.reading import StepData, TextField, refusal
from caseworker.nodes.templates import TextTemplate
from caseworker.nodes.toolset import ToolName

Choice = TypeVar("Choice", bound=StrEnum)

SecondPlan = Literal["auto", "off"]
"""Whether the operation of a model's plan must be confirmed, if need be by a second plan."""


class Mode(StrEnum):
    """How much the small tier does before the big one is asked."""

    HRM_SMALL_THEN_ESCALATE = "hrm_small_then_escalate"
    """The whole loop; ``escalate`` is its short name."""
    FALLBACK_ONLY = "fallback_only"
    """One pass."""

    @classmethod
    def _missing_(cls, value: object) -> "Mode | None":
        return cls.HRM_SMALL_THEN_ESCALATE if value == "escalate" else None


class EscalateWhen(StrEnum):
    """Which ends of the small tier's work lead to the big one."""

    FAIL = "fail"
    """No progress, an unusable plan, an exhausted provider."""
    FAIL_OR_BUDGET = "fail_or_budget"
    """Also ``max_llm_calls_small`` and ``act.max_steps``."""


class FinishReason(StrEnum):
    """How a case ended."""

    SUCCESS = "success"
    BUDGET = "budget"
    BIG_FAIL = "big_fail"


class CaseDataError(ValueError):
    """The data of a step is no case; the message names the field and never its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActLimits:
    """How long the small tier may go on."""

    max_steps: int
    """ACT steps in ``hrm_small_then_escalate``; 0 leaves everything to the big tier."""
    max_steps_fallback_only: int
    """In ``fallback_only``: 1 is one pass that the gate decides on, 0 one that is only verified.
    Never more than ``max_steps``."""
    no_progress_patience: int
    """How many rounds in a row may bring no improvement before the small tier gives up."""
    min_improvement: float
    """By how much the metric, from 0 to 1, must rise to count as an improvement."""
    escalate_when: EscalateWhen

    def max_steps_in(self, mode: Mode) -> int:
        """Return how many ACT steps the small tier may make in a mode."""
        if mode is Mode.FALLBACK_ONLY:
            return min(self.max_steps, self.max_steps_fallback_only)
        return self.max_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseDefaults:
    """The configured values for what the data of a case leaves out."""

    timezone: str
    mode: Mode
    act: ActLimits
    pass_metric: float
    """The share of the verifier's checks that must hold, from 0 to 1."""
    second_plan: SecondPlan
    wrap_up_reserve: int
    """1 if a case that would halt reserves a call of the small tier for its final answer, or 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question and how it is to be worked on.

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
    second_plan: SecondPlan

    def __post_init__(self) -> None:
        if not self.question:
            raise CaseDataError("input: String should have at least 1 character")
        if self.now.tzinfo is None:
            raise CaseDataError("now must have an offset.")
        if not _is_zone(self.timezone):
            raise CaseDataError("timezone must be an IANA name such as Europe/Berlin.")

    @property
    def zone(self) -> ZoneInfo:
        """The case's time zone."""
        return ZoneInfo(self.timezone)

    def local_now(self) -> datetime:
        """Return ``now`` in the case's own zone."""
        return self.now.astimezone(self.zone)


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        return False
    return True


def _zone(value: str) -> str:
    if not _is_zone(value):
        raise refusal("This must be an IANA time zone, such as Europe/Paris or UTC.")
    return value


def _instant(value: str) -> str:
    try:
        zone = datetime.fromisoformat(value).tzinfo
    except ValueError:
        zone = None
    if zone is None:
        raise refusal("This must be an instant with its offset, such as 2025-09-08T12:00:00Z.")
    return value


def _choice(kind: type[Choice]) -> BeforeValidator:
    def read(value: Any) -> Choice | None:
        try:
            return None if value is None else kind(value)
        except ValueError:
            raise refusal(f"This must be one of: {', '.join(kind)}.") from None

    return BeforeValidator(read)


_DEFAULT_INPUT = "${default}"

_Count = Annotated[int, Field(ge=0, le=MAX_LIMIT)]


class ActData(StepData):
    """How long the small tier may go on; what is left out is as configured."""

    max_steps: _Count | None = None
    max_steps_fallback_only: Annotated[int, Field(ge=0, le=1)] | None = None
    no_progress_patience: _Count | None = None
    min_improvement: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    escalate_when: Annotated[EscalateWhen | None, _choice(EscalateWhen)] = None


class CaseData(StepData):
    """A question, and how it is to be worked on.

    What is left out is as the run or the configuration says.
    """

    input: TextField = Field(
        default_factory=lambda: TextTemplate.parse(_DEFAULT_INPUT),
        json_schema_extra={"default": _DEFAULT_INPUT},
    )
    """The question."""
    expected_tools: Annotated[list[ToolName], Field(max_length=50)] | None = None
    """Tools without which the answer does not count as verified."""
    gold_answer: str | None = None
    """The right answer, for the verifier alone: no model ever sees it."""
    mode: Annotated[Mode | None, _choice(Mode)] = None
    seed: Annotated[int, Field(ge=-MAX_LIMIT - 1, le=MAX_LIMIT)] | None = None
    timezone: Annotated[str, AfterValidator(_zone)] | None = None
    """Where "today" begins."""
    now: Annotated[str, AfterValidator(_instant)] | None = None
    """From when relative dates are counted; left out, from when the run was accepted."""
    act: ActData | None = None
    pass_metric: Annotated[float, Field(ge=0, le=1)] | None = None
    """The share of the verifier's checks that must hold."""
    second_plan: SecondPlan | None = None
    """Whether one more call may confirm the operation of a model's plan: auto or off."""

    def case(self, inputs: Outputs, facts: RunFacts, defaults: CaseDefaults) -> Case:
        """Return the case that a step works on.

        Raises:
            MissingValueError: the question has a place for which there is no value.
            TooMuchTextError: the values are too large.
            CaseDataError: there is no question.
        """
        limits = {} if self.act is None else self.act.model_dump(exclude_none=True)
        return Case(
            question=self.input.render(inputs),
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
