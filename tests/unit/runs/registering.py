"""Registered graphs in tests, and the service that expands them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from caseworker.core.graph.validation import Problem
from caseworker.features.definitions.definitions import Definitions
from caseworker.features.definitions.postgres import PostgresDefinitions
from caseworker.features.definitions.registration import Definition, Registered
from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.fair_threads import PacedThread
from caseworker.runs.errors import GraphRefusedError
from caseworker.runs.http.limits import GraphLimits
from caseworker.runs.run import DefinitionRef
from tests.support.api import Api
from tests.support.graph_documents import TENANT
from tests.support.limits import graph_limits

LIMITS = graph_limits(max_bytes=20_000, max_steps=100, max_edges=100, max_depth=4)


class CountedDefinitions(PostgresDefinitions):
    """A store of definitions that counts the bytes it has loaded."""

    loaded_bytes = 0

    async def load(
        self, tenant: str, wanted: Iterable[DefinitionRef], *, max_bytes: int
    ) -> Mapping[DefinitionRef, Definition]:
        found = await super().load(tenant, wanted, max_bytes=max_bytes)
        distinct = {each.head.ref: each.head.size_bytes for each in found.values()}
        self.loaded_bytes += sum(distinct.values())
        return found


class RegisteredDefinitions:
    """The definitions service over the store."""

    def __init__(self, api: Api, limits: GraphLimits = LIMITS) -> None:
        self.api = api
        self.store = CountedDefinitions(api._engines, api.definitions._heads)
        self.graphs = Definitions(self.store, api.catalog, limits, PacedThread())

    async def register(self, name: str, graph: dict[str, Any]) -> Registered:
        return await self.graphs.register(TENANT, DefinitionRef(name), graph)

    async def inline(self, graph: dict[str, Any]) -> Any:
        return (await self.graphs.inline(TENANT, graph, DefinitionKind.GRAPH)).graph

    async def refused(self, graph: dict[str, Any]) -> Sequence[Problem]:
        with pytest.raises(GraphRefusedError) as refused:
            await self.inline(graph)
        return refused.value.problems
