"""A step that is a graph."""

from collections.abc import Iterator, Mapping
from typing import Any

from app.engine.context import FlowContext, Outputs
from app.engine.driver import GraphExecution
from app.engine.node import ExecutionResult
from app.kernel.problems import Names, listed, quoted
from app.kernel.validation import Handles
from app.nodes.graph_spec import StepId
from app.nodes.nesting import GraphField, InnerGraph
from app.nodes.node_type import NONE, Fault, NodeType
from app.nodes.reading import HandleName, StepData


class OutputSpec(StepData):
    """Where an output comes from."""

    step: StepId
    """A step of the inner graph."""
    handle: HandleName
    """One of its output handles."""


class GivenOutputs(StepData):
    """Which values of an inner graph leave the step; the base of data with such a graph."""

    outputs: dict[HandleName, OutputSpec] | None = None
    """What leaves the graph, by handle; left out, whatever its one last step gives."""

    def faults_of(self, graph: InnerGraph) -> Iterator[Fault]:
        """Yield what is wrong with the outputs."""
        ends, active = graph.ends, frozenset(graph.prepared.topology.active)
        if self.outputs is None:
            if len(ends) != 1:
                yield "outputs", f"Several steps end the graph ({listed(ends)}). Name its outputs."
            return
        for name, source in self.outputs.items():
            if source.step not in active:
                yield f"outputs.{name}.step", f"The graph executes no step {quoted(source.step)}."
                continue
            handles = graph.traits[source.step].handles.flow_outputs
            if handles is not None and source.handle not in handles:
                message = f"Step {quoted(source.step)} has no output {quoted(source.handle)}."
                yield f"outputs.{name}.handle", message

    async def executed(
        self, graph: InnerGraph, inputs: Outputs, context: FlowContext
    ) -> ExecutionResult:
        """Execute the graph, within the limits of the step: steps, calls and slots are the run's.

        Raises:
            Exception: what made one of its steps fail.
            Stop: a limit or a cancel request ended it. What was produced until then is kept.
        """
        execution = GraphExecution.inside(context, graph.prepared, inputs)
        context.keep(lambda: self._given(graph, execution.outputs()))
        return ExecutionResult(self._given(graph, await execution.result()))

    def _given(self, graph: InnerGraph, produced: Mapping[str, Outputs]) -> dict[str, Any]:
        """Return the outputs; one that a dead path leads to is absent."""
        if self.outputs is None:
            return dict(produced.get(graph.ends[0], {}))
        return {
            handle: produced[source.step][source.handle]
            for handle, source in self.outputs.items()
            if source.handle in produced.get(source.step, {})
        }


class SubgraphData(GivenOutputs):
    """A graph and what it gives."""

    graph: GraphField
    """Its first steps get the inputs of this step, by handle."""

    @property
    def flow_outputs(self) -> Names:
        """The handles on which something may leave."""
        if self.outputs is not None:
            return frozenset(self.outputs)
        return self.graph.traits[self.graph.ends[0]].handles.flow_outputs


class SubgraphNode:
    """Executes the graph of its step."""

    async def execute(
        self, data: SubgraphData, inputs: Outputs, context: FlowContext
    ) -> ExecutionResult:
        """Execute the graph."""
        return await data.executed(data.graph, inputs, context)


def subgraph_type() -> NodeType:
    """Return the type of steps that are graphs."""
    return NodeType(
        name="subgraph",
        description="Executes a graph on its inputs, within the limits of the run."
        " What leaves it is named in outputs.",
        node=SubgraphNode(),
        data=SubgraphData,
        handles=Handles(link_inputs=NONE, link_outputs=NONE),
        faults=lambda data: data.faults_of(data.graph),
        flow_outputs=lambda data: data.flow_outputs,
        holds=lambda data: data.graph.holds,
    )
