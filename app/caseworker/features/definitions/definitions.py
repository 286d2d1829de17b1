"""Registers graphs and agents, and converts a definition to the graph that a run executes.

An agent is executed as a graph with one step.

A run stores its whole graph inline. It executes exactly the accepted graph, even if the definitions
that the graph was composed of change or are deleted.
"""

import asyncio
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson
from cachetools import LRUCache

from caseworker.core.graph.validation import Problem, Severity
from caseworker.features.definitions.expansion import (
    SMALL_BYTES,
    Expansion,
    GraphSize,
    Missing,
    canonical,
    place_of,
)
from caseworker.features.definitions.postgres import PostgresDefinitions
from caseworker.features.definitions.registration import (
    ContainedDefinitionGoneError,
    Definition,
    DefinitionNotFoundError,
    DefinitionVersion,
    NewDefinition,
    Registered,
    ResolvedDefinition,
    RunnableGraph,
)
from caseworker.nodes.catalog import NodeCatalog
from caseworker.nodes.nesting import DefinitionKind, DefinitionReference, is_reference
from caseworker.platform.fair_threads import PacedThread
from caseworker.platform.paging import Page
from caseworker.platform.suggestions import MAX_NAMES, suggestion
from caseworker.runs.errors import GraphRefusedError
from caseworker.runs.http.limits import GraphLimits
from caseworker.runs.kinds import KINDS
from caseworker.runs.run import DefinitionRef

COMPILED_BYTES = 512 * 1024
"""Maximum size of the cache of prepared graphs, in bytes of JSON. In memory, the graphs take about
ten times as much."""


