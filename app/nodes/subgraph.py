"""A step that is a graph."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.engine.context import FlowContext
from app.engine.driver import GraphExecution
from app.engine.node import ExecutionResult
from app.engine.prepared import BoundNode
from app.kernel.problems import listed, quoted
from app.kernel.validation import Handles, Traits
from app.nodes.graph_spec import StepId
from app.nodes.nesting import GraphField, InnerGraph
from app.nodes.node_type import NONE, Fault, NodeType
from app.nodes.reading import HandleName, StepData

Outputs = Mapping[str, Any]


class OutputSpec(StepData):
    """Where an output comes from."""

    step: StepId
    """A step of the inner graph."""
    handle: HandleName
    """One of its output handles."""


class SubgraphData(StepData):
    """A graph and what it gives."""

    graph: GraphField
    """Its first steps get the inputs of this step, by handle."""
    outputs: dict[HandleName, OutputSpec] | None = None
    """What leaves this step, by handle; left out, whatever the one last step of the graph gives."""


@dataclass(frozen=True, slots=True)
class GraphWork:
    """A graph to execute, and which of its values are its outputs."""

    graph: InnerGraph
    outputs: Mapping[str, OutputSpec] | None

    def faults(self) -> Iterator[Fault]:
        """Yield what is wrong with the outputs."""
        ends, active = self.graph.ends, frozenset(self.graph.prepared.topology.active)
        if self.outputs is None:
            if len(ends) != 1:
                yield "outputs", f"Several steps end the graph ({listed(ends)}). Name its outputs."
            return
        for name, source in self.outputs.items():
            if source.step not in active:
                yield f"outputs.{name}.step", f"The graph executes no step {quoted(source.step)}."
                continue
            handles = self.graph.traits[source.step].handles.flow_outputs
            if handles is not None and source.handle not in handles:
                message = f"Step {quoted(source.step)} has no output {quoted(source.handle)}."
                yield f"outputs.{name}.handle", message

    @property
    def handles(self) -> frozenset[str] | None:
        """The handles on which something may leave; None: any."""
        if self.outputs is not None:
            return frozenset(self.outputs)
        return self.graph.traits[self.graph.ends[0]].handles.flow_outputs

    def given(self, produced: Mapping[str, Outputs]) -> dict[str, Any]:
        """Return the outputs from what the steps of the graph have produced.

        One that a dead path leads to is absent.
        """
        if self.outputs is None:
            return dict(produced.get(self.graph.ends[0], {}))
        return {
            handle: produced[source.step][source.handle]
            for handle, source in self.outputs.items()
            if source.handle in produced.get(source.step, {})
        }


class SubgraphNode:
    """Executes the graph of its step, within its limits: steps, calls and slots are the run's."""

    async def execute(
        self, data: GraphWork, inputs: Outputs, context: FlowContext
    ) -> ExecutionResult:
        """Execute the graph.

        Raises:
            Exception: what made one of its steps fail.
            Stop: a limit or a cancel request ended it. What was produced until then is kept.
        """
        execution = GraphExecution.inside(context, data.graph.prepared, inputs)
        context.keep(lambda: data.given(execution.outputs()))
        return ExecutionResult(data.given(await execution.result()))


def work_of(data: SubgraphData) -> GraphWork:
    """Return what the node of a subgraph works on."""
    return GraphWork(data.graph, data.outputs)


def subgraph_type() -> NodeType:
    """Return the type of steps that are graphs."""
    node = SubgraphNode()
    handles = Handles(link_inputs=NONE, link_outputs=NONE)

    def traits(data: SubgraphData) -> Traits:
        flow_outputs = work_of(data).handles
        return Traits(handles=replace(handles, flow_outputs=flow_outputs), holds=data.graph.holds)

    return NodeType(
        name="subgraph",
        description="Executes a graph on its inputs, within the limits of the run."
        " What leaves it is named in outputs.",
        node=node,
        data=SubgraphData,
        handles=handles,
        faults=lambda data: work_of(data).faults(),
        traits=traits,
        work=lambda data: BoundNode(node, work_of(data)),
    )
