"""What callers can ask of registered graphs, and how a graph becomes one that can be run.

A run is stored with its whole graph inline, so that it does what it was accepted with, whatever
becomes of the definitions that the graph was put together from.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from app.kernel.validation import Problem, Severity
from app.runs.errors import ContainedGraphGoneError, GraphNotFoundError, GraphRefusedError
from app.runs.expansion import Expansion, Missing, canonical, place_of
from app.runs.graphs import (
    GraphChecks,
    GraphDefinition,
    GraphLimits,
    GraphPage,
    GraphStore,
    NewGraph,
    Registered,
    RunnableGraph,
)
from app.runs.run import GraphRef

MANY_STEPS = 200
LARGE_BYTES = 8192
"""A graph of more steps or bytes is checked on a thread, so that others need not wait for it."""

_NO_NAME = "There is no graph of this name; GET /graphs lists those there are."
_NO_VERSION = "There is no such version of the graph; GET /graphs/{name}/versions lists them."


class GraphDefinitions:
    """Registers graphs, shows them, and makes them ready to be run."""

    def __init__(self, store: GraphStore, checks: GraphChecks, limits: GraphLimits) -> None:
        self._store = store
        self._checks = checks
        self._limits = limits

    async def inline(self, tenant: str, graph: Mapping[str, Any]) -> RunnableGraph:
        """Return a caller's own graph, complete and valid.

        Raises:
            GraphRefusedError: it cannot be executed.
        """
        runnable, problems = await self._examined(tenant, graph)
        _require_no_error(problems)
        return runnable

    async def named(self, tenant: str, ref: GraphRef) -> tuple[GraphRef, RunnableGraph]:
        """Return a registered graph, complete and valid, and which version it is.

        Raises:
            GraphRefusedError: there is none, or it cannot be executed.
        """
        found = await self._store.get(tenant, ref)
        if found is None:
            known = await self._store.known(tenant, [ref.name])
            raise GraphRefusedError([_not_there(Missing((), ref), known)])
        runnable, problems = await self._examined(tenant, found.graph, itself=found.head.ref)
        _require_no_error(problems)
        return found.head.ref, runnable

    async def problems(self, tenant: str, graph: Mapping[str, Any]) -> Sequence[Problem]:
        """Return everything that is wrong with a graph, errors and warnings."""
        try:
            return (await self._examined(tenant, graph))[1]
        except GraphRefusedError as refused:
            return refused.problems

    async def register(
        self, tenant: str, name: str, graph: Mapping[str, Any], description: str | None = None
    ) -> Registered:
        """Store a graph as the next version of a name; the same again is the same version.

        Raises:
            GraphRefusedError: it cannot be executed, or would contain itself.
        """
        while True:
            _, problems = await self._examined(tenant, graph, registering=name)
            _require_no_error(problems)
            try:
                registered = await self._store.add(self._new(tenant, name, graph, description))
            except ContainedGraphGoneError:
                continue  # the next look finds out which one, and says where
            return replace(registered, warnings=problems)

    async def get(self, tenant: str, ref: GraphRef) -> GraphDefinition:
        """Return a definition as its author wrote it.

        Raises:
            GraphNotFoundError: there is none.
        """
        found = await self._store.get(tenant, ref)
        if found is None:
            raise GraphNotFoundError(ref.name)
        return found

    async def versions(
        self, tenant: str, name: str, *, limit: int, cursor: str | None
    ) -> GraphPage:
        """Return the versions under a name, newest first.

        Raises:
            GraphNotFoundError: there is no such name.
        """
        page = await self._store.versions(tenant, name, limit=limit, cursor=cursor)
        if not page.graphs and cursor is None:
            raise GraphNotFoundError(name)
        return page

    async def _examined(
        self,
        tenant: str,
        graph: Mapping[str, Any],
        *,
        itself: GraphRef | None = None,
        registering: str | None = None,
    ) -> tuple[RunnableGraph, Sequence[Problem]]:
        """Return a graph with all that it contains, and everything that is wrong with it."""
        expansion = Expansion(tenant, self._store, self._checks, self._limits)
        if registering is not None:
            itself = GraphRef(registering)
            expansion.put(itself, graph)
        expanded = await expansion.expand(graph, itself=itself)
        check = self._checks.examine
        if expanded.size.steps > MANY_STEPS or expanded.size.size_bytes > LARGE_BYTES:
            prepared, found = await asyncio.to_thread(check, expanded.graph)
        else:
            prepared, found = check(expanded.graph)
        runnable = RunnableGraph(expanded.graph, prepared)
        if not expansion.missing:
            return runnable, found
        known = await self._store.known(tenant, {gap.ref.name for gap in expansion.missing})
        gaps = {place_of(gap.path) for gap in expansion.missing}
        others = [problem for problem in found if not _is_at(problem, gaps)]
        return runnable, [*(_not_there(gap, known) for gap in expansion.missing), *others]

    def _new(
        self, tenant: str, name: str, graph: Mapping[str, Any], description: str | None
    ) -> NewGraph:
        text = canonical(graph)
        references = self._checks.references(graph)
        return NewGraph(
            tenant=tenant,
            name=name,
            description=description,
            graph=graph,
            sha256=hashlib.sha256(text).hexdigest(),
            size_bytes=len(text),
            uses=tuple(dict.fromkeys(GraphRef(each.name, each.version) for each in references)),
        )


def _require_no_error(problems: Sequence[Problem]) -> None:
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    if errors:
        raise GraphRefusedError(errors)


def _not_there(gap: Missing, known: frozenset[str]) -> Problem:
    if gap.ref.name in known:
        return Problem(place_of((*gap.path, "version")), _NO_VERSION)
    return Problem(place_of((*gap.path, "name")), _NO_NAME)


def _is_at(problem: Problem, places: Set[str]) -> bool:
    """Tell whether a problem is about one of some places, or about something inside it."""
    parts = problem.place.split(".")
    return any(".".join(parts[:end]) in places for end in range(1, len(parts) + 1))
