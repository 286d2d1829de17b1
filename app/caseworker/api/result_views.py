"""The form of what a run came to, what it spent and what stopped it.

These objects are stored as they are shown, so the models here document them and are never built.
Fields with a default may be missing.
"""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from caseworker.api.field_types import View
from caseworker.control.stops import StopKind
from caseworker.kernel.facts import StepStatus
from caseworker.llm.ports import Incomplete


class Usage(View):
    """What was spent; while the run works what was so far, estimates included."""

    tokens: int
    """Input plus output tokens."""
    seconds: float
    steps: int
    """Step executions; further attempts of a step are not counted."""
    api_calls: int
    """Provider attempts."""
    cost_usd: float | None
    """Null if the price of a call is not known."""
    llm_calls: int = 0
    """Logical calls of all models."""
    llm_calls_small: int = 0
    llm_calls_big: int = 0
    tool_calls: int = 0
    """Tool attempts."""
    turns: int = 0
    """Iterations of agent loops."""
    tokens_estimated: int = 0
    """The part of the tokens that was estimated: what was sent and not answered."""
    cost_usd_estimated: float = 0
    """The part of the cost that was estimated."""
    cost_usd_known: float | None = None
    """The sum of the calls whose price is known, where that of others is not."""
    unpriced_calls: int = 0
    """Provider attempts whose price is not known."""


class RunStop(View):
    """Why a run ended before its natural end."""

    kind: StopKind
    dimension: str | None = None
    """Which limit of the budget: ``seconds``, ``tool_calls``…"""
    scope: str | None = None
    """Whose limit: ``run``, or the path of a step."""
    limit: float | None = None
    used: float | None = None
    reserved: float | None = None
    """What work in flight held of the limit."""
    requested: float | None = None
    """What was asked for and refused."""
    requested_by: str | None = None
    reason: str | None = None
    step_id: str | None = None
    """The step that failed, of an error."""
    error_class: str | None = None
    """The class of the failure, of an error."""
    at: datetime | None = None


class Evidence(View):
    """One action of a case and its result."""

    tool: str
    args: dict[str, Any]
    result: dict[str, Any]
    """What the tool returned; a failure has the key ``error``."""
    tier: Literal["small", "big"]
    act_step: int
    """The number of the pass in its tier, from 1."""
    warning: str | None = None
    """Set for an action that was refused and never ran."""


class TokenUsage(View):
    """Tokens and what they cost."""

    input: int
    output: int
    cached_input: int
    """The part of the input that came from a provider's cache."""
    reasoning: int
    """The part of the output that went into reasoning."""
    cost_usd: float | None


class TokensByTier(View):
    """Tokens of both tiers and their sum."""

    small: TokenUsage
    big: TokenUsage
    total: TokenUsage


class CaseCounters(View):
    """What a case has used."""

    llm_calls_small: int
    llm_calls_big: int
    tool_calls: int
    act_steps: int
    """Rounds of the small tier on which the gate decided."""
    tokens: TokensByTier


class UsedModel(View):
    """A model that has answered."""

    provider: str
    model: str
    calls: int


class CaseModel(View):
    """The model of a tier, and which models have answered in its place."""

    provider: str
    """``offline`` is the built-in planner."""
    model: str
    used: list[UsedModel]


class CaseModels(View):
    """The models of the tiers."""

    small: CaseModel
    big: CaseModel | None = None
    """Null if none is configured."""


class CaseVerification(View):
    """What the verifier has found."""

    checks: dict[str, bool | None]
    """Whether each check holds; null where it does not apply."""
    confirmed_by: str | None
    """The independent check that confirms the answer."""


class CaseResult(View):
    """What a case came to."""

    answer: str | None = None
    verified: bool | None
    """True if the checks of the answer hold, and one of them is independent of the plan. Null if
    only the operation that the plan chose is not confirmed."""
    verification: CaseVerification
    finish_reason: Literal["success", "budget", "big_fail"] | None
    logs: list[dict[str, Any]]
    """What the case agent did, in order."""
    evidence: list[Evidence]
    artifacts: list[dict[str, Any]]
    """The files that its tools have made, each with its name and its URL."""
    counters: CaseCounters
    models: CaseModels


class AgentError(View):
    """What failed or stopped an agent."""

    class_: str = Field(alias="class")
    """The class of the failure, such as ``ModelUnavailable``, or of the stop."""
    message: str


class AgentResult(View):
    """What an agent came to."""

    success: bool
    """True if it ended by itself."""
    output: Any
    """Its answer: text, or JSON that follows the schema of its output."""
    output_valid: bool | None
    """Whether the answer follows the schema; null without one, and where there is no answer."""
    raw_content: str
    """The answer as the model wrote it."""
    terminate_reason: (
        Literal["goal", "error", "incomplete", "timeout", "max_turns", "aborted", "budget"] | None
    )
    error: AgentError | None = None
    """Null after ``goal``."""
    incomplete: Incomplete | None = None
    """Why ``raw_content`` is not complete; null if it is."""
    incomplete_reason: str | None = None
    """What the provider or the model said about it, such as the text of a refusal."""
    turn_count: int
    models: list[UsedModel] = Field(default_factory=list)
    """The models that have answered."""
    messages: list[dict[str, Any]]
    """The conversation, as much of its end as the limits allow."""
    messages_left_out: int | None = None
    """How many older messages are not shown; left out if all are."""


class StepResult(View):
    """How a step of a graph stands."""

    status: StepStatus
    error: str | None = None
    """What failed it, or what its policy has made good."""
    error_class: str | None = None
    """The class of that failure."""
    attempts: int | None = None
    """How often it was tried, a fallback included; left out if nothing failed."""
    recovered_by: Literal["skip", "fallback"] | None = None
    """How its policy has made a failure good."""


class GraphResult(View):
    """What a graph came to."""

    outputs: dict[str, dict[str, Any]]
    """Values by step and output handle."""
    steps: dict[str, StepResult]
