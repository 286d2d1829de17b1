"""API schemas of results, usage and stops of runs.

These objects are stored as they are shown, so the models only document them and are never
instantiated. Fields with a default may be missing.
"""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from caseworker.api.field_types import View
from caseworker.core.budget.stops import StopKind
from caseworker.core.graph.facts import StepStatus
from caseworker.models.ports import Incomplete


class Usage(View):
    """Resources used by a run, so far if it has not ended, including estimates."""

    tokens: int
    """Input plus output tokens."""
    seconds: float
    steps: int
    """Step executions; retries of a step are not counted."""
    api_calls: int
    """Attempts at model providers."""
    cost_usd: float | None
    """Null if the price of a call is unknown."""
    llm_calls: int = 0
    """Logical calls of all models."""
    llm_calls_small: int = 0
    llm_calls_big: int = 0
    tool_calls: int = 0
    """Tool attempts."""
    turns: int = 0
    """Iterations of agent loops."""
    tokens_estimated: int = 0
    """Estimated share of the tokens: those of requests without a response."""
    cost_usd_estimated: float = 0
    """Estimated share of the cost."""
    cost_usd_known: float | None = None
    """Cost of the calls with a known price, if other calls have an unknown price."""
    unpriced_calls: int = 0
    """Attempts at model providers with an unknown price."""


class RunStop(View):
    """Why a run ended early."""

    kind: StopKind
    dimension: str | None = None
    """The exceeded budget dimension: ``seconds``, ``tool_calls``…"""
    scope: str | None = None
    """The scope of the limit: ``run``, or the path of a step."""
    limit: float | None = None
    used: float | None = None
    reserved: float | None = None
    """Amount reserved by calls in flight."""
    requested: float | None = None
    """Amount requested and refused."""
    requested_by: str | None = None
    reason: str | None = None
    step_id: str | None = None
    """For an error: the step that failed."""
    error_class: str | None = None
    """For an error: its class."""
    at: datetime | None = None


class Evidence(View):
    """One action of a case and its result."""

    tool: str
    args: dict[str, Any]
    result: dict[str, Any]
    """The tool's result; a failure has the key ``error``."""
    tier: Literal["small", "big"]
    act_step: int
    """The number of the round in its tier, from 1."""
    warning: str | None = None
    """Set for an action that was refused and never executed."""


class TokenUsage(View):
    """Token counts and their cost."""

    input: int
    output: int
    cached_input: int
    """Input tokens served from a provider's cache."""
    reasoning: int
    """Output tokens used for reasoning."""
    cost_usd: float | None


class TokensByTier(View):
    """Token usage of each tier, and the total."""

    small: TokenUsage
    big: TokenUsage
    total: TokenUsage


class CaseCounters(View):
    """Usage counters of a case."""

    llm_calls_small: int
    llm_calls_big: int
    tool_calls: int
    act_steps: int
    """Rounds of the small tier on which the gate decided."""
    tokens: TokensByTier


class UsedModel(View):
    """A model that answered calls."""

    provider: str
    model: str
    calls: int


class CaseModel(View):
    """The configured model of a tier, and the models that actually answered."""

    provider: str
    """``offline`` is the built-in planner."""
    model: str
    used: list[UsedModel]


class CaseModels(View):
    """The models of the tiers."""

    small: CaseModel
    big: CaseModel | None = None
    """Null if not configured."""


class CaseVerification(View):
    """The verifier's findings."""

    checks: dict[str, bool | None]
    """Whether each check passed; null if it does not apply."""
    confirmed_by: str | None
    """The independent check that confirms the answer."""


class CaseResult(View):
    """The result of a case."""

    answer: str | None = None
    verified: bool | None
    """True if all checks passed and at least one is independent of the plan. Null if only the
    plan's choice of operation is unconfirmed."""
    verification: CaseVerification
    finish_reason: Literal["success", "budget", "big_fail"] | None
    logs: list[dict[str, Any]]
    """Log of the case agent, in order."""
    evidence: list[Evidence]
    artifacts: list[dict[str, Any]]
    """Files that its tools created, each with name and URL."""
    counters: CaseCounters
    models: CaseModels


class AgentError(View):
    """The error or stop that ended an agent."""

    class_: str = Field(alias="class")
    """The class of the error, such as ``ModelUnavailable``, or of the stop."""
    message: str


class AgentResult(View):
    """The result of an agent."""

    success: bool
    """True if the agent finished on its own."""
    output: Any
    """The answer: text, or JSON that follows the agent's output schema."""
    output_valid: bool | None
    """Whether the answer follows the schema; null without a schema or an answer."""
    raw_content: str
    """The answer exactly as the model wrote it."""
    terminate_reason: (
        Literal["goal", "error", "incomplete", "timeout", "max_turns", "aborted", "budget"] | None
    )
    error: AgentError | None = None
    """Null after ``goal``."""
    incomplete: Incomplete | None = None
    """Why ``raw_content`` is incomplete; null if it is complete."""
    incomplete_reason: str | None = None
    """Explanation by the provider or model, such as the text of a refusal."""
    turn_count: int
    models: list[UsedModel] = Field(default_factory=list)
    """The models that answered."""
    messages: list[dict[str, Any]]
    """The conversation; truncated at the start if it exceeds the limits."""
    messages_left_out: int | None = None
    """Number of older messages not shown; absent if all are shown."""


class StepResult(View):
    """The outcome of a step of a graph."""

    status: StepStatus
    error: str | None = None
    """The error that failed it, or that its error policy recovered from."""
    error_class: str | None = None
    """The class of the error."""
    attempts: int | None = None
    """Number of attempts, including a fallback; absent if none failed."""
    recovered_by: Literal["skip", "fallback"] | None = None
    """How its error policy recovered from the failure."""


class GraphResult(View):
    """The result of a graph."""

    outputs: dict[str, dict[str, Any]]
    """Values by step ID and output handle."""
    steps: dict[str, StepResult]
