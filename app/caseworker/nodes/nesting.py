"""Graphs and steps that stand in the data of other steps.

They are read with the data they stand in, by the reader of that data, which comes along as the
context of the validation.
"""

from collections.abc import Hashable, Iterator, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, TypeGuard

from pydantic import GetPydanticSchema, ValidationInfo, WithJsonSchema
from pydantic_core import core_schema

from caseworker.engine.prepared import BoundNode, PreparedGraph
from caseworker.kernel.validation import Traits
from caseworker.nodes.reading import reported

MAX_NESTING = 8
"""How many graphs may stand in one another, the outermost included; the step of a map is one."""


@dataclass(frozen=True)
class InnerGraph:
    """A graph that was read and checked."""

    prepared: PreparedGraph
    traits: Mapping[str, Traits]
    """Of its steps, by id."""

    @cached_property
    def holds(self) -> frozenset[Hashable]:
        """The persistent nodes that its execution uses."""
        topology = self.prepared.topology
        used = (self.traits[step_id].holds for step_id in (*topology.active, *topology.linked))
        return frozenset().union(*used)

    @cached_property
    def ends(self) -> tuple[str, ...]:
        """The steps from which no value travels on."""
        topology = self.prepared.topology
        return tuple(step_id for step_id in topology.active if step_id not in topology.outgoing)


@dataclass(frozen=True, slots=True)
class InnerStep:
    """A step without a place of its own, read and checked."""

    type: str
    work: BoundNode
    traits: Traits


def _read_by(method: str) -> GetPydanticSchema:
    """Return what reads a field by a method of the validation's context: see the module."""

    def read(value: Any, info: ValidationInfo) -> Any:
        found = getattr(info.context, method)(value, info.field_name)
        if found is None:
            raise reported()
        return found

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
"""A graph inside a step."""

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
"""A step inside a step."""


Place = tuple[str | int, ...]
"""Keys and indexes, from the outermost graph on."""


class DefinitionKind(StrEnum):
    """What can be registered under a name."""

    GRAPH = "graph"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class DefinitionReference:
    """A definition that must be put in the place of its name before a graph can be used."""

    place: Place
    """Where the object with the name stands."""
    kind: DefinitionKind
    name: str
    version: int | None = None
    """None: the newest."""


def is_reference(given: Any) -> TypeGuard[Mapping[str, Any]]:
    """Return whether this names a registered definition: a name, at most a version, and no more."""
    return isinstance(given, Mapping) and "name" in given and given.keys() <= {"name", "version"}


def references_in(
    graph: Any, nesting: Set[str], place: Place = (), depth: int = 0
) -> Iterator[DefinitionReference]:
    """Yield what is only named inside ``graph``; what cannot be read is passed over.

    ``nesting`` are the types whose steps have graphs or agents in their data.
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
    work: Any, nesting: Set[str], place: Place, depth: int
) -> Iterator[DefinitionReference]:
    """Look into something that has data: a step, a fallback, the step of a map."""
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
        yield from references_in(inner, nesting, at, depth + 1)


def agents_in(agent: Any, place: Place = (), depth: int = 0) -> Iterator[DefinitionReference]:
    """Yield the agents that are only named in the JSON of an agent, or by it itself.

    What cannot be read is passed over.
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
    found: Mapping[str, Any], place: Place, kind: DefinitionKind
) -> Iterator[DefinitionReference]:
    name, version = found["name"], found.get("version")
    whole = isinstance(version, int) and not isinstance(version, bool)
    if isinstance(name, str) and (version is None or whole):
        yield DefinitionReference(place, kind, name, version)
