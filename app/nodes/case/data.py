"""What the step of a case is configured with, and the case that it makes of its inputs."""

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field

from app.engine.context import Outputs
from app.nodes.case.case import ActLimits, Case, CaseDefaults, EscalateWhen, Mode
from app.nodes.reading import StepData, TextField, refusal
from app.nodes.run_facts import RunFacts
from app.nodes.templates import TextTemplate
from app.nodes.toolset import ToolName

MAX_LIMIT = 2**63 - 1


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, OSError, ValueError):
        raise refusal("This must be an IANA time zone, such as Europe/Paris or UTC.") from None
    return value


def _instant(value: str) -> str:
    try:
        zone = datetime.fromisoformat(value).tzinfo
    except ValueError:
        zone = None
    if zone is None:
        raise refusal("This must be an instant with its offset, such as 2025-09-08T12:00:00Z.")
    return value


def _mode(value: str) -> str:
    if value not in set(Mode):
        raise refusal(f"This must be one of: {', '.join(Mode)}.")
    return value


def _escalate_when(value: str) -> str:
    if value not in set(EscalateWhen):
        raise refusal(f"This must be one of: {', '.join(EscalateWhen)}.")
    return value


_USUAL = "${default}"
_USUAL_QUESTION = TextTemplate.parse(_USUAL)

_Count = Annotated[int, Field(ge=0, le=MAX_LIMIT)]


class ActData(StepData):
    """How long the small tier may go on; what is left out is as configured."""

    max_steps: _Count | None = None
    max_steps_fallback_only: Annotated[int, Field(ge=0, le=1)] | None = None
    no_progress_patience: _Count | None = None
    min_improvement: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    escalate_when: Annotated[str, AfterValidator(_escalate_when)] | None = None

    def limits(self, usual: ActLimits) -> ActLimits:
        """Return the limits that are given here, and the usual ones for the rest."""
        given: dict[str, Any] = self.model_dump(exclude_none=True)
        if self.escalate_when is not None:
            given["escalate_when"] = EscalateWhen(self.escalate_when)
        return replace(usual, **given)


class CaseData(StepData):
    """A question, and how it is to be worked on.

    What is left out is as the run or the configuration says.
    """

    input: TextField = Field(
        default_factory=lambda: _USUAL_QUESTION, json_schema_extra={"default": _USUAL}
    )
    """The question."""
    expected_tools: Annotated[list[ToolName], Field(max_length=50)] | None = None
    """Tools without which the answer does not count as verified."""
    gold_answer: str | None = None
    """The right answer, for the verifier alone: no model ever sees it."""
    mode: Annotated[str, AfterValidator(_mode)] | None = None
    seed: Annotated[int, Field(ge=-MAX_LIMIT - 1, le=MAX_LIMIT)] | None = None
    timezone: Annotated[str, AfterValidator(_zone)] | None = None
    """Where "today" begins."""
    now: Annotated[str, AfterValidator(_instant)] | None = None
    """From when relative dates are counted; left out, from when the run was accepted."""
    act: ActData | None = None
    pass_metric: Annotated[float, Field(ge=0, le=1)] | None = None
    """The share of the verifier's checks that must hold."""

    def case(self, inputs: Outputs, facts: RunFacts, defaults: CaseDefaults) -> Case:
        """Return the case that a step works on.

        Raises:
            MissingValueError: the question has a place for which there is no value.
            TooMuchTextError: the values are too large.
            CaseDataError: there is no question.
        """
        return Case(
            question=self.input.render(inputs),
            timezone=self.timezone or facts.timezone or defaults.timezone,
            now=facts.now if self.now is None else datetime.fromisoformat(self.now),
            expected_tools=tuple(self.expected_tools or ()),
            gold_answer=self.gold_answer,
            mode=defaults.mode if self.mode is None else Mode(self.mode),
            seed=facts.seed if self.seed is None else self.seed,
            act=defaults.act if self.act is None else self.act.limits(defaults.act),
            pass_metric=defaults.pass_metric if self.pass_metric is None else self.pass_metric,
        )
