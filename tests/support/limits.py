"""The limits that tests run under, each of which a test may set to what it is about."""

from dataclasses import replace
from typing import Any

from app.adapters.postgres.accept_and_cancel import StoreLimits
from app.adapters.postgres.connections import Patience
from app.adapters.postgres.engines import PoolSizes
from app.api.services import ApiLimits
from app.bootstrap.server import api_limits as default_api_limits
from app.control.budget import Budget
from app.control.retry import RetryPolicy
from app.llm.exchange import TierModel
from app.llm.forms import StructuredOutput
from app.nodes.case.case import ActLimits, Case, CaseDefaults, EscalateWhen, Mode
from app.runs.artifacts import ArtifactLimits
from app.runs.executor import ExecutorLimits
from app.runs.graphs import GraphLimits
from app.settings.schema import Settings
from app.tools.dispatch import ONE_ATTEMPT, ToolDispatch
from app.tools.registry import ToolPolicy, ToolRegistry
from app.trace.payloads import REDACTED


def api_limits(**changes: Any) -> ApiLimits:
    """What the HTTP layer lets through."""
    usual = default_api_limits(Settings())
    return replace(usual, **{"default_timezone": "UTC", "default_budget": Budget(), **changes})


def patience(**changes: Any) -> Patience:
    """How long a connection waits for what."""
    database = Settings().database
    usual = Patience(
        connect_seconds=database.connect_timeout_seconds, lock_ms=database.lock_timeout_ms
    )
    return replace(usual, **changes)


def pool_sizes(*, work: int | None = None, control: int | None = None, **changes: Any) -> PoolSizes:
    """The usual number of connections, waited for with the usual patience."""
    database = Settings().database
    return PoolSizes(
        work=work or database.pool_size,
        control=control or database.control_pool_size,
        patience=patience(**changes),
    )


def store_limits(**changes: Any) -> StoreLimits:
    """What the store refuses."""
    limits = StoreLimits(
        pending_cancel_ttl_seconds=3600.0, max_pending_cancels=1000, accept_timeout_seconds=10.0
    )
    return replace(limits, **changes)


def retry_policy(**changes: Any) -> RetryPolicy:
    """Two further attempts."""
    policy = RetryPolicy(
        max_retries=2, base_seconds=0.5, factor=2.0, jitter=0.2, max_delay_seconds=30.0
    )
    return replace(policy, **changes)


def executor_limits(**changes: Any) -> ExecutorLimits:
    """How a process executes runs."""
    limits = ExecutorLimits(max_runs=1000, max_attempts=3, max_parallel_steps=64)
    return replace(limits, **changes)


def artifact_limits(**changes: Any) -> ArtifactLimits:
    """How much may be kept."""
    limits = ArtifactLimits(max_bytes=5 << 20, max_run_bytes=50 << 20, max_per_run=100)
    return replace(limits, **changes)


def graph_limits(**changes: Any) -> GraphLimits:
    """How large a graph may be."""
    limits = GraphLimits(max_bytes=1_048_576, max_steps=10_000, max_edges=50_000, max_depth=8)
    return replace(limits, **changes)


def act_limits(**changes: Any) -> ActLimits:
    """How long the small tier may go on."""
    limits = ActLimits(
        max_steps=3,
        max_steps_fallback_only=1,
        no_progress_patience=1,
        min_improvement=0.01,
        escalate_when=EscalateWhen.FAIL_OR_BUDGET,
    )
    return replace(limits, **changes)


def case_defaults(**changes: Any) -> CaseDefaults:
    """What holds for a case whose data does not say otherwise."""
    defaults = CaseDefaults(
        timezone="UTC",
        mode=Mode.HRM_SMALL_THEN_ESCALATE,
        act=act_limits(),
        pass_metric=1.0,
        wrap_up_reserve=1,
    )
    return replace(defaults, **changes)


def case_of(**given: Any) -> Case:
    """A case of the usual mode."""
    defaults = case_defaults()
    usual = {"mode": defaults.mode, "act": defaults.act, "pass_metric": defaults.pass_metric}
    return Case(**{**usual, **given})


def tier_model(**given: Any) -> TierModel:
    """A model that is asked without patience or temperature of its own."""
    usual = {
        "max_output_tokens": 1024,
        "timeout_seconds": 30.0,
        "structured_output": StructuredOutput.AUTO,
    }
    return TierModel(**{**usual, **given})


def tool_dispatch(
    registry: ToolRegistry, policy: ToolPolicy, retry: RetryPolicy = ONE_ATTEMPT
) -> ToolDispatch:
    """The door to some tools; traces show what they were called with, redacted."""
    return ToolDispatch(registry, policy, payloads=REDACTED, retry=retry)
