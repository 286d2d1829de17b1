"""API schemas for cases: requests, runs and results."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from caseworker.platform.http.bodies import BodyModel, DocumentedAs, View
from caseworker.runs.http.body import (
    BudgetBody,
    OfAgents,
    OfGraphs,
    OfOthers,
    RunFields,
    checked_kind,
)
from caseworker.runs.http.fields import NonBlankText
from caseworker.runs.http.views import RunDetails, UsedModel
from caseworker.runs.run import RunKind

MAX_EXPECTED_TOOLS = 50

ToolName = Annotated[str, StringConstraints(max_length=128)]

Mode = Literal["hrm_small_then_escalate", "escalate", "fallback_only"]


class CaseBody(RunFields):
    """A question to answer in a run of kind ``case``."""

    kind: Annotated[Literal["case"], BeforeValidator(checked_kind)] = "case"
    """Kind of the run."""
    input: NonBlankText
    """Question to answer: UTF-8 text, limited to the configured number of characters (default
    8192)."""
    expected_tools: Annotated[list[ToolName], Field(max_length=MAX_EXPECTED_TOOLS)] | None = None
    """Names of tools that must be used for the answer to count as verified. GET /tools lists the
    available ones."""
    gold_answer: str | None = None
    """Correct answer, used only by the verifier. No model sees it."""
    mode: Mode | None = None
    """Mode that determines how much the small model does before the big one is called. Defaults to
    the configured mode. ``escalate`` is short for ``hrm_small_then_escalate``."""
    budget: BudgetBody | None = None
    """Limits for the run; each one defaults to the configured limit."""
    graph: OfGraphs = None
    agent: OfAgents = None
    model: OfAgents = None
    messages: OfAgents = None
    inputs: OfOthers = None


class CaseFields(BodyModel):
    """Fields of a case that resumes from another one."""

    expected_tools: Annotated[list[ToolName], Field(max_length=MAX_EXPECTED_TOOLS)] | None = None
    """Names of tools that must be used for the answer of a case to count as verified."""
    gold_answer: str | None = None
    """Correct answer of a case, used only by the verifier. No model sees it."""
    mode: Mode | None = None
    """Mode that determines how much the small model does before a case calls the big one."""


class Evidence(View):
    """A tool call made to answer a case, and its result."""

    tool: str
    args: dict[str, Any]
    result: dict[str, Any]
    """Result of the tool. If the tool failed, it has the key ``error``."""
    tier: Literal["small", "big"]
    act_step: int
    """Number of the round in its tier, starting at 1."""
    warning: str | None = None
    """Reason why the action was refused and never executed; null if it was executed."""


class TokenUsage(View):
    """Number of tokens by type, and their cost."""

    input: int
    output: int
    cached_input: int
    """Number of input tokens that the provider served from its cache."""
    reasoning: int
    """Number of output tokens used for reasoning."""
    cost_usd: float | None


class TokensByTier(View):
    """Token usage for each tier, and in total."""

    small: TokenUsage
    big: TokenUsage
    total: TokenUsage


class CaseCounters(View):
    """Numbers of calls, rounds and tokens that a case used."""

    llm_calls_small: int
    llm_calls_big: int
    tool_calls: int
    act_steps: int
    """Number of small-tier rounds that were followed by a decision of the gate: continue, stop or
    escalate."""
    tokens: TokensByTier


class CaseModel(View):
    """The configured model for a tier, and the models that actually answered."""

    provider: str
    """Name of the provider. ``offline`` is the built-in planner."""
    model: str
    used: list[UsedModel]


class CaseModels(View):
    """The models for the two tiers."""

    small: CaseModel
    big: CaseModel | None = None
    """Model for the big tier; null if none is configured."""


class CaseVerification(View):
    """The verifier's findings about the answer."""

    checks: dict[str, bool | None]
    """Result of each check, by its name: true if it passed, null if it does not apply."""
    confirmed_by: str | None
    """Name of the independent check that confirms the answer; null if none does."""


class CaseResult(View):
    """The result of a case."""

    answer: str | None = None
    verified: bool | None
    """Whether the answer is verified: all checks passed and at least one of them is independent of
    the plan. Null if only the plan's choice of operation is unconfirmed."""
    verification: CaseVerification
    finish_reason: Literal["success", "budget", "big_fail"] | None
    logs: list[dict[str, Any]]
    """Log entries of the case agent, in order."""
    evidence: list[Evidence]
    artifacts: list[dict[str, Any]]
    """Files that the tools created, each with name and URL."""
    counters: CaseCounters
    models: CaseModels


class CaseRun(RunDetails):
    """A run of a case, with its result."""

    kind: Literal[RunKind.CASE]
    result: Annotated[dict[str, Any], DocumentedAs(CaseResult)] | None
    """Result of the case; partial if the run ended early, null before there is one."""
