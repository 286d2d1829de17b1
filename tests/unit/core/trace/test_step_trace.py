"""Step traces, built from records and from the graph of calls."""

from dataclasses import MISSING, fields
from datetime import timedelta, timezone
from decimal import Decimal

import pytest

from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.node import TraceNode
from caseworker.core.trace.step_trace import (
    RecordedSteps,
    StepTrace,
    add_nested,
    step_traces_of,
    uses_of,
)
from tests.unit.core.trace.recorded import START, START_NS, Execution

MS = timedelta(milliseconds=1)


@pytest.fixture
def execution() -> Execution:
    return Execution()


def only(execution: Execution) -> StepTrace:
    (trace,) = execution.source.step_traces()
    return trace


@pytest.mark.req("000/O1")
def test_a_step_trace_has_the_fields_of_the_document() -> None:
    """The fields have the documented order; only the last two have defaults."""
    names = [each.name for each in fields(StepTrace)]

    assert names == [
        "step_id",
        "node_id",
        "node_type",
        "input",
        "output",
        "error",
        "start_time",
        "end_time",
        "duration_ms",
        "tokens_used",
        "metadata",
    ]
    optional = [
        f.name for f in fields(StepTrace) if (f.default, f.default_factory) != (MISSING,) * 2
    ]
    assert optional == ["tokens_used", "metadata"]
    trace = StepTrace("s", "n", "function", 1, 2, None, START, START, 0.0)
    assert (trace.tokens_used, trace.metadata) == (0, {})


@pytest.mark.req("000/O1")
def test_a_recorded_step_fills_every_field(execution: Execution) -> None:
    """A step trace has the recorded payloads, UTC times and the usage of its calls."""
    given, produced = {"default": "2+2"}, {"default": object()}
    execution.at(10)
    step = execution.begin("add", node_id="n1", node_type="case", input=given, output=produced)
    execution.at(20)
    execution.call(step.node, tokens=70, cost_usd=0.25)
    execution.at(35)
    step.end()

    trace = only(execution)

    assert trace == StepTrace(
        step_id="add",
        node_id="n1",
        node_type="case",
        input=given,
        output=produced,
        error=None,
        start_time=START + 10 * MS,
        end_time=START + 35 * MS,
        duration_ms=25.0,
        tokens_used=70,
        metadata={"trace_node": step.node, "status": "success", "attempts": 1, "cost_usd": 0.25},
    )
    assert trace.input is given
    assert trace.output is produced


def test_times_are_in_utc_whatever_zone_the_start_was_given_in() -> None:
    """Times are in UTC for any zone of the start time."""
    execution = Execution()
    execution.run("a", 0, 1)
    berlin = START.astimezone(timezone(timedelta(hours=2)))
    source = RecordedSteps(execution.graph, execution.records, berlin, START_NS)

    (trace,) = source.step_traces()

    assert (trace.start_time, trace.start_time.utcoffset()) == (START, timedelta(0))


def test_a_step_shorter_than_a_millisecond_keeps_its_duration(execution: Execution) -> None:
    """A duration below a millisecond is kept."""
    execution.run("a", 0, 0)
    execution.records[0].ended_ns += 2_500

    assert only(execution).duration_ms == 0.0025


@pytest.mark.req("000/O1")
def test_a_failed_step_tells_its_error_and_where_it_stopped(execution: Execution) -> None:
    """A failed step has its error message and the status and reason of its CallNode."""
    execution.run("a", 0, 1, error="no luck")

    trace = only(execution)

    assert trace.error == "no luck"
    assert (trace.metadata["status"], trace.metadata["stop_reason"]) == ("fail", "no luck")


def test_a_recovered_step_says_how_often_and_by_what(execution: Execution) -> None:
    """Only the step's own attempts count, not those of calls below it."""
    step = execution.begin("a", error="no luck", recovered_by="fallback")
    for number in (1, 2, 3):
        execution.graph.begin_node(step.node, "system", "attempt", metadata={"attempt": number})
    call = execution.call(step.node, tokens=5)
    execution.graph.begin_node(call, "system", "attempt")
    execution.graph.begin_node(step.node, "tool", "attempt")
    step.end()

    trace = only(execution)

    assert (trace.error, trace.tokens_used) == ("no luck", 5)
    assert trace.metadata["attempts"] == 3
    assert trace.metadata["recovered_by"] == "fallback"


def test_calls_below_calls_count_for_the_step(execution: Execution) -> None:
    """Nested calls and late usage count for the step."""
    step = execution.begin("a")
    call = execution.call(step.node, tokens=10, cost_usd=0.1)
    deeper = execution.call(call, tokens=20, cost_usd=0.2)
    step.end()
    execution.graph.add_late_usage(deeper, cost_usd=0.3, tokens_out=3)

    trace = only(execution)

    assert (trace.tokens_used, trace.metadata["cost_usd"]) == (33, 0.6)


def test_a_nested_step_counts_its_calls_alone(execution: Execution) -> None:
    """A nested step's calls count only for it; the outer step comes first."""
    outer = execution.begin("outer")
    execution.call(outer.node, tokens=1)
    execution.at(5)
    inner = execution.begin("outer/inner", parent=outer.node)
    execution.call(inner.node, tokens=10)
    inner.end()
    outer.end()

    first, second = execution.source.step_traces()

    assert [(t.step_id, t.tokens_used) for t in (first, second)] == [
        ("outer", 1),
        ("outer/inner", 10),
    ]
    assert "nested_in" not in first.metadata
    assert second.metadata["nested_in"] == outer.node


