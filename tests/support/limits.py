"""The limits that tests run under, each of which a test may set to what it is about."""

from dataclasses import replace
from typing import Any

from app.adapters.postgres.accept_and_cancel import StoreLimits
from app.adapters.postgres.connections import Patience
from app.adapters.postgres.engines import PoolSizes
from app.api.services import ApiLimits
from app.control.retry import RetryPolicy
from app.llm.exchange import TierModel
from app.llm.forms import StructuredOutput
from app.nodes.case.case import ActLimits, Case, CaseDefaults, EscalateWhen, Mode
from app.runs.artifacts import ArtifactLimits
from app.runs.executor import ExecutorLimits
from app.runs.graphs import GraphLimits
from app.tools.dispatch import ONE_ATTEMPT, ToolDispatch
from app.tools.registry import ToolPolicy, ToolRegistry


def api_limits(**changes: Any) -> ApiLimits:
    """What the HTTP layer lets through."""
    limits = ApiLimits(
        max_body_bytes=262_144,
        max_json_depth=32,
        max_input_chars=8192,
        max_graph_bytes=1_048_576,
        max_graph_steps=10_000,
        max_graph_edges=50_000,
        max_graph_depth=8,
        max_wait_seconds=60,
        max_event_streams=500,
        anonymous="loopback",
        default_mode="hrm_small_then_escalate",
        default_timezone="UTC",
    )
    return replace(limits, **changes)


def patience(**changes: Any) -> Patience:
    """How long a connection waits for what."""
    return replace(Patience(connect_seconds=5.0, lock_ms=5000), **changes)


def pool_sizes(*, work: int = 8, control: int = 2, **changes: Any) -> PoolSizes:
    """A few connections, waited for with some patience."""
    return PoolSizes(work=work, control=control, patience=patience(**changes))


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
        "min_output_tokens": 256,
        "timeout_seconds": 30.0,
        "structured_output": StructuredOutput.AUTO,
    }
    return TierModel(**{**usual, **given})


def tool_dispatch(
    registry: ToolRegistry, policy: ToolPolicy, retry: RetryPolicy = ONE_ATTEMPT
) -> ToolDispatch:
    """The door to some tools; traces show what they were called with, redacted."""
    return ToolDispatch(registry, policy, payloads="redacted", retry=retry)
