"""Replaces references to registered graphs and agents inside a graph with their content.

A few small graphs that reference one another can expand to an arbitrarily large one, so sizes are
computed before anything is built. Definitions are loaded level by level, up to the byte limit. Each
definition is expanded once, however often it is referenced, but its size counts for each reference.
Repeated parts are shared objects, so even a graph that exceeds the limits is never built in full.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

from caseworker.core.graph.validation import Problem
from caseworker.features.definitions.postgres import PostgresDefinitions
from caseworker.features.definitions.registration import DefinitionsTooLargeError
from caseworker.nodes.catalog import NodeCatalog
from caseworker.nodes.nesting import DefinitionReference, agents_in
from caseworker.platform.fair_threads import PacedThread
from caseworker.runs.errors import GraphRefusedError
from caseworker.runs.http.limits import GraphLimits
from caseworker.runs.run import DefinitionRef

Path = tuple[str | int, ...]
Graph = Mapping[str, Any]
T = TypeVar("T")

SMALL_BYTES = 8192
"""Size in bytes up to which a graph is processed on the event loop."""

NESTED = "graph"
"""Key of a nested graph in the data of a step."""

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def canonical(graph: Mapping[str, Any]) -> bytes:
    """Serialize a graph as canonical JSON: equal graphs result in equal bytes."""
    return _CANONICAL.encode(graph).encode()


@dataclass(frozen=True, slots=True)
class GraphSize:
    """The size of a graph: bytes as JSON, steps, edges and nesting depth."""

    size_bytes: int
    steps: int
    edges: int
    depth: int

    @classmethod
    def of(cls, graph: Mapping[str, Any]) -> Self:
        """Return the size of a graph; a referenced definition counts only as a reference."""
        steps = edges = depth = 0
        level: list[Mapping[str, Any]] = [graph]
        while level:
            depth += 1
            steps += sum(_length(one.get("steps")) for one in level)
            edges += sum(_length(one.get("edges")) for one in level)
            level = [inner for one in level for inner in _graphs_in(one)]
        return cls(len(canonical(graph)), steps, edges, depth)

    def with_inside(self, inner: Self, *, level: int) -> Self:
        """Return the size after inserting a graph of size ``inner`` at nesting depth ``level``."""
        return type(self)(
            self.size_bytes + inner.size_bytes,
            self.steps + inner.steps,
            self.edges + inner.edges,
            max(self.depth, level + inner.depth),
        )

    def beyond(self, limits: GraphLimits) -> tuple[Problem, ...]:
        """Return one problem for each limit that the size exceeds."""
        compared = (
            (self.size_bytes, limits.max_bytes, "have at most {} bytes as JSON", "max_graph_bytes"),
            (self.steps, limits.max_steps, "have at most {} steps", "max_graph_steps"),
            (self.edges, limits.max_edges, "have at most {} edges", "max_graph_edges"),
            (self.depth, limits.max_depth, "nest at most {} deep", "max_graph_depth"),
        )
        return tuple(
            Problem("", f"A graph can {what.format(limit)}, including nested graphs ({name}).")
            for size, limit, what, name in compared
            if size > limit
        )


@dataclass(frozen=True, slots=True)
class Expanded:
    """A graph or agent with all references resolved, except those to missing definitions."""

    graph: Graph
    size: GraphSize


@dataclass(frozen=True, slots=True)
class Missing:
    """A reference to a definition that does not exist, and its location in the graph."""

    path: Path
    ref: DefinitionRef


class Expansion:
    """Expands one graph: loads the definitions that it references, within the limits."""

    def __init__(
        self,
        tenant: str,
        store: PostgresDefinitions,
        catalog: NodeCatalog,
        limits: GraphLimits,
        thread: PacedThread,
    ) -> None:
        self._tenant = tenant
        self._store = store
        self._catalog = catalog
        self._limits = limits
        self._thread = thread
        self._loaded: dict[DefinitionRef, tuple[DefinitionRef, Graph] | None] = {}
        """Maps each reference to the exact version and its content; None if it does not exist."""
        self._expanded: dict[DefinitionRef, Expanded] = {}
        self.missing: list[Missing] = []
        """References to definitions that do not exist; the result still contains them."""

    @property
    def named_others(self) -> bool:
        """Whether the expanded content contained references to definitions."""
        return bool(self._loaded)

    def put(self, ref: DefinitionRef, graph: Graph) -> None:
        """Use ``graph`` for references to ``ref``, whose definition is not stored yet."""
        self._loaded[ref] = ref, graph

    async def compute(self, computation: Callable[[], T], size_bytes: int) -> T:
        """Return the result of a computation on graphs; large ones are processed in a thread."""
        return await self._thread.call(computation, size_bytes, most_on_loop=SMALL_BYTES)

    async def expand(
        self, graph: Graph, size_bytes: int, *, itself: DefinitionRef | None = None
    ) -> Expanded:
        """Return the graph with all references resolved.

        ``size_bytes`` is the approximate size of its JSON. ``itself`` is the reference to
        ``graph``, if it has one; it is used to detect a cycle.

        Raises:
            GraphRefusedError: the expanded graph is too large, or a definition contains itself.
        """
        limits = self._limits
        own_size = self._bounded(await self.compute(lambda: GraphSize.of(graph), size_bytes))
        try:
            loaded_bytes = await self._load_for(graph, own_size.size_bytes)
        except DefinitionsTooLargeError:
            beyond = GraphSize(limits.max_bytes + 1, 0, 0, 0)
            raise GraphRefusedError(beyond.beyond(limits)) from None
        chain = () if itself is None else (itself,)
        fill = partial(self._filled, graph, own_size, chain, ())
        return await self.compute(fill, own_size.size_bytes + loaded_bytes)

    async def _load_for(self, graph: Graph, own_bytes: int) -> int:
        """Load all definitions that a graph contains, level by level; return their bytes.

        Raises:
            DefinitionsTooLargeError: together with the graph they exceed the limit.
        """
        level, level_bytes, bytes_left = [graph], own_bytes, self._limits.max_bytes - own_bytes
        for _ in range(self._limits.max_depth):
            references = await self.compute(partial(self._named_in, level), level_bytes)
            unknown = references - self._loaded.keys()
            if not unknown:
                break
            loaded = await self._store.load(self._tenant, unknown, max_bytes=bytes_left)
            self._loaded |= dict.fromkeys(unknown)
            self._loaded |= {
                ref: (definition.head.ref, definition.content) for ref, definition in loaded.items()
            }
            distinct = {definition.head.ref: definition for definition in loaded.values()}
            level_bytes = sum(definition.head.size_bytes for definition in distinct.values())
            bytes_left -= level_bytes
            level = [definition.content for definition in distinct.values()]
        return self._limits.max_bytes - own_bytes - bytes_left

    def _named_in(self, contents: Iterable[Graph]) -> set[DefinitionRef]:
        return {_reference_of(each) for one in contents for each in self._references(one)}

    def _filled(
        self, graph: Graph, size: GraphSize, chain: tuple[DefinitionRef, ...], place: Path
    ) -> Expanded:
        """Resolve the references of a graph at ``place``; ``chain`` holds its ancestors."""
        contents: dict[Path, Graph] = {}
        for reference in self._references(graph):
            inner = self._inside(reference, chain, (*place, *reference.place))
            if inner is not None:
                level = max(1, reference.place.count(NESTED))
                size = self._bounded(size.with_inside(inner.size, level=level))
                contents[reference.place] = inner.graph
        return Expanded(_with(graph, contents) if contents else graph, size)

    def _inside(
        self, reference: DefinitionReference, chain: tuple[DefinitionRef, ...], place: Path
    ) -> Expanded | None:
        if len(chain) >= self._limits.max_depth:
            raise GraphRefusedError(GraphSize(0, 0, 0, len(chain) + 1).beyond(self._limits))
        definition = self._loaded.get(_reference_of(reference))
        if definition is None:
            self.missing.append(Missing(place, _reference_of(reference)))
            return None
        ref, graph = definition
        if ref in chain:
            raise GraphRefusedError([_circle([*chain[chain.index(ref) :], ref], place)])
        if ref not in self._expanded:
            own_size = self._bounded(GraphSize.of(graph))
            filled = self._filled(graph, own_size, (*chain, ref), place)
            content = {**filled.graph, "name": ref.name, "version": ref.version}
            self._expanded[ref] = Expanded(content, filled.size)
        return self._expanded[ref]

    def _references(self, content: Graph) -> Sequence[DefinitionReference]:
        """Return the references in a graph or an agent."""
        return (
            tuple(agents_in(content)) if "prompt" in content else self._catalog.references(content)
        )

    def _bounded(self, size: GraphSize) -> GraphSize:
        beyond = size.beyond(self._limits)
        if beyond:
            raise GraphRefusedError(beyond)
        return size


def place_of(path: Iterable[str | int]) -> str:
    """Format a path in a graph for problem reports, such as ``steps.2.type``."""
    return ".".join(str(part) for part in path)


def _reference_of(reference: DefinitionReference) -> DefinitionRef:
    return DefinitionRef(reference.name, reference.version, reference.kind)


def _circle(refs: Iterable[DefinitionRef], place: Path) -> Problem:
    names = (ref.name if ref.version is None else f"{ref.name}@{ref.version}" for ref in refs)
    return Problem(place_of(place), f"Circular reference: {' -> '.join(names)}.")


def _with(value: Any, contents: Mapping[Path, Graph]) -> Any:
    """Return a copy with values replaced at some paths; unchanged parts are shared."""
    if () in contents:
        return contents[()]
    inner_by_key: dict[str | int, dict[Path, Graph]] = defaultdict(dict)
    for (first, *rest), inner in contents.items():
        inner_by_key[first][tuple(rest)] = inner
    copied = list(value) if isinstance(value, list) else dict(value)
    for key, inner_contents in inner_by_key.items():
        copied[key] = _with(copied[key], inner_contents)  # type: ignore[index] # of its own kind
    return copied


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _graphs_in(graph: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the graphs nested directly in a graph."""
    unseen: list[Any] = [graph]
    while unseen:
        value = unseen.pop()
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            if key == NESTED and isinstance(inner, dict) and isinstance(inner.get("steps"), list):
                yield inner
            elif isinstance(inner, dict | list):
                unseen.append(inner)
