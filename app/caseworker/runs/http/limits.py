"""Limits and defaults that the HTTP layer applies to requests for runs."""

from dataclasses import dataclass

from caseworker.core.budget.budget import Budget
from caseworker.platform.http.request import HttpLimits
from caseworker.platform.webhook_addresses import UrlRules

MAX_METADATA_BYTES = 16_384
"""Maximum size of the metadata of a run or thread as JSON, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLimits:
    """Limits on the size of a graph, including everything that it contains."""

    max_bytes: int
    """Maximum size of the graph as JSON, in bytes."""
    max_steps: int
    max_edges: int
    max_depth: int
    """Maximum nesting depth; the outermost graph has depth 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiLimits(HttpLimits):
    """Limits and defaults that apply to requests for runs."""

    max_page_bytes: int
    """Maximum total size of the runs on a page, in bytes. The first run is always included."""
    max_input_chars: int
    """Maximum length of an input text or user message, in code points."""
    max_graph_steps: int
    max_graph_edges: int
    max_graph_depth: int
    """Maximum nesting depth of graphs; the outermost graph counts as 1."""
    max_wait_seconds: int
    """Maximum number of seconds that a POST may wait for its run to end (``Prefer: wait``)."""
    max_event_streams: int
    """Maximum number of event streams that this process keeps open concurrently."""
    max_delay_days: int
    """Maximum number of days by which ``start_at`` may lie in the future."""
    webhook_urls: UrlRules
    """Rules that webhook URLs must follow."""
    default_timezone: str
    default_seed: int | None = None
    budget_ceiling: Budget
    """Limits that no run can exceed, regardless of its request."""
    ceiling_requires_prices: bool
    """Whether models without a known price are rejected: True if a cost ceiling is configured."""

    @property
    def of_graphs(self) -> GraphLimits:
        """Size limits that apply to graphs."""
        return GraphLimits(
            max_bytes=self.max_graph_bytes,
            max_steps=self.max_graph_steps,
            max_edges=self.max_graph_edges,
            max_depth=self.max_graph_depth,
        )