class Definitions:
    """Registers graphs and agents, returns them, and prepares them for execution."""

    def __init__(
        self,
        store: PostgresDefinitions,
        catalog: NodeCatalog,
        limits: GraphLimits,
        thread: PacedThread,
    ) -> None:
        self.store = store
        self._thread = thread
        self._catalog = catalog
        self._limits = limits
        self._compiled = LRUCache[tuple[DefinitionKind, bytes | None], _Compiled](
            maxsize=COMPILED_BYTES, getsizeof=lambda each: each.size_bytes
        )

    async def inline(
        self, tenant: str, content: Mapping[str, Any], kind: DefinitionKind
    ) -> RunnableGraph:
        """Validate and prepare an inline graph or agent.

        Raises:
            GraphRefusedError: the definition is invalid.
        """
        runnable, problems = await self._examined(tenant, kind, content)
        _require_no_error(problems, kind)
        return runnable

    async def resolved(
        self,
        tenant: str,
        ref: DefinitionRef,
        changed: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
        *,
        remembers: bool = False,
    ) -> ResolvedDefinition:
        """Load, validate and prepare a registered graph or agent.

        ``changed`` returns its content with the changes of a request. With ``remembers``, a
        definition that this process has prepared before is not read again.

        Raises:
            GraphRefusedError: the definition does not exist or is invalid.
        """
        remembered = self.store.remembered(tenant, ref) if remembers else None
        if remembered is not None:
            text = _text_of(changed(_content_of(remembered)))
            if (compiled := self._compiled.get((ref.kind, text))) is not None:
                _require_no_error(compiled.problems, ref.kind)
                return ResolvedDefinition(remembered.head, compiled.runnable, is_remembered=True)
        remembered = await self.store.get(tenant, ref)
        if remembered is None:
            raise GraphRefusedError(await self._absent(tenant, [Missing((), ref)]), ref.kind)
        content = changed(_content_of(remembered))
        runnable, problems = await self._examined(
            tenant, ref.kind, content, itself=remembered.head.ref
        )
        _require_no_error(problems, ref.kind)
        return ResolvedDefinition(remembered.head, runnable)

    async def problems(
        self, tenant: str, content: Mapping[str, Any], kind: DefinitionKind
    ) -> Sequence[Problem]:
        """Return all problems of a graph or agent: errors and warnings."""
        try:
            return (await self._examined(tenant, kind, content))[1]
        except GraphRefusedError as refused:
            return refused.problems

    async def register(
        self,
        tenant: str,
        ref: DefinitionRef,
        content: Mapping[str, Any],
        description: str | None = None,
    ) -> Registered:
        """Store a definition as the next version under its name; identical content adds no version.

        Raises:
            GraphRefusedError: the definition is invalid, or would contain itself.
        """
        while True:
            _, problems = await self._examined(tenant, ref.kind, content, registering=ref)
            _require_no_error(problems, ref.kind)
            try:
                text = _text_of(content) or b""
                make = partial(self._new, tenant, ref, content, description)
                new = await self._thread.call(make, len(text), most_on_loop=SMALL_BYTES)
                registered = await self.store.add(new)
            except ContainedDefinitionGoneError:
                continue  # the next iteration finds out which one is missing, and where
            return replace(registered, warnings=problems)

    async def get(self, tenant: str, ref: DefinitionRef) -> Definition:
        """Return a definition as its author wrote it.

        Raises:
            DefinitionNotFoundError: the definition does not exist.
        """
        definition = await self.store.get(tenant, ref)
        if definition is None:
            raise DefinitionNotFoundError(ref)
        return definition

    async def versions(
        self, tenant: str, ref: DefinitionRef, *, limit: int, cursor: str | None
    ) -> Page[DefinitionVersion]:
        """Return a page of the versions under the name of ``ref``, newest first.

        Raises:
            DefinitionNotFoundError: no definition has this name.
        """
        page = await self.store.versions(tenant, ref, limit=limit, cursor=cursor)
        if not page.items and cursor is None:
            raise DefinitionNotFoundError(ref)
        return page

    async def _examined(
        self,
        tenant: str,
        kind: DefinitionKind,
        content: Mapping[str, Any],
        *,
        itself: DefinitionRef | None = None,
        registering: DefinitionRef | None = None,
    ) -> tuple[RunnableGraph, Sequence[Problem]]:
        """Expand and validate a graph; return it with all problems found.

        The result for content that references no definition is always the same, so it is cached.
        """
        text = _text_of(content)
        if registering is None and (compiled := self._compiled.get((kind, text))) is not None:
            return compiled.runnable, compiled.problems
        size_bytes = len(text or b"")
        expansion = Expansion(tenant, self.store, self._catalog, self._limits, self._thread)
        if registering is not None:
            itself = registering
            expansion.put(itself, content)
        try:
            expanded = await expansion.expand(
                KINDS[kind].graph_of(content), size_bytes, itself=itself
            )
        except GraphRefusedError as refused:
            raise GraphRefusedError(KINDS[kind].at_home(refused.problems), kind) from None
        examine = partial(self._catalog.examine, expanded.graph, None)
        prepared, raw_problems = await expansion.compute(examine, expanded.size.size_bytes)
        runnable = RunnableGraph(expanded.graph, prepared)
        if expansion.missing:
            absent = await self._absent(tenant, expansion.missing)
            gaps = {place_of(gap.path) for gap in expansion.missing}
            raw_problems = (*absent, *_elsewhere(raw_problems, gaps))
        problems = KINDS[kind].at_home(raw_problems)
        is_small = text is not None and size_bytes <= SMALL_BYTES
        if is_small and registering is None and not expansion.named_others:
            self._compiled[kind, text] = _Compiled(runnable, problems, size_bytes)
        return runnable, problems

    async def _absent(self, tenant: str, gaps: Collection[Missing]) -> Sequence[Problem]:
        """Return a problem for each missing definition, with a name that resembles it."""
        existing = await self.store.existing(
            tenant, {replace(gap.ref, version=None) for gap in gaps}
        )
        names = {
            kind: await self.store.find(tenant, kind, limit=MAX_NAMES, cursor=None)
            for kind in {gap.ref.kind for gap in gaps}
        }
        names_by_kind = {kind: [head.name for head in page.items] for kind, page in names.items()}
        return [_not_there(gap, existing, names_by_kind[gap.ref.kind]) for gap in gaps]

    async def require_models(
        self, kind: DefinitionKind, graph: Mapping[str, Any], allowed: Collection[str]
    ) -> None:
        """Check that the graph of a run only uses models in ``allowed``.

        Raises:
            GraphRefusedError: the graph uses other models; each problem has a location.
        """
        _, problems = await asyncio.to_thread(self._catalog.examine, graph, allowed)
        _require_no_error(KINDS[kind].at_home(problems), kind)

    async def register_agent(self, tenant: str, agent: Mapping[str, Any]) -> Registered:
        """Store an agent as the next version under the name that it contains.

        Raises:
            GraphRefusedError: the agent is invalid, or would contain itself.
        """
        kind = DefinitionKind.AGENT
        if is_reference(agent):
            missing = Problem("prompt", "This field is required.")
            raise GraphRefusedError([missing], kind)
        name, description = agent.get("name"), agent.get("description")
        ref = DefinitionRef(name if isinstance(name, str) else "", kind=kind)
        content = {key: value for key, value in agent.items() if key != "version"}
        described = description if isinstance(description, str) else None
        return await self.register(tenant, ref, content, described)

    def _new(
        self,
        tenant: str,
        ref: DefinitionRef,
        content: Mapping[str, Any],
        description: str | None,
    ) -> NewDefinition:
        text = canonical(content)
        references = self._catalog.references(KINDS[ref.kind].graph_of(content))
        return NewDefinition(
            tenant=tenant,
            kind=ref.kind,
            name=ref.name,
            description=description,
            content=content,
            sha256=hashlib.sha256(text).hexdigest(),
            size_bytes=len(text),
            uses=tuple(
                dict.fromkeys(
                    DefinitionRef(each.name, each.version, each.kind) for each in references
                )
            ),
        )


