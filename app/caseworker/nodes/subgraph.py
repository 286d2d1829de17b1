"""Steps that execute graphs: one graph on its inputs, or the same for every item of a list."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Literal, cast

from pydantic import Field, model_validator

from caseworker.control.retry import ErrorPolicy
from caseworker.engine.context import FlowContext, Outputs
from caseworker.engine.driver import GraphExecution
from caseworker.engine.node import Execution, ExecutionResult
from caseworker.engine.ports import CallOutcome
from caseworker.engine.prepared import BoundNode, PreparedGraph, PreparedStep
from caseworker.engine.report import StepReport
from caseworker.engine.step_path import StepPath
from caseworker.engine.step_values import Total
from caseworker.kernel.facts import StepStatus
from caseworker.kernel.graph import DEFAULT_HANDLE, Graph, Step
from caseworker.kernel.problems import Names, listed, quoted
from caseworker.kernel.validation import Handles
from caseworker.nodes.graph_spec import MAX_PARALLEL, StepId
from caseworker.nodes.nesting import GraphField, InnerGraph, InnerStep, StepField
from caseworker.nodes.node_type import NONE, Fault, NodeType
from caseworker.nodes.reading import HandleName, PathField, StepData, refusal, usual_path
from caseworker.observability.errors import message_of_error


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
        """Execute the graph within the limits of the step: calls and slots are the run's.

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


ITEMS = "items"
"""The output handle of how many items are completed, failed and so on."""
MAX_ERROR_CHARS = 200
"""Of the error of an item."""

INDEX = "index"
"""The input handle on which the number of an item comes, from 0."""

DEFAULT_MAX_ITEMS = 1000
HIGHEST_MAX_ITEMS = 10_000


class UnfitListError(ValueError):
    """What should be a list of items is none, or is too long."""


class MapData(GivenOutputs):
    """What is done, and for which items: either a graph or a step."""

    over: PathField = usual_path()
    """Where the list of items is."""
    graph: GraphField | None = None
    """Executed for each item, which it gets as default beside its number as index. The result of
    an item are the outputs of the graph, by handle."""
    step: StepField | None = None
    """Executed for each item in the same way; its output default is the result of the item."""
    max_parallel: Annotated[int, Field(ge=1, le=MAX_PARALLEL)] = 1
    """How many items may be worked on at once."""
    max_items: Annotated[int, Field(ge=0, le=HIGHEST_MAX_ITEMS)] = DEFAULT_MAX_ITEMS
    """A longer list is a failure of the step."""

    on_item_error: Literal["fail", "skip", "collect"] = "fail"
    """When an item fails: ``fail`` cancels the others and fails the step; ``skip`` and ``collect``
    put null in its place and go on. ``items`` counts it as skipped, or has its error."""

    @model_validator(mode="after")
    def _has_one_form(self) -> "MapData":
        if (self.graph is None) == (self.step is None):
            raise refusal("A map has either a graph or a step.")
        if self.graph is None and self.outputs is not None:
            raise refusal("Only a map with a graph has outputs.")
        return self

    @property
    def holds(self) -> frozenset[Hashable]:
        """The persistent nodes that the items use."""
        if self.graph is not None:
            return self.graph.holds
        return frozenset() if self.step is None else self.step.traits.holds

    def faults(self) -> Iterator[Fault]:
        """Yield what is wrong with the outputs, and with items that keep each other waiting."""
        if self.graph is not None:
            yield from self.faults_of(self.graph)
        if self.holds and self.max_parallel > 1:
            names = listed(map(str, self.holds))
            message = f"The items use persistent nodes ({names}) one at a time: use 1."
            yield "max_parallel", message

    def items_in(self, inputs: Outputs) -> list[Any]:
        """Return the items, or raise UnfitListError: they are no list or too many."""
        items = self.over.value_in(inputs)
        if not isinstance(items, list):
            raise UnfitListError(f"The value at {self.over.text} is no list.")
        if len(items) > self.max_items:
            raise UnfitListError(
                f"The list at {self.over.text} has {len(items)} items; at most"
                f" {self.max_items} are allowed (max_items)."
            )
        return items

    def graph_for(
        self, items: list[Any], inputs: Outputs, graph_id: str, known: Mapping[str, Outputs]
    ) -> PreparedGraph:
        """Return a graph of one step for each item, named by its number.

        ``known`` are the results of items that were worked on in an earlier attempt.
        """
        kind = "subgraph" if self.step is None else self.step.type
        policy = None if self.on_item_error == "fail" else _GO_ON
        lock = None if self.step is None else self.step.work.lock
        prepared = {}
        for index, item in enumerate(items):
            step = Step(id=str(index), type=kind)
            inside = {**inputs, DEFAULT_HANDLE: item, INDEX: index}
            work = BoundNode(_ITEM, _Item(self, inside, known.get(step.id)), lock)
            prepared[step.id] = PreparedStep(step=step, work=work, policy=policy)
        steps = tuple(each.step for each in prepared.values())
        graph = Graph(id=graph_id, steps=steps, max_parallel=self.max_parallel)
        return PreparedGraph(graph, prepared)

    def outputs_of(
        self, reports: Mapping[str, StepReport], count: int, context: FlowContext
    ) -> dict[str, Any]:
        """Return the results in the order of the items, null where there is none, and ``items``.

        ``context`` is that of the map.
        """
        results: list[Any] = []
        failed: list[dict[str, Any]] = []
        counts = Counter[str]()
        for index in range(count):
            report = reports[str(index)]
            outputs = report.so_far()
            if report.error is None and outputs:
                whole = self.graph is not None
                results.append(dict(outputs) if whole else outputs.get(DEFAULT_HANDLE))
            else:
                results.append(None)
            if report.error is not None and self.on_item_error == "skip":
                counts["skipped"] += 1
            elif report.error is not None:
                error = message_of_error(report.error)[:MAX_ERROR_CHARS]
                failed.append({INDEX: index, "error": error})
            else:
                counts[_end_of(report, context.path.step(str(index)), context)] += 1
        about = {"total": count, **{name: counts[name] for name in _COUNTS}, "failed": failed}
        return {DEFAULT_HANDLE: results, ITEMS: about}


