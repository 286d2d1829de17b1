"""Steps that execute graphs: once for all inputs, or once for each item of a list."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Annotated, Any, Literal, cast

from pydantic import Field, model_validator

from caseworker.core.budget.retry import ErrorPolicy
from caseworker.core.graph.facts import StepStatus
from caseworker.core.graph.graph import DEFAULT_HANDLE, GraphStep, StepGraph
from caseworker.core.graph.problems import Names, listed, quoted
from caseworker.core.graph.validation import Handles
from caseworker.engine.context import Execution, ExecutionResult, FlowContext, Outputs
from caseworker.engine.driver import GraphExecution
from caseworker.engine.ports import CallOutcome
from caseworker.engine.prepared import BoundNode, PreparedGraph, PreparedStep
from caseworker.engine.report import StepReport
from caseworker.engine.step_values import Total
from caseworker.nodes.graph_spec import MAX_PARALLEL, StepId
from caseworker.nodes.nesting import GraphField, InnerGraph, InnerStep, StepField
from caseworker.nodes.node_type import NONE, Fault, NodeType
from caseworker.nodes.strict_parsing import HandleName, PathField, StepData, usual_path
from caseworker.platform.fair_threads import PacedThread
from caseworker.platform.logs.errors import message_of_error
from caseworker.platform.validation import refusal


class SubgraphOutput(StepData):
    """Where an output value comes from."""

    step: StepId
    """ID of a step in the inner graph."""
    handle: HandleName
    """Output handle of that step."""


class GivenOutputs(StepData):
    """Base class for the data of steps that execute an inner graph: defines its outputs."""

    outputs: dict[HandleName, SubgraphOutput] | None = None
    """Sources of the outputs, keyed by output handle. Default: the outputs of the graph's last
    step, if it has only one."""

    def faults_of(self, graph: InnerGraph) -> Iterator[Fault]:
        """Yield the errors in the output settings."""
        ends, active = graph.ends, frozenset(graph.prepared.topology.active)
        if self.outputs is None:
            if len(ends) != 1:
                yield (
                    "outputs",
                    f"The graph has several last steps ({listed(ends)}). Set outputs.",
                )
            return
        for name, source in self.outputs.items():
            if source.step not in active:
                yield (
                    f"outputs.{name}.step",
                    f"The graph has no step {quoted(source.step)} that is executed.",
                )
                continue
            handles = graph.traits[source.step].handles.flow_outputs
            if handles is not None and source.handle not in handles:
                message = f"Step {quoted(source.step)} has no output {quoted(source.handle)}."
                yield f"outputs.{name}.handle", message

    async def executed(
        self, graph: InnerGraph, inputs: Outputs, context: FlowContext
    ) -> ExecutionResult:
        """Execute the graph within the step's limits, with the journal and step slots of the run.

        Raises:
            Exception: one of its steps failed.
            Stop: a limit or a cancel request ended it. The outputs so far are kept.
        """
        execution = GraphExecution.inside(context, graph.prepared, inputs)
        context.keep(lambda: self._outputs_of(graph, execution.outputs()))
        return ExecutionResult(self._outputs_of(graph, await execution.result()))

    def _outputs_of(self, graph: InnerGraph, produced: Mapping[str, Outputs]) -> dict[str, Any]:
        """Return the outputs; an output whose source produced no value is absent."""
        if self.outputs is None:
            return dict(produced.get(graph.ends[0], {}))
        return {
            handle: produced[source.step][source.handle]
            for handle, source in self.outputs.items()
            if source.handle in produced.get(source.step, {})
        }


class SubgraphData(GivenOutputs):
    """An inner graph to execute, and the outputs to take from it."""

    graph: GraphField
    """Graph to execute. Its first steps receive the inputs of this step, by handle."""

    @property
    def flow_outputs(self) -> Names:
        """Output handles of the step."""
        if self.outputs is not None:
            return frozenset(self.outputs)
        return self.graph.traits[self.graph.ends[0]].handles.flow_outputs


class SubgraphNode:
    """Executes the graph in a step's data."""

    replays = True

    async def execute(
        self, data: SubgraphData, inputs: Outputs, context: FlowContext
    ) -> ExecutionResult:
        """Execute the inner graph and return its outputs."""
        return await data.executed(data.graph, inputs, context)


def subgraph_type() -> NodeType:
    """Return the step type that executes a graph."""
    return NodeType(
        name="subgraph",
        description="Executes a graph with the step's inputs, within the limits of the run."
        " The field outputs selects its outputs.",
        node=SubgraphNode(),
        data=SubgraphData,
        handles=Handles(link_inputs=NONE, link_outputs=NONE),
        faults=lambda data: data.faults_of(data.graph),
        flow_outputs=lambda data: data.flow_outputs,
        holds=lambda data: data.graph.holds,
    )


