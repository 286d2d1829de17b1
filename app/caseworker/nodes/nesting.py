"""Graphs and steps nested in the data of other steps.

They are parsed together with the enclosing data by the graph reader, which validators receive as
pydantic's validation context.
"""

from collections.abc import Hashable, Iterator, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, TypeGuard

from pydantic import GetPydanticSchema, ValidationInfo, WithJsonSchema
from pydantic_core import core_schema

from caseworker.core.graph.validation import Traits
from caseworker.engine.prepared import BoundNode, PreparedGraph
from caseworker.nodes.strict_parsing import reported

MAX_NESTING = 8
"""Maximum nesting depth of graphs, including the outermost one. The step of a map counts as a
graph."""


@dataclass(frozen=True)
class InnerGraph:
    """A parsed and validated graph."""

    prepared: PreparedGraph
    traits: Mapping[str, Traits]
    """Handles and other properties of the graph's steps, keyed by step ID."""

    @cached_property
    def holds(self) -> frozenset[Hashable]:
        """The persistent nodes that an execution of the graph uses.

        A persistent node has its own state, so only one step at a time may use it.
        """
        topology = self.prepared.topology
        used = (self.traits[step_id].holds for step_id in (*topology.active, *topology.linked))
        return frozenset().union(*used)

    @cached_property
    def ends(self) -> tuple[str, ...]:
        """IDs of the steps without outgoing edges."""
        topology = self.prepared.topology
        return tuple(step_id for step_id in topology.active if step_id not in topology.outgoing)


@dataclass(frozen=True, slots=True)
class InnerStep:
    """A parsed and validated step without an ID."""

    type: str
    work: BoundNode
    traits: Traits


def _read_by(method: str) -> GetPydanticSchema:
    """Return a field annotation that parses with a method of the validation context."""

    def read(value: Any, info: ValidationInfo) -> Any:
        part = getattr(info.context, method)(value, info.field_name)
        if part is None:
            raise reported()
        return part

    return GetPydanticSchema(lambda *_: core_schema.with_info_plain_validator_function(read))


GraphField = Annotated[
    InnerGraph,
    _read_by("graph"),
    WithJsonSchema(
        {
            "type": "object",
            "description": "A graph, or {name, version} of a registered one.",
            "required": ["steps", "edges"],
        }
    ),
]
"""Field type for a graph nested in a step's data."""

StepField = Annotated[
    InnerStep,
    _read_by("step"),
    WithJsonSchema(
        {
            "type": "object",
            "properties": {"type": {"type": "string"}, "data": {"type": "object"}},
            "required": ["type", "data"],
            "additionalProperties": False,
        }
    ),
]
"""Field type for a step nested in another step's data."""


Path = tuple[str | int, ...]
"""Position in a graph: object keys and list indexes, starting at the outermost graph."""


class DefinitionKind(StrEnum):
    """The kind of a registered definition."""

    GRAPH = "graph"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class DefinitionReference:
    """A reference to a registered definition, to be resolved before the graph is used."""

    place: Path
    """Position of the reference in the graph."""
    kind: DefinitionKind
    name: str
    version: int | None = None
    """Version number to use; None means the newest version."""


def is_reference(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a value is an object with only a name and, optionally, a version."""
    return isinstance(value, Mapping) and "name" in value and value.keys() <= {"name", "version"}


def definition_references_in(
    graph: Any, nesting: Set[str], place: Path = (), depth: int = 0
) -> Iterator[DefinitionReference]:
    """Yield the references to registered definitions in ``graph``; skip unreadable parts.

    ``nesting`` contains the names of the step types whose data may contain graphs or agents.
    """
    steps = graph.get("steps") if isinstance(graph, Mapping) else None
    if not isinstance(steps, list) or depth >= MAX_NESTING:
        return
    for index, step in enumerate(steps):
        at = (*place, "steps", index)
        yield from _in_work(step, nesting, at, depth)
        policy = step.get("policy") if isinstance(step, Mapping) else None
        if isinstance(policy, Mapping):
            yield from _in_work(policy.get("fallback"), nesting, (*at, "policy", "fallback"), depth)


def _in_work(
    work: Any, nesting: Set[str], place: Path, depth: int
) -> Iterator[DefinitionReference]:
    """Search an object with ``type`` and ``data``: a step, a fallback, or the step of a map."""
    if not isinstance(work, Mapping) or depth >= MAX_NESTING:
        return
    data, kind = work.get("data"), work.get("type")
    if not isinstance(data, Mapping) or not isinstance(kind, str) or kind not in nesting:
        return
    yield from _in_work(data.get("step"), nesting, (*place, "data", "step"), depth + 1)
    yield from agents_in(data.get("agent"), (*place, "data", "agent"))
    inner, at = data.get("graph"), (*place, "data", "graph")
    if is_reference(inner):
        yield from _reference(inner, at, DefinitionKind.GRAPH)
    else:
        yield from definition_references_in(inner, nesting, at, depth + 1)


def agents_in(agent: Any, place: Path = (), depth: int = 0) -> Iterator[DefinitionReference]:
    """Yield the agent references in an agent's JSON, which may itself be a reference.

    Unreadable parts are skipped.
    """
    if not isinstance(agent, Mapping) or depth > MAX_NESTING:
        return
    if is_reference(agent):
        yield from _reference(agent, place, DefinitionKind.AGENT)
        return
    tools = agent.get("tools")
    for index, use in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(use, Mapping):
            yield from agents_in(use.get("agent"), (*place, "tools", index, "agent"), depth + 1)


def _reference(
    fields: Mapping[str, Any], place: Path, kind: DefinitionKind
) -> Iterator[DefinitionReference]:
    name, version = fields["name"], fields.get("version")
    is_number = isinstance(version, int) and not isinstance(version, bool)
    if isinstance(name, str) and (version is None or is_number):
        yield DefinitionReference(place, kind, name, version)