_GO_ON = ErrorPolicy(on_error="skip")
_COUNTS = ("completed", "not_started", "skipped", "halted", "cancelled")


def _end_of(report: StepReport, path: StepPath, context: FlowContext) -> str:
    """Return under which name an item without a failure is counted.

    A limit may have refused the step of an item, or all calls inside it: that item never started.
    """
    if report.status is not StepStatus.HALTED:
        return report.status.value if report.status.value in _COUNTS else "cancelled"
    began = context.calls.began_in(path.inside())
    if began is None:
        began = report.started_ns > 0
    return "halted" if began else "not_started"


@dataclass(frozen=True, slots=True)
class _Item:
    map: MapData
    inputs: Outputs
    known: Outputs | None


class _ItemNode:
    """Works on one item of a list."""

    def execute(self, data: _Item, inputs: Outputs, context: FlowContext) -> Execution:
        if data.known is not None:
            return ExecutionResult(data.known)
        if data.map.graph is not None:
            return data.map.executed(data.map.graph, data.inputs, context)
        work = cast(InnerStep, data.map.step).work
        return work.node.execute(work.data, data.inputs, context)


_ITEM = _ItemNode()


class MapNode:
    """Executes one graph with a step for each item: slots, siblings and limits are the engine's."""

    reports = frozenset({ITEMS})
    """What it kept on these handles stays where its policy puts up with a failure."""

    async def execute(
        self, data: MapData, inputs: Outputs, context: FlowContext
    ) -> ExecutionResult:
        """Work on all items; their results, in the order of the items, are the output ``default``.

        How many are completed, failed, skipped and so on is the output ``items``.

        Raises:
            MissingValueError: there is no list of items.
            UnfitListError: it is no list, or too long.
            Exception: what made the work on one of them fail; the others are cancelled.
        """
        items = data.items_in(inputs)
        if not items:
            return ExecutionResult(data.outputs_of({}, 0, context))
        known = _answered_before(context, len(items))
        graph = data.graph_for(items, inputs, context.node_id, known)
        total = Total.of_items(context.run.limits)
        execution = GraphExecution.inside(context, graph, {}, total)
        context.keep(lambda: data.outputs_of(execution.reports, len(items), context))
        try:
            await execution.result()
        finally:
            known.update(
                (step_id, report.outputs)
                for step_id, report in execution.reports.items()
                if report.status is StepStatus.COMPLETED and report.error is None
            )
        return ExecutionResult(data.outputs_of(execution.reports, len(items), context))


def _answered_before(context: FlowContext, count: int) -> dict[str, Outputs]:
    """Return the results of items in earlier attempts of the step, to which more may be added.

    They are known from this execution of the run, or from the journal of an earlier one.
    """
    *earlier, _ = context.path.attempts()
    answered: dict[str, Outputs] = context.state.setdefault(f"map:{context.path.attempts()[0]}", {})
    if context.run.journal is not None:
        for path, index in product(earlier, range(count)):
            found = context.run.journal.recorded(path.step(str(index)).record_key)
            if found is not None and found.outcome is CallOutcome.RESULT:
                answered.setdefault(str(index), found.value)
    return answered


def map_type() -> NodeType:
    """Return the type of steps that do the same for every item of a list."""
    return NodeType(
        name="map",
        description="Executes a graph or a step for each item of a list, in parallel if"
        " max_parallel allows it. The results leave on default, in the order of the items, and what"
        " became of them on items.",
        node=MapNode(),
        data=MapData,
        handles=Handles(
            flow_outputs=frozenset({DEFAULT_HANDLE, ITEMS}), link_inputs=NONE, link_outputs=NONE
        ),
        faults=lambda data: data.faults(),
        holds=lambda data: data.holds,
    )