ITEMS = "items"
"""Output handle for the numbers of completed, failed and other items."""
MAX_ERROR_CHARS = 200
"""Maximum length, in characters, of an item's error message."""

INDEX = "index"
"""Input handle for the zero-based index of an item."""

DEFAULT_MAX_ITEMS = 1000
HIGHEST_MAX_ITEMS = 10_000


class ItemFailedError(Exception):
    """An item of a map failed. The message names the item and includes that of the failure."""

    def __init__(self, index: str, error: Exception) -> None:
        super().__init__(f"Item {index}: {message_of_error(error)}")
        self.item_error: Exception = getattr(error, "item_error", error)
        """The failure, which determines the class of the error and whether it is retried."""


class UnfitListError(ValueError):
    """A value is not a list of items, or the list is too long."""


class MapData(GivenOutputs):
    """The list to process, and the graph or the step to execute for each item."""

    over: PathField = usual_path()
    """Path, in the step's inputs, to the list of items."""
    graph: GraphField | None = None
    """Graph to execute for each item. It receives the item as input ``default`` and its index as
    ``index``. The item's result is an object with the graph's outputs by handle."""
    step: StepField | None = None
    """Step to execute for each item, with the same inputs. Its output ``default`` is the item's
    result."""
    max_parallel: Annotated[int, Field(ge=1, le=MAX_PARALLEL)] = 1
    """Maximum number of items that are processed concurrently."""
    max_items: Annotated[int, Field(ge=0, le=HIGHEST_MAX_ITEMS)] = DEFAULT_MAX_ITEMS
    """Maximum length of the list. The step fails if the list is longer."""

    on_item_error: Literal["fail", "skip", "collect"] = "fail"
    """What to do if an item fails. ``fail`` cancels the other items and fails the step. ``skip``
    and ``collect`` use null as the item's result and continue. With ``skip``, the output ``items``
    counts the item as skipped; with ``collect``, it contains the item's error."""

    @model_validator(mode="after")
    def _has_one_form(self) -> "MapData":
        if (self.graph is None) == (self.step is None):
            raise refusal("A map requires either graph or step.")
        if self.graph is None and self.outputs is not None:
            raise refusal("outputs is only allowed together with graph.")
        return self

    @property
    def holds(self) -> frozenset[Hashable]:
        """The persistent nodes that the items use; only one step at a time may use each of them."""
        if self.graph is not None:
            return self.graph.holds
        return frozenset() if self.step is None else self.step.traits.holds

    def faults(self) -> Iterator[Fault]:
        """Yield the errors in the outputs, and one if persistent nodes would run in parallel."""
        if self.graph is not None:
            yield from self.faults_of(self.graph)
        if self.holds and self.max_parallel > 1:
            names = listed(map(str, self.holds))
            message = f"The items use persistent nodes ({names}), so this must be 1."
            yield "max_parallel", message

    def items_in(self, inputs: Outputs, step_id: str) -> list[Any]:
        """Return the items, or raise UnfitListError if there is no list or it is too long."""
        items = self.over.find(inputs)
        if not isinstance(items, list):
            raise UnfitListError(
                f"The map step {quoted(step_id)} needs a list at {self.over.text}: send it as input"
                " or connect an edge."
            )
        if len(items) > self.max_items:
            raise UnfitListError(
                f"The list at {self.over.text} has {len(items)} items; at most"
                f" {self.max_items} are allowed (max_items)."
            )
        return items

    def graph_for(
        self,
        items: list[Any],
        inputs: Outputs,
        graph_id: str,
        earlier_results: Mapping[str, Outputs],
    ) -> PreparedGraph:
        """Build a graph with one step for each item. The step's ID is the item's index.

        ``earlier_results`` holds the results of items that an earlier attempt completed.
        """
        kind = "subgraph" if self.step is None else self.step.type
        policy = None if self.on_item_error == "fail" else _SKIP_FAILED
        lock = None if self.step is None else self.step.work.lock
        node = _ItemNode(replays=self.step is None or self.step.work.replays)
        prepared = {}
        for index, item in enumerate(items):
            step = GraphStep(id=str(index), type=kind)
            inside = {**inputs, DEFAULT_HANDLE: item, INDEX: index}
            work = BoundNode(node, _Item(self, inside, earlier_results.get(step.id)), lock)
            prepared[step.id] = PreparedStep(step=step, work=work, policy=policy)
        steps = tuple(each.step for each in prepared.values())
        graph = StepGraph(id=graph_id, steps=steps, max_parallel=self.max_parallel)
        return PreparedGraph(graph, prepared)

    def outputs_of(
        self, reports: Mapping[str, StepReport], count: int, context: FlowContext
    ) -> dict[str, Any]:
        """Return the results in item order (null if missing), and the counts under ``items``.

        ``context`` is the context of the map step.
        """
        results: list[Any] = []
        failed: list[dict[str, Any]] = []
        counts = Counter[str]()
        for index in range(count):
            report = reports[str(index)]
            outputs = report.so_far()
            if report.error is None and outputs:
                has_graph = self.graph is not None
                results.append(dict(outputs) if has_graph else outputs.get(DEFAULT_HANDLE))
            else:
                results.append(None)
            if report.error is not None and self.on_item_error == "skip":
                counts["skipped"] += 1
            elif report.error is not None:
                error = message_of_error(report.error)[:MAX_ERROR_CHARS]
                failed.append({INDEX: index, "error": error})
            else:
                counts[_end_of(report, index, context)] += 1
        about = {"total": count, **{name: counts[name] for name in _COUNTS}, "failed": failed}
        return {DEFAULT_HANDLE: results, ITEMS: about}


