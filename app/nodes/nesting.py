"""Graphs and steps that stand in the data of other steps.

They are read with the data they stand in, by whoever reads that data; it comes along as the context
of the validation.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Protocol, TypeVar, cast

from pydantic import GetPydanticSchema, ValidationInfo, WithJsonSchema
from pydantic_core import core_schema

from app.engine.prepared import BoundNode, PreparedGraph
from app.kernel.validation import Traits
from app.nodes.reading import told

MAX_NESTING = 8
"""How many graphs may stand in one another, the outermost included; the step of a map is one."""

Inner = TypeVar("Inner")


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


class InnerReader(Protocol):
    """Reads what stands inside the data of a step, and tells what is wrong with it."""

    def graph(self, value: Any, field: str) -> InnerGraph | None:
        """Read the graph at a field of the data; None if it has errors, which are told."""
        ...

    def step(self, value: Any, field: str) -> InnerStep | None:
        """Read the ``{type, data}`` at a field of the data; None if it has errors."""
        ...


def _read_by(
    reading: Callable[[InnerReader], Callable[[Any, str], Inner | None]],
) -> GetPydanticSchema:
    def read(value: Any, info: ValidationInfo) -> Inner:
        found = reading(cast(InnerReader, info.context))(value, info.field_name or "")
        if found is None:
            raise told()
        return found

    return GetPydanticSchema(lambda *_: core_schema.with_info_plain_validator_function(read))


GraphField = Annotated[
    InnerGraph,
    _read_by(lambda reader: reader.graph),
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
    _read_by(lambda reader: reader.step),
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
