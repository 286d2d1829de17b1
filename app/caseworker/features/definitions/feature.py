"""The feature ``definitions``: registered graphs and agents."""

from typing import Final

from caseworker.features.definitions import http
from caseworker.features.feature import Feature, Opened, Parts
from caseworker.nodes.catalog import NodeCatalog
from caseworker.platform.fair_threads import PacedThread
from caseworker.runs.accept.definitions import Definitions
from caseworker.runs.accept.postgres.definition_heads import DefinitionHeads
from caseworker.runs.accept.postgres.definitions import PostgresDefinitions
from caseworker.runs.http.limits import ApiLimits


def open_definitions(parts: Parts) -> Opened:
    """Build the service that registers definitions and prepares them for execution."""
    heads = DefinitionHeads(parts.url, parts.patience)
    store = PostgresDefinitions(parts.engines, heads, parts.limits.quota)
    limits = parts.service(ApiLimits).of_graphs
    catalog, thread = parts.service(NodeCatalog), parts.service(PacedThread)
    definitions = Definitions(store, catalog, limits, thread)
    return Opened(services=[definitions], begin=heads.begin, close=heads.stop)


DEFINITIONS: Final = Feature(
    name="definitions",
    routes=[*http.graphs.routes, *http.agents.routes],
    errors=http.ERRORS,
    problems=http.PROBLEMS,
    tables=["definitions"],
    open=open_definitions,
)
