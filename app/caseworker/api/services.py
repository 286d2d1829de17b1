"""Services and limits that the HTTP layer is built from. :mod:`caseworker.main` provides them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from caseworker.core.budget.budget import Budget
from caseworker.features.access.authentication import Authentication
from caseworker.features.access.keys import KeyStore
from caseworker.features.artifacts.keeping import ArtifactReading
from caseworker.features.schedules.schedule import ScheduleStore
from caseworker.features.threads.thread import ThreadStore
from caseworker.features.webhooks.addresses import UrlRules
from caseworker.features.webhooks.delivery import DeliveryStore
from caseworker.models.gateway import ModelGateway
from caseworker.runs.approvals import RunApprovals
from caseworker.runs.graphs import DefinitionStore, GraphChecks, GraphLimits
from caseworker.runs.payloads import PayloadReading
from caseworker.runs.quotas import QuotaStore
from caseworker.runs.service import RunService
from caseworker.tools.dispatch import ToolDispatch

AnonymousFrom = Literal["loopback", "anywhere"]
"""Where requests without a credential may come from while no credentials exist."""


READINESS_SECONDS: Final = 5.0
"""Time, in seconds, after which a readiness check counts as failed."""


@dataclass(frozen=True, slots=True)
class PartState:
    """The readiness of one part of the service, such as the database."""

    ready: bool
    message: str = ""
    """Problem description for the operator; empty if the part is ready. Any caller may read it."""


class Readiness(Protocol):
    """Checks whether this process can serve requests."""

    async def check(self) -> Mapping[str, PartState]:
        """Return the state of each part by name: ``database``, ``migrations``, ``worker``."""
        ...


class MetricsSource(Protocol):
    """Provides the metrics of this process."""

    media_type: str

    async def text(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsAccess:
    """The metrics, and who may read them."""

    page: MetricsSource
    readable_from: AnonymousFrom
    """Where requests without the metrics key may come from."""
    key: str | None
    """Key that permits reading the metrics from anywhere; None if no key is configured."""


class RequestObserver(Protocol):
    """Counts completed requests for the metrics."""

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record a completed or abandoned request; ``route`` is its path template."""
        ...


class NodeTypes(Protocol):
    """Describes the node types that steps of graphs can have."""

    def describe(self) -> Sequence[Mapping[str, Any]]:
        """Return a JSON description of each node type, sorted by name."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServices:
    """The services that routes call."""

    keys: KeyStore
    authentication: Authentication
    runs: RunService
    payloads: PayloadReading
    artifacts: ArtifactReading
    approvals: RunApprovals
    tools: ToolDispatch
    models: ModelGateway
    readiness: Readiness
    definitions: DefinitionStore
    graph_checks: GraphChecks
    node_types: NodeTypes
    threads: ThreadStore
    quotas: QuotaStore
    webhooks: DeliveryStore
    schedules: ScheduleStore
    metrics: MetricsAccess | None = None
    """Metrics served at /metrics; None disables the route."""
    requests: RequestObserver | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiLimits:
    """Limits and defaults that the HTTP layer applies to requests."""

    max_body_bytes: int
    """Maximum size of a request body in bytes, not counting the graph in it."""
    max_json_depth: int
    max_page_bytes: int
    """Maximum total size of the runs on a page, in bytes. The first run is always included."""
    max_input_chars: int
    """Maximum length of an input text or user message, in code points."""
    max_metadata_bytes: int = 16_384
    """Maximum size of a run's or thread's metadata as JSON, in bytes."""
    max_graph_bytes: int
    """Maximum size of a graph as JSON, in bytes. This and the next three limits include nested
    graphs."""
    max_graph_steps: int
    max_graph_edges: int
    max_graph_depth: int
    """Maximum nesting depth of graphs; the outermost graph counts as 1."""
    max_wait_seconds: int
    """Maximum number of seconds that a POST may wait for its run to end (``Prefer: wait``)."""
    max_connections: int
    """Maximum number of requests that this process serves concurrently."""
    max_event_streams: int
    """Maximum number of event streams that this process keeps open concurrently."""
    readiness_seconds: float = READINESS_SECONDS
    max_bodies_bytes: int
    """Maximum total size, in bytes, of all request bodies that this process is receiving."""
    allowed_hosts: frozenset[str] | None
    """Host names that requests may use, in addition to IP addresses; None allows any name."""
    cors_origins: frozenset[str]
    """Origins of web pages that may send requests without a credential, such as
    ``https://app.example.com``."""
    max_delay_days: int
    """Maximum number of days by which ``start_at`` may lie in the future."""
    webhook_urls: UrlRules
    """Rules that webhook URLs must follow."""
    logs_requests: bool
    """Whether to log every request."""
    anonymous: AnonymousFrom
    default_mode: str
    default_timezone: str
    default_seed: int | None = None
    default_budget: Budget
    """Default limits for runs of kind case; a request may override each one."""
    budget_ceiling: Budget
    """Limits that no run can exceed, regardless of its request."""
    ceiling_requires_prices: bool
    """Whether models without a known price are rejected because the ceiling for the cost was set
    explicitly."""

    @property
    def of_graphs(self) -> GraphLimits:
        """Size limits that apply to graphs."""
        return GraphLimits(
            max_bytes=self.max_graph_bytes,
            max_steps=self.max_graph_steps,
            max_edges=self.max_graph_edges,
            max_depth=self.max_graph_depth,
        )