def test_what_two_sources_record_of_one_graph_counts_once(execution: Execution) -> None:
    """Usage counts once, even if a nested graph records its steps in its own source."""
    outer = execution.begin("outer")
    inner = execution.begin("outer/inner", parent=outer.node)
    execution.call(inner.node, tokens=10)
    inner.end()
    nested = RecordedSteps(execution.graph, [execution.records.pop()], START, START_NS)
    outer.end()

    traces = step_traces_of([execution.source, nested])

    assert {t.step_id: t.tokens_used for t in traces} == {"outer": 0, "outer/inner": 10}


@pytest.mark.parametrize(
    ("outer_usd", "inner_usd", "sum_usd"), [(0.1, 0.2, 0.3), (None, 0.2, None), (0.1, None, None)]
)
def test_the_calls_of_an_unrecorded_nested_step_count_for_the_one_around_it(
    execution: Execution, outer_usd: float | None, inner_usd: float | None, sum_usd: float | None
) -> None:
    """Calls of unrecorded nested steps count for the outer step; an unknown cost stays unknown."""
    outer = execution.begin("outer")
    execution.call(outer.node, tokens=1, cost_usd=outer_usd)
    inner = execution.begin("outer/inner", parent=outer.node)
    execution.call(inner.node, tokens=10, cost_usd=inner_usd)
    outer.end()

    trace = only(execution)

    assert (trace.tokens_used, trace.metadata.get("cost_usd")) == (11, sum_usd)
    uses = uses_of(execution.graph.snapshot()["nodes"].values(), {outer.node, inner.node})
    add_nested(uses)
    whole = uses[outer.node]
    assert (whole.tokens_in, whole.cost_usd) == (11, sum_usd and Decimal(str(sum_usd)))


def test_a_record_of_an_unknown_node_is_told_all_the_same() -> None:
    """A record whose node is missing from the graph keeps its times, without usage."""
    execution = Execution()
    node = execution.run("a", 0, 4)
    source = RecordedSteps(ExecutionGraph("other"), execution.records, START, START_NS)

    (trace,) = source.step_traces()

    assert (trace.duration_ms, trace.tokens_used) == (4.0, 0)
    assert trace.metadata == {"trace_node": node}


def test_the_revision_rises_with_all_that_changes_a_step(execution: Execution) -> None:
    """A new record and late usage both raise the revision."""
    step = execution.begin("a")
    call = execution.call(step.node)
    before = execution.source.revision
    step.end()
    ended = execution.source.revision
    execution.graph.add_late_usage(call, tokens_in=1)

    assert before < ended < execution.source.revision


def test_a_step_shows_no_payload_in_its_repr() -> None:
    """The repr shows no payload, which may be secret or very long."""
    trace = StepTrace("s", "n", "t", "in-7", "out-7", None, START, START, 0.0, 0, {"a": "meta-7"})

    assert "step_id='s'" in repr(trace)
    assert "-7" not in repr(trace)


@pytest.mark.req("000/O3")
def test_calls_of_overlapping_steps_are_told_apart_by_node_and_time() -> None:
    """Calls of overlapping steps are assigned by node and time; time alone is ambiguous."""
    execution = Execution()
    execution.at(0)
    left = execution.begin("left", node_id="model")
    execution.at(10)
    right = execution.begin("right", node_id="model")
    made: dict[str, list[str]] = {"left": [], "right": []}
    for moment, step in ((15, left), (20, right), (25, left), (30, right)):
        execution.at(moment)
        made[step.step_id].append(execution.call(step.node, tokens=moment))
    execution.at(40)
    left.end()
    execution.at(45)
    made["right"].append(execution.call(right.node, tokens=45))
    execution.at(50)
    right.end()
    nodes = execution.graph.snapshot()["nodes"]

    for trace in execution.source.step_traces():
        matched = [
            node_id
            for node_id, node in nodes.items()
            if node["parent_id"] == trace.metadata["trace_node"] and within(trace, node)
        ]
        assert matched == made[trace.step_id]
        assert trace.tokens_used == sum(nodes[node_id]["tokens_in"] or 0 for node_id in matched)
    both = [node for node in nodes.values() if node["name"] == "plan"][:-1]
    assert all(within(trace, node) for trace in execution.source.step_traces() for node in both)


@pytest.mark.req("000/O3")
def test_executions_of_one_node_are_told_apart_by_time(execution: Execution) -> None:
    """Two executions of the same node are distinguished by time."""
    for step_id, start in (("first", 0), ("second", 10)):
        execution.at(start)
        step = execution.begin(step_id, node_id="model")
        execution.at(start + 5)
        execution.call(step.node)
        execution.at(start + 9)
        step.end()
    calls = [n for n in execution.graph.snapshot()["nodes"].values() if n["kind"] == "llm"]

    for index, trace in enumerate(execution.source.step_traces()):
        assert trace.node_id == "model"
        assert [within(trace, call) for call in calls] == [index == 0, index == 1]


def within(trace: StepTrace, node: TraceNode) -> bool:
    """Return whether a call was made within the wall-clock times of a step."""
    began, ended = (moment.timestamp() * 1000 for moment in (trace.start_time, trace.end_time))
    return began <= node["start_ts_ms"] and (node["end_ts_ms"] or 0) <= ended
