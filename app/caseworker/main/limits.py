"""Convert the settings to the limits that the parts of a process enforce."""

from caseworker.core.trace.frozen_json import ValueLimits
from caseworker.features.artifacts.storage import ArtifactLimits
from caseworker.features.quotas.postgres import QuotaChecks
from caseworker.features.webhooks.feature import url_rules
from caseworker.platform.postgres.connections import Patience
from caseworker.platform.postgres.engines import PoolSizes
from caseworker.runs.execute.executor import ExecutorLimits
from caseworker.runs.execute.postgres.runs import StoreLimits
from caseworker.runs.execute.queue import QueueTimes
from caseworker.runs.http.limits import ApiLimits
from caseworker.runs.recover.postgres import STALLED_AFTER
from caseworker.settings.schema import Settings


def allowed_hosts(settings: Settings) -> frozenset[str] | None:
    """Return the host names that requests may use, in addition to IP addresses and localhost.

    None allows any name: with anonymous access from anywhere and no configured hosts, checking the
    name is left to a reverse proxy.
    """
    configured = settings.server.allowed_hosts
    if configured is None and settings.auth.anonymous == "anywhere":
        return None
    return frozenset({settings.server.host, *(configured or ())})


def pool_sizes(settings: Settings) -> PoolSizes:
    """Return the sizes and timeouts of the connection pools of this process."""
    database = settings.database
    patience = Patience(
        connect_seconds=database.connect_timeout_seconds, lock_ms=database.lock_timeout_ms
    )
    return PoolSizes(work=database.pool_size, control=database.control_pool_size, patience=patience)


def value_limits(settings: Settings) -> ValueLimits:
    """Return the size limits for the values that runs pass on and store."""
    limits = settings.limits
    return ValueLimits(
        max_value_bytes=limits.max_value_kb << 10,
        max_outputs_bytes=limits.max_outputs_kb << 10,
        max_result_bytes=limits.max_result_kb << 10,
        max_event_bytes=limits.max_event_kb << 10,
        max_run_bytes=limits.max_run_mb << 20,
        max_depth=limits.max_depth,
    )


def executor_limits(settings: Settings) -> ExecutorLimits:
    """Return the concurrency, retry and size limits for executing runs in this process."""
    worker = settings.worker
    return ExecutorLimits(
        max_runs=worker.max_runs,
        max_external_runs=settings.admission.max_external_runs,
        max_attempts=worker.max_attempts,
        max_parallel_steps=worker.max_parallel_steps,
        values=value_limits(settings),
    )


def queue_times(settings: Settings) -> QueueTimes:
    """Return the intervals at which a process polls the job queue and sends heartbeats."""
    worker = settings.worker
    return QueueTimes(
        poll=worker.poll_seconds,
        heartbeat=worker.stale_after_seconds,
        stale=STALLED_AFTER * worker.stale_after_seconds,
    )


def store_limits(settings: Settings) -> StoreLimits:
    """Return the limits that the run store enforces."""
    return StoreLimits(
        pending_cancel_ttl_seconds=settings.cancellation.intent_ttl_seconds,
        max_pending_cancels=settings.cancellation.max_early_intents,
        max_queued=settings.admission.max_queued,
        quota=settings.quotas.quota,
        checks=QuotaChecks(),
        accept_timeout_seconds=settings.server.request_timeout_seconds,
    )


def artifact_limits(settings: Settings) -> ArtifactLimits:
    """Return the limits for the size and number of artifacts."""
    return ArtifactLimits(
        max_bytes=settings.artifacts.max_artifact_mb * 1024 * 1024,
        max_run_bytes=settings.artifacts.max_run_mb * 1024 * 1024,
        max_per_run=settings.artifacts.max_per_run,
    )


def api_limits(settings: Settings) -> ApiLimits:
    """Return the limits and defaults that the HTTP layer applies to requests."""
    return ApiLimits(
        max_body_bytes=settings.server.max_body_kb * 1024,
        max_json_depth=settings.limits.max_depth,
        max_page_bytes=settings.limits.max_page_kb * 1024,
        max_input_chars=settings.flags.max_input_chars,
        max_graph_bytes=settings.admission.max_graph_kb * 1024,
        max_graph_steps=settings.admission.max_graph_steps,
        max_graph_edges=settings.admission.max_graph_edges,
        max_graph_depth=settings.admission.max_graph_depth,
        max_seconds=settings.server.request_timeout_seconds,
        max_connections=settings.server.max_connections,
        max_event_streams=settings.events.max_streams,
        max_bodies_bytes=settings.server.max_bodies_mb * 1024 * 1024,
        allowed_hosts=allowed_hosts(settings),
        cors_origins=frozenset(settings.server.cors_origins),
        docs_url=settings.server.docs_url,
        max_delay_days=settings.admission.max_delay_days,
        webhook_urls=url_rules(settings.webhooks),
        max_wait_seconds=int(settings.server.request_timeout_seconds),
        anonymous=settings.auth.anonymous,
        logs_requests=settings.logging.access,
        default_timezone=settings.flags.zone_name,
        default_seed=settings.flags.seed,
        budget_ceiling=settings.admission.limits,
        ceiling_requires_prices=settings.admission.requires_prices,
    )
