"""A step that does the same for every item of a list."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, model_validator

from app.engine.context import FlowContext, Outputs
from app.engine.driver import GraphExecution
from app.engine.node import Execution, ExecutionResult
from app.engine.prepared import BoundNode, PreparedGraph, PreparedStep
from app.kernel.graph import DEFAULT_HANDLE, Graph, Step
from app.kernel.problems import listed
from app.kernel.validation import Handles, Traits
from app.nodes.graph_spec import MAX_PARALLEL
from app.nodes.nesting import GraphField, StepField
from app.nodes.node_type import NONE, Fault, NodeType
from app.nodes.paths import Path
from app.nodes.reading import HandleName, PathField, StepData, refusal, usual_path
from app.nodes.subgraph import GraphWork, OutputSpec, SubgraphNode

INDEX = "index"
"""The input handle on which the number of an item comes, from 0."""

DEFAULT_MAX_ITEMS = 1000
HIGHEST_MAX_ITEMS = 10_000


class UnfitListError(ValueError):
    """What should be a list of items is none, or is too long."""


class MapData(StepData):
    """What is done, and for which items: either a graph or a step."""

    over: PathField = usual_path()
    """Where the list of items is."""
    graph: GraphField | None = None
    """Executed for each item, which it gets as default beside its number as index. The result of
    an item are the outputs of the graph, by handle."""
    outputs: dict[HandleName, OutputSpec] | None = None
    """The outputs of the graph; left out, whatever its one last step gives."""
    step: StepField | None = None
    """Executed for each item in the same way; its output default is the result of the item."""
    max_parallel: Annotated[int, Field(ge=1, le=MAX_PARALLEL)] = 1
    """How many items may be worked on at once."""
    max_items: Annotated[int, Field(ge=0, le=HIGHEST_MAX_ITEMS)] = DEFAULT_MAX_ITEMS
    """A longer list is a failure of the step."""

    @model_validator(mode="after")
    def _has_one_form(self) -> "MapData":
        if (self.graph is None) == (self.step is None):
            raise refusal("A map has either a graph or a step.")
        if self.graph is None and self.outputs is not None:
            raise refusal("Only a map with a graph has outputs.")
        return self


@dataclass(frozen=True, slots=True)
class MapWork:
    """What is done, and for which items."""

    over: Path
    kind: str
    """The type of what works on an item."""
    each: BoundNode
    """Works on an item."""
    bare: bool
    """Whether an item's result is the output ``default`` alone, or all outputs by handle."""
    max_parallel: int
    max_items: int

    def items_in(self, inputs: Outputs) -> list[Any]:
        """Return the items.

        Raises:
            MissingValueError: there is no list.
            UnfitListError: it is none, or too long.
        """
        items = self.over.value_in(inputs)
        if not isinstance(items, list):
            raise UnfitListError(f"The value at {self.over.text} is no list.")
        if len(items) > self.max_items:
            raise UnfitListError(
                f"The list at {self.over.text} has {len(items)} items; at most"
                f" {self.max_items} are allowed (max_items)."
            )
        return items

    def graph_for(self, items: list[Any], inputs: Outputs, graph_id: str) -> PreparedGraph:
        """Return a graph of one step for each item, named by its number."""
        steps = tuple(Step(id=str(index), type=self.kind) for index in range(len(items)))
        graph = Graph(id=graph_id, steps=steps, max_parallel=self.max_parallel)
        prepared = {}
        for step, index, item in zip(steps, range(len(items)), items, strict=True):
            inside = {**inputs, DEFAULT_HANDLE: item, INDEX: index}
            work = BoundNode(_ITEM, _Item(self.each, inside), self.each.lock)
            prepared[step.id] = PreparedStep(step=step, work=work)
        return PreparedGraph(graph, prepared)

    def results(self, produced: Mapping[str, Outputs], count: int) -> list[Any]:
        """Return the results in the order of the items; null where there is none."""
        found = (produced.get(str(index)) for index in range(count))
        if self.bare:
            return [None if one is None else one.get(DEFAULT_HANDLE) for one in found]
        return [None if one is None else dict(one) for one in found]


@dataclass(frozen=True, slots=True)
class _Item:
    work: BoundNode
    inputs: Outputs


class _ItemNode:
    """Works on one item of a list."""

    def execute(self, data: _Item, inputs: Outputs, context: FlowContext) -> Execution:
        return data.work.node.execute(data.work.data, data.inputs, context)


_ITEM = _ItemNode()


class MapNode:
    """Executes one graph with a step for each item: slots, siblings and limits are the engine's."""

    async def execute(
        self, data: MapWork, inputs: Outputs, context: FlowContext
    ) -> ExecutionResult:
        """Work on all items; their results, in the order of the items, are the output ``default``.

        Raises:
            MissingValueError: there is no list of items.
            UnfitListError: it is no list, or too long.
            Exception: what made the work on one of them fail; the others are cancelled.
            Stop: a limit or a cancel request ended it. What was produced until then is kept.
        """
        items = data.items_in(inputs)
        if not items:
            return ExecutionResult({DEFAULT_HANDLE: []})
        graph = data.graph_for(items, inputs, context.node_id)
        execution = GraphExecution.inside(context, graph, {})
        context.keep(lambda: {DEFAULT_HANDLE: data.results(execution.outputs(), len(items))})
        produced = await execution.result()
        return ExecutionResult({DEFAULT_HANDLE: data.results(produced, len(items))})


def _work_of(data: MapData) -> MapWork:
    if data.graph is not None:
        kind, bare = "subgraph", False
        each = BoundNode(SubgraphNode(), GraphWork(data.graph, data.outputs))
    elif data.step is not None:
        kind, bare, each = data.step.type, True, data.step.work
    else:
        raise ValueError("A map has either a graph or a step.")
    return MapWork(data.over, kind, each, bare, data.max_parallel, data.max_items)


def _holds(data: MapData) -> frozenset[Any]:
    if data.graph is not None:
        return data.graph.holds
    return frozenset() if data.step is None else data.step.traits.holds


def _faults(data: MapData) -> Iterator[Fault]:
    if data.graph is not None:
        yield from GraphWork(data.graph, data.outputs).faults()
    holds = _holds(data)
    if holds and data.max_parallel > 1:
        message = (
            f"The items use persistent nodes ({listed(map(str, holds))}) one at a time: use 1."
        )
        yield "max_parallel", message


def map_type() -> NodeType:
    """Return the type of steps that do the same for every item of a list."""
    node = MapNode()
    handles = Handles(flow_outputs=frozenset({DEFAULT_HANDLE}), link_inputs=NONE, link_outputs=NONE)
    return NodeType(
        name="map",
        description="Executes a graph or a step for each item of a list, in parallel if"
        " max_parallel allows it. The results leave on default, in the order of the items.",
        node=node,
        data=MapData,
        handles=handles,
        faults=_faults,
        traits=lambda data: Traits(handles=handles, holds=_holds(data)),
        work=lambda data: BoundNode(node, _work_of(data)),
    )
