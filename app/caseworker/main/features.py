"""The features of the service."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from caseworker.faces.openai_api.feature import OPENAI_API
from caseworker.features.access.feature import ACCESS
from caseworker.features.artifacts.feature import ARTIFACTS
from caseworker.features.audit.feature import AUDIT
from caseworker.features.catalog.feature import CATALOG
from caseworker.features.definitions.feature import DEFINITIONS
from caseworker.features.erasure.feature import ERASURE
from caseworker.features.expiry import (
    Drop,
    drop_events,
    drop_requests,
    drop_runs,
    drop_snapshots,
    in_order,
)
from caseworker.features.external.feature import EXTERNAL
from caseworker.features.feature import Feature, Opened, Parts
from caseworker.features.mcp_credentials.feature import MCP_CREDENTIALS
from caseworker.features.quotas.feature import QUOTAS
from caseworker.features.retention.feature import RETENTION
from caseworker.features.schedules.feature import SCHEDULES
from caseworker.features.spend.feature import SPEND, STATISTICS
from caseworker.features.threads.feature import THREADS
from caseworker.features.traces.feature import TRACES
from caseworker.features.waiting_calls.feature import WAITING_CALLS
from caseworker.features.webhooks.feature import WEBHOOKS
from caseworker.gateway.feature import GATEWAY
from caseworker.platform.http.problems import OF_EVERY_SERVICE
from caseworker.runs.http import events, problems
from caseworker.runs.http.events import EventStreams
from caseworker.runs.http.kinds import Admissions
from caseworker.runs.http.limits import ApiLimits


def _open_runs(parts: Parts) -> Opened:
    """Build the services that convert requests to runs."""
    streams = EventStreams(parts.service(ApiLimits).max_event_streams)
    return Opened(services=[streams, Admissions(parts)])


RUNS: Final = Feature(
    name="runs",
    routes=events.router.routes,
    errors=problems.ERRORS,
    problems=problems.PROBLEMS,
    tables=[
        *("runs", "calls", "events", "snapshots", "workers", "deaths"),
        *("run_costs", "cost_sums", "cost_backfill"),
        *("provider_limits", "provider_turns", "waiting_tenants"),
    ],
    retention={
        "runs": drop_runs,
        "requests": drop_requests,
        "events": drop_events,
        "snapshots": drop_snapshots,
    },
    open=_open_runs,
)
FEATURES: Final[Sequence[Feature]] = (
    ACCESS,
    QUOTAS,
    DEFINITIONS,
    TRACES,
    RUNS,
    STATISTICS,
    EXTERNAL,
    GATEWAY,
    OPENAI_API,
    ARTIFACTS,
    WAITING_CALLS,
    THREADS,
    WEBHOOKS,
    SCHEDULES,
    CATALOG,
    MCP_CREDENTIALS,
    SPEND,
    AUDIT,
    RETENTION,
    ERASURE,
)
"""All features. Each may use the services of those before it."""

DROPS: Final[Mapping[str, Drop]] = {
    name: in_order([each.retention[name] for each in FEATURES if name in each.retention])
    for feature in FEATURES
    for name in feature.retention
}
"""Functions that delete expired data, by category."""

PROBLEM_TYPES: Final = frozenset(
    kind for feature in FEATURES for kind in feature.problem_types
).union(OF_EVERY_SERVICE)
"""All problem types that the service may return."""


def open_features(
    parts: Parts, overrides: Mapping[type, Any] = MappingProxyType({})
) -> tuple[Mapping[type, Any], Sequence[Opened]]:
    """Build the services of all features for a process.

    Returns all services by type, and the parts of each feature. Services that are ``overrides``
    replace those of the process and of features.
    """
    services, opened = {**parts.services, **overrides}, []
    for feature in FEATURES:
        one = feature.open(replace(parts, services=MappingProxyType(services)))
        services |= {type(each): each for each in one.services} | dict(overrides)
        opened.append(one)
    return services, opened
