"""Services and limits that the HTTP layer is built from; the composition root provides them."""

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
"""Where anonymous requests may come from, while no credentials exist."""


READINESS_SECONDS: Final = 5.0
"""How long a readiness check may take before it counts as failed."""


@dataclass(frozen=True, slots=True)
class PartState:
    """The readiness of one part of the service."""

    ready: bool
    message: str = ""
    """The problem, for the operator of the service; any caller may read it."""


class Readiness(Protocol):
    """Checks whether this process can serve requests."""

    async def check(self) -> Mapping[str, PartState]:
        """Return the state of every part, such as ``database``, ``migrations``, ``worker``."""
        ...


class MetricsSource(Protocol):
    """The metrics of this process."""

    media_type: str

    async def text(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsAccess:
    """The metrics, and the rules for access to them."""

    page: MetricsSource
    readable_from: AnonymousFrom
    """Where requests without a key may come from."""
    key: str | None
    """The key for access from anywhere; None disables it."""


class RequestObserver(Protocol):
    """Counts requests."""

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record a completed or abandoned request; ``route`` is its path template."""
        ...


class NodeTypes(Protocol):
    """Describes the node types for steps of graphs."""

    def describe(self) -> Sequence[Mapping[str, Any]]:
        """Return the description of each type, by name, as JSON."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServices:
    """Services that the routes use."""

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
    """None disables /metrics."""
    requests: RequestObserver | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiLimits:
    """Limits and defaults of the HTTP layer."""

    max_body_bytes: int
    """Limit for a body, excluding the graph in it."""
    max_json_depth: int
    max_page_bytes: int
    """Limit for the runs on a page of a list; the first run is always included."""
    max_input_chars: int
    """Limit for the input of a case, in code points."""
    max_metadata_bytes: int = 16_384
    """Limit for metadata, as JSON."""
    max_graph_bytes: int
    """Limit for a graph as JSON, including nested graphs, as for the next three limits."""
    max_graph_steps: int
    max_graph_edges: int
    max_graph_depth: int
    """Maximum nesting of graphs, including the outermost."""
    max_wait_seconds: int
    """How long a POST may wait for its run (``Prefer: wait``)."""
    max_connections: int
    """Maximum number of concurrent requests of this process."""
    max_event_streams: int
    """Maximum number of open event streams of this process."""
    readiness_seconds: float = READINESS_SECONDS
    max_bodies_bytes: int
    """Limit for all request bodies that this process is receiving concurrently."""
    allowed_hosts: frozenset[str] | None
    """Accepted host names, in addition to IP addresses; None accepts any name."""
    cors_origins: frozenset[str]
    """Origins of web pages that may send requests without a credential."""
    max_delay_days: int
    """How far in the future ``start_at`` may be."""
    webhook_urls: UrlRules
    """Rules for webhook URLs."""
    logs_requests: bool
    """Whether to log every request."""
    anonymous: AnonymousFrom
    default_mode: str
    default_timezone: str
    default_seed: int | None = None
    default_budget: Budget
    """Default limits of a case run; its caller may override each one."""
    budget_ceiling: Budget
    """Limits that no run may exceed, regardless of its caller."""
    ceiling_requires_prices: bool
    """Whether the ceiling's cost limit rejects models without a known price, as a caller's does."""

    @property
    def of_graphs(self) -> GraphLimits:
        """The size limits of graphs."""
        return GraphLimits(
            max_bytes=self.max_graph_bytes,
            max_steps=self.max_graph_steps,
            max_edges=self.max_graph_edges,
            max_depth=self.max_graph_depth,
        )