_SKIP_FAILED = ErrorPolicy(on_error="skip")
_COUNTS = ("completed", "not_started", "skipped", "halted", "cancelled")


def _end_of(report: StepReport, index: int, context: FlowContext) -> str:
    """Return under which name an item without a failure is counted.

    A limit may have refused the step of an item, or all calls inside it: that item never started.
    """
    if report.status is not StepStatus.HALTED:
        return report.status.value if report.status.value in _COUNTS else "cancelled"
    began = context.calls.began_in(context.path.step(str(index)))
    if began is None:
        began = report.started_ns > 0
    return "halted" if began else "not_started"


@dataclass(frozen=True, slots=True)
class _Item:
    map: MapData
    inputs: Outputs
    earlier_results: Outputs | None


@dataclass(frozen=True, slots=True)
class _ItemNode:
    """Processes one item of a list."""

    replays: bool

    def execute(self, data: _Item, inputs: Outputs, context: FlowContext) -> Execution:
        if data.earlier_results is not None:
            return ExecutionResult(data.earlier_results)
        if data.map.graph is not None:
            return data.map.executed(data.map.graph, data.inputs, context)
        work = cast(InnerStep, data.map.step).work
        return work.node.execute(work.data, data.inputs, context)


class MapNode:
    """Processes the items of a list as the steps of one graph.

    The engine therefore applies its step slots and the limits of the run to the items.
    """

    replays = True
    reports = frozenset({ITEMS})
    """Handles whose outputs are kept if the error policy tolerates a failure of the step."""

    async def execute(
        self, data: MapData, inputs: Outputs, context: FlowContext
    ) -> ExecutionResult:
        """Process all items; put their results on ``default``, in item order.

        The output ``items`` has the numbers of completed, failed, skipped and other items.

        Raises:
            UnfitListError: there is no list of items, or it is too long.
            ItemFailedError: an item failed; the other items are cancelled.
        """
        items = data.items_in(inputs, context.node_id)
        if not items:
            return ExecutionResult(data.outputs_of({}, 0, context))
        earlier_results = _answered_before(context, len(items))
        thread = context.services.get(PacedThread) or PacedThread()
        compute = partial(thread.call, size=len(items))
        build = partial(data.graph_for, items, inputs, context.node_id, earlier_results)
        graph = await compute(build)
        total = Total.of_items(context.run.limits)
        execution = GraphExecution.inside(context, graph, {}, total)
        context.keep(lambda: data.outputs_of(execution.reports, len(items), context))
        try:
            await execution.result()
        except Exception as error:
            for step_id, report in execution.reports.items():
                if report.error is error:
                    raise ItemFailedError(step_id, error) from error
            raise
        finally:
            earlier_results.update(
                (step_id, report.outputs)
                for step_id, report in execution.reports.items()
                if report.status is StepStatus.COMPLETED and report.error is None
            )
        collect = partial(data.outputs_of, execution.reports, len(items), context)
        return ExecutionResult(await compute(collect))


def _answered_before(context: FlowContext, count: int) -> dict[str, Outputs]:
    """Return the mutable results of items that earlier attempts of the step completed.

    They come from this execution of the run, and from the journal for earlier executions.
    """
    *earlier, _ = context.path.attempts()
    answered: dict[str, Outputs] = context.state.setdefault(f"map:{context.path.attempts()[0]}", {})
    if context.run.journal is not None:
        for path, index in product(earlier, range(count)):
            record = context.run.journal.recorded(path.step(str(index)).record_key)
            if record is not None and record.outcome is CallOutcome.RESULT:
                answered.setdefault(str(index), record.value)
    return answered


def map_type() -> NodeType:
    """Return the step type that processes each item of a list."""
    return NodeType(
        name="map",
        description="Executes a graph or a step for each item of a list, in parallel if"
        " max_parallel allows it. The output default has the results in the order of the items;"
        " items has the numbers of completed, failed and other items.",
        node=MapNode(),
        data=MapData,
        handles=Handles(
            flow_outputs=frozenset({DEFAULT_HANDLE, ITEMS}), link_inputs=NONE, link_outputs=NONE
        ),
        faults=lambda data: data.faults(),
        holds=lambda data: data.holds,
    )