def problems_alone(
    catalog: NodeCatalog, limits: GraphLimits, graph: Mapping[str, Any]
) -> Sequence[Problem]:
    """Return all problems of a graph that can be found without the registry.

    Each reference to a registered definition yields a warning, because it cannot be resolved.
    """
    if beyond := GraphSize.of(graph).beyond(limits):
        return beyond
    _, problems = catalog.examine(graph)
    references = catalog.references(graph)
    places = {place_of(each.place) for each in references}
    return [*map(_unseen, references), *_elsewhere(problems, places)]


def _unseen(reference: DefinitionReference) -> Problem:
    message = f"A registered {reference.kind.value} can be resolved only by a running service."
    return Problem(place_of((*reference.place, "name")), message, Severity.WARNING)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A cached graph or agent that references no definition, with its problems."""

    runnable: RunnableGraph
    problems: Sequence[Problem]
    size_bytes: int


def _text_of(content: Mapping[str, Any]) -> bytes | None:
    """Serialize a definition without sorting keys; return None if it is not plain JSON."""
    try:
        return orjson.dumps(content)
    except orjson.JSONEncodeError:
        return None


def _require_no_error(problems: Sequence[Problem], kind: DefinitionKind) -> None:
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    if errors:
        raise GraphRefusedError(errors, kind)


def _not_there(gap: Missing, existing: Set[DefinitionRef], names: Sequence[str]) -> Problem:
    kind = gap.ref.kind.value
    if replace(gap.ref, version=None) in existing:
        message = (
            f"The {kind} has no such version. GET /{kind}s/{{name}}/versions lists all versions."
        )
        return Problem(place_of((*gap.path, "version")), message)
    message = f"No {kind} has this name. GET /{kind}s lists all of them."
    hint = message + suggestion(gap.ref.name, names)
    return Problem(place_of((*gap.path, "name")), hint)


def _elsewhere(problems: Iterable[Problem], places: Set[str]) -> Iterator[Problem]:
    """Yield the problems that are neither at nor inside one of these places."""
    for problem in problems:
        parts = problem.place.split(".")
        if not any(".".join(parts[:end]) in places for end in range(1, len(parts) + 1)):
            yield problem


def _content_of(definition: Definition) -> Mapping[str, Any]:
    """Return the content of a definition; for an agent, with its name and version added."""
    head = definition.head
    if KINDS[head.kind].step is None:
        return definition.content
    return {**definition.content, "name": head.name, "version": head.version}
