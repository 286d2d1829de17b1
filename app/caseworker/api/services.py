"""What the HTTP layer is built from; the composition root hands it over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from caseworker.access.authentication import Authentication
from caseworker.access.keys import KeyStore
from caseworker.chats.thread import ThreadStore
from caseworker.control.budget import Budget
from caseworker.llm.gateway import ModelGateway
from caseworker.runs.approvals import RunApprovals
from caseworker.runs.artifacts import ArtifactReading
from caseworker.runs.graphs import DefinitionStore, GraphChecks, GraphLimits
from caseworker.runs.payloads import PayloadReading
from caseworker.runs.quotas import QuotaStore
from caseworker.runs.service import RunService
from caseworker.schedules.schedule import ScheduleStore
from caseworker.tools.dispatch import ToolDispatch
from caseworker.webhooks.addresses import UrlRules
from caseworker.webhooks.delivery import DeliveryStore

AnonymousFrom = Literal["loopback", "anywhere"]
"""From where callers without a credential are served, while there are no credentials."""


READINESS_SECONDS: Final = 5.0
"""How long a check of readiness may take before it counts as failed."""


@dataclass(frozen=True, slots=True)
class PartState:
    """How one part of the service stands."""

    ready: bool
    message: str = ""
    """What is missing, for the operator of the service; any caller may see it."""


class Readiness(Protocol):
    """Knows whether this process can serve requests."""

    async def check(self) -> Mapping[str, PartState]:
        """Return the state of every part, such as ``database``, ``migrations``, ``worker``."""
        ...


class MetricsSource(Protocol):
    """Knows what was counted in this process."""

    media_type: str

    async def text(self) -> bytes:
        """Return it in the text form of Prometheus."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsAccess:
    """The metrics, and who may read them."""

    page: MetricsSource
    readable_from: AnonymousFrom
    """Where readers without a key may be."""
    key: str | None
    """What readers from anywhere show; None if there is no such key."""


class RequestObserver(Protocol):
    """Counts requests."""

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered, or given up; ``route`` is the template of its path."""
        ...


class NodeTypes(Protocol):
    """Knows the types of step that graphs can be made of."""

    def describe(self) -> Sequence[Mapping[str, Any]]:
        """Return the description of each type, by name, as JSON."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServices:
    """What the routes ask."""

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
    """None serves none."""
    requests: RequestObserver | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiLimits:
    """What the HTTP layer lets through, and what it fills in."""

    max_body_bytes: int
    """Of a body apart from the graph in it."""
    max_json_depth: int
    max_page_bytes: int
    """Of the runs on one page of a list, except the first of them."""
    max_input_chars: int
    """Code points of a case's input."""
    max_metadata_bytes: int = 16_384
    """Of metadata written as JSON."""
    max_graph_bytes: int
    """Of a graph written as JSON, with all the graphs that it contains; so are the next three."""
    max_graph_steps: int
    max_graph_edges: int
    max_graph_depth: int
    """Graphs inside one another, the outermost included."""
    max_wait_seconds: int
    """The longest time that a POST waits for its run (``Prefer: wait``)."""
    max_connections: int
    """Requests that this process answers at once."""
    max_event_streams: int
    """How many event streams this process keeps open at once."""
    readiness_seconds: float = READINESS_SECONDS
    max_bodies_bytes: int
    """Of all request bodies that a process is receiving at once."""
    allowed_hosts: frozenset[str] | None
    """The host names that requests may be sent to, besides addresses; None is any name."""
    cors_origins: frozenset[str]
    """Origins of web pages that may send requests without a credential."""
    max_delay_days: int
    """How far ahead a run may be accepted that begins later."""
    webhook_urls: UrlRules
    """Where the ends of runs may be announced."""
    logs_requests: bool
    """Whether every request has a line in the log."""
    anonymous: AnonymousFrom
    default_mode: str
    default_timezone: str
    default_seed: int | None = None
    default_budget: Budget
    """The limits of a case run, replaced one by one by those that its caller gives."""
    budget_ceiling: Budget
    """What no run may pass, whatever its caller gives."""
    ceiling_requires_prices: bool
    """Whether its limit of cost refuses models whose price is not known, as a caller's does."""

    @property
    def of_graphs(self) -> GraphLimits:
        """How large a graph may be."""
        return GraphLimits(
            max_bytes=self.max_graph_bytes,
            max_steps=self.max_graph_steps,
            max_edges=self.max_graph_edges,
            max_depth=self.max_graph_depth,
        )
