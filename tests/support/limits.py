"""Default limits for tests, each of which a test can override."""

from dataclasses import replace
from typing import Any

from caseworker.core.budget.retry import ONE_ATTEMPT, RetryPolicy
from caseworker.core.trace.payloads import REDACTED
from caseworker.features.artifacts.storage import ArtifactLimits
from caseworker.main import agents, limits
from caseworker.models.forms import StructuredOutput
from caseworker.models.table import ChatModel
from caseworker.platform.postgres.connections import Patience
from caseworker.platform.postgres.engines import PoolSizes
from caseworker.runs.execute.executor import ExecutorLimits
from caseworker.runs.execute.postgres.runs import StoreLimits
from caseworker.runs.http.limits import ApiLimits, GraphLimits
from caseworker.settings.schema import Settings
from caseworker.tools.dispatch import ToolDispatch
from caseworker.tools.registry import ToolPolicy, ToolRegistry
from caseworker_cases.agent.case import ActLimits, Case, CaseDefaults, EscalateWhen, Mode

SETTINGS = Settings()
"""The defaults of the configuration, which are not repeated here."""


def api_limits(**changes: Any) -> ApiLimits:
    """Return limits of the HTTP layer."""
    return replace(limits.api_limits(SETTINGS), **{"default_timezone": "UTC", **changes})


def patience(**changes: Any) -> Patience:
    """Return the timeouts of a connection."""
    usual = Patience(connect_seconds=60, lock_ms=30_000, idle_transaction_ms=120_000)
    return replace(usual, **changes)


def pool_sizes(
    *,
    work: int = SETTINGS.database.pool_size,
    control: int = SETTINGS.database.control_pool_size,
    **changes: Any,
) -> PoolSizes:
    """Return pool sizes with few connections and a long timeout."""
    return PoolSizes(work=work, control=control, patience=patience(**changes))


def store_limits(**changes: Any) -> StoreLimits:
    """Return limits of the store."""
    return replace(limits.store_limits(SETTINGS), **changes)


def retry_policy(**changes: Any) -> RetryPolicy:
    """Return a policy of two retries."""
    return replace(agents.retry_policy(SETTINGS.retry), **changes)


def executor_limits(**changes: Any) -> ExecutorLimits:
    """Return the limits of an executor."""
    return replace(limits.executor_limits(SETTINGS), **changes)


def artifact_limits(**changes: Any) -> ArtifactLimits:
    """Return the limits of stored files."""
    return replace(limits.artifact_limits(SETTINGS), **changes)


def graph_limits(**changes: Any) -> GraphLimits:
    """Return the size limits of a graph."""
    return replace(api_limits().of_graphs, **changes)


def act_limits(**changes: Any) -> ActLimits:
    """Return limits of the small tier."""
    limits = ActLimits(
        max_steps=3,
        max_steps_fallback_only=1,
        no_progress_patience=1,
        min_improvement=0.01,
        escalate_when=EscalateWhen.FAIL_OR_BUDGET,
    )
    return replace(limits, **changes)


def case_defaults(**changes: Any) -> CaseDefaults:
    """Return defaults of a case, without a second plan."""
    defaults = CaseDefaults(
        timezone="UTC",
        mode=Mode.HRM_SMALL_THEN_ESCALATE,
        act=act_limits(),
        pass_metric=1.0,
        second_plan="off",
        wrap_up_reserve=1,
    )
    return replace(defaults, **changes)


def case_of(**given: Any) -> Case:
    """Return a case in the default mode."""
    defaults = case_defaults()
    kept = ("mode", "act", "pass_metric", "second_plan")
    return Case(**{**{name: getattr(defaults, name) for name in kept}, **given})


def tier_model(**given: Any) -> ChatModel:
    """Return a model with default timeout and no temperature."""
    usual = {
        "max_output_tokens": 1024,
        "largest_output_tokens": 32_768,
        "min_output_tokens": 256,
        "stream": True,
        "tokens_per_second": 200,
        "timeout_seconds": 30.0,
        "structured_output": StructuredOutput.AUTO,
        "capabilities": (),
        "provider_tools": {},
    }
    return ChatModel(**{**usual, **given})


def tool_dispatch(
    registry: ToolRegistry,
    policy: ToolPolicy,
    retry: RetryPolicy = ONE_ATTEMPT,
    *,
    expose_errors: bool = False,
) -> ToolDispatch:
    """Return a dispatch of some tools whose traces show redacted arguments."""
    return ToolDispatch(
        registry,
        policy,
        payloads=REDACTED,
        retry=retry,
        approval_timeout_seconds=60.0,
        wait_seconds=60.0,
        expose_errors=expose_errors,
    )
