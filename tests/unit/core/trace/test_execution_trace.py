"""The trace that a caller passes to an execution."""

import json
from dataclasses import MISSING, asdict, fields, replace
from datetime import timedelta

import pytest

from caseworker.core.trace.execution_trace import ExecutionTrace
from caseworker.core.trace.step_trace import StepTrace
from tests.unit.core.trace.recorded import START, Execution

MS = timedelta(milliseconds=1)


@pytest.fixture
def trace() -> ExecutionTrace:
    return ExecutionTrace(graph_id="main", start_time=START)


@pytest.fixture
def execution() -> Execution:
    return Execution()


def step(step_id: str = "s", start: int = 0, end: int = 5, **more: object) -> StepTrace:
    """Return a step that a caller adds manually."""
    made = StepTrace(
        step_id, "n", "FunctionNode", None, None, None, START + start * MS, START + end * MS,
        float(end - start),
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def ids(trace: ExecutionTrace) -> list[str]:
    return [each.step_id for each in trace.steps]


@pytest.mark.req("000/O2")
def test_a_trace_has_the_fields_and_defaults_of_the_document(trace: ExecutionTrace) -> None:
    """The fields have the documented order and defaults; a new trace is running and empty."""
    assert [(f.name, f.default is not MISSING) for f in fields(ExecutionTrace)] == [
        ("graph_id", False),
        ("start_time", False),
        ("end_time", True),
        ("status", True),
        ("steps", False),
        ("total_tokens", True),
        ("total_cost", True),
        ("error", True),
    ]
    assert asdict(trace) == {
        "graph_id": "main",
        "start_time": START,
        "end_time": None,
        "status": "running",
        "steps": [],
        "total_tokens": 0,
        "total_cost": 0.0,
        "error": None,
    }


@pytest.mark.req("000/O2")
def test_a_trace_takes_all_of_its_fields() -> None:
    """All fields can be given by position or by name, and equal traces compare equal."""
    given = ("main", START, START + MS, "failed", [step()], 7, 0.5, "broke")
    trace = ExecutionTrace(*given)  # type: ignore[arg-type]

    assert tuple(getattr(trace, each.name) for each in fields(trace)) == given
    assert trace == ExecutionTrace(**dict(zip((f.name for f in fields(trace)), given, strict=True)))  # type: ignore[arg-type]
    assert trace != replace(trace, error=None)


@pytest.mark.req("000/O2")
def test_added_steps_are_kept_and_summed(trace: ExecutionTrace) -> None:
    """Totals sum the tokens field and the cost in the metadata of the added steps."""
    trace.add_step(step("a", tokens_used=3, metadata={"cost_usd": 0.1}))
    trace.add_step(step("b", tokens_used=4, metadata={"cost_usd": 0.2}))
    trace.add_step(step("c", metadata={"cost_usd": True}))

    assert ids(trace) == ["a", "b", "c"]
    assert (trace.total_tokens, trace.total_cost) == (7, 0.3)


@pytest.mark.req("000/O2")
def test_totals_and_steps_may_be_set(trace: ExecutionTrace, execution: Execution) -> None:
    """Totals and steps can be assigned; recorded steps are listed first and stay in the totals."""
    recorded = execution.begin("recorded")
    execution.call(recorded.node, tokens=5, cost_usd=0.5)
    recorded.end()
    trace.follow(execution.source)
    trace.total_tokens += 2
    trace.total_cost += 0.25
    trace.steps = [step("mine")]

    assert (trace.total_tokens, trace.total_cost) == (7, 0.75)
    assert ids(trace) == ["recorded", "mine"]


@pytest.mark.req("000/D12")
def test_a_trace_tells_of_the_steps_it_follows_while_they_work(
    trace: ExecutionTrace, execution: Execution
) -> None:
    """A trace shows each step of a running execution when it ends, with tokens and cost."""
    trace.follow(execution.source)
    assert (trace.steps, trace.total_tokens) == ([], 0)

    first = execution.begin("a")
    execution.call(first.node, tokens=70, cost_usd=0.1)
    first.end()
    assert (ids(trace), trace.total_tokens, trace.total_cost) == (["a"], 70, 0.1)

    execution.at(3)
    second = execution.begin("b")
    execution.call(second.node, tokens=30, cost_usd=0.2)
    second.end()
    assert (ids(trace), trace.total_tokens, trace.total_cost) == (["a", "b"], 100, 0.3)


@pytest.mark.req("000/D12")
def test_recording_asks_nothing_of_the_trace(trace: ExecutionTrace, execution: Execution) -> None:
    """Recording steps does not touch the trace, which reads them only on access."""
    trace.follow(execution.source)
    for number in range(100):
        execution.run(f"s{number}", number, number + 1)

    assert vars(trace)["_seen"].steps == ()
    assert len(trace.steps) == 100
    assert len(execution.graph.snapshot()["nodes"]) == 101


def test_steps_are_read_again_only_if_something_changed(
    trace: ExecutionTrace, execution: Execution
) -> None:
    """Steps are built again only after a change; the returned list is the caller's own copy."""
    node = execution.run("a", 0, 1)
    trace.follow(execution.source)
    before = trace.steps
    trace.steps.clear()

    assert trace.steps[0] is before[0]
    execution.graph.increment_retries(execution.root)
    assert trace.steps[0] is not before[0]
    assert trace.steps[0].metadata["trace_node"] == node


@pytest.mark.req("000/O2")
def test_totals_are_those_of_the_run_with_nested_steps(
    trace: ExecutionTrace, execution: Execution
) -> None:
    """Nested steps are not counted twice, and the totals equal those of the graph."""
    outer = execution.begin("outer")
    for tokens, cost_usd in ((1, 0.1), (2, 0.2), (4, 0.7)):
        inner = execution.begin(f"outer/{tokens}", parent=outer.node)
        execution.call(inner.node, tokens=tokens, cost_usd=cost_usd)
        inner.end()
    execution.call(outer.node, tokens=8, cost_usd=0.1)
    outer.end()
    trace.follow(execution.source)
    totals = execution.graph.snapshot()["aggregates"]

    assert trace.total_tokens == totals["total_tokens_in"] == 15
    assert trace.total_tokens == sum(each.tokens_used for each in trace.steps)
    assert trace.total_cost == totals["total_cost_usd"] == 1.1


def test_a_trace_of_two_executions_holds_both(trace: ExecutionTrace) -> None:
    """A trace combines two executions in time order, although their node IDs are equal."""
    for at in (10, 0):
        execution = Execution()
        execution.at(at)
        one = execution.begin(f"at {at}")
        execution.call(one.node, tokens=at + 1)
        one.end()
        trace.follow(execution.source)
    trace.add_step(step("by hand", tokens_used=1))

    assert ids(trace) == ["at 0", "at 10", "by hand"]
    assert trace.total_tokens == 13


def test_any_source_can_be_followed(trace: ExecutionTrace) -> None:
    """A trace accepts any source, even one whose revision never changes."""

    class Fixed:
        revision = 0

        def step_traces(self) -> list[StepTrace]:
            return [step("a", tokens_used=9, metadata={"cost_usd": 0.5})]

    trace.follow(Fixed())

    assert (ids(trace), trace.total_tokens, trace.total_cost) == (["a"], 9, 0.5)


@pytest.mark.req("000/O2")
@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_a_trace_is_finished_with_its_execution(trace: ExecutionTrace, status: str) -> None:
    """A trace ends at the given time, or now."""
    trace.finish(status, "why", at=START + MS)  # type: ignore[arg-type]
    assert (trace.status, trace.error, trace.end_time) == (status, "why", START + MS)

    trace.finish("completed")
    assert (trace.status, trace.error) == ("completed", None)
    assert trace.end_time is not None
    assert trace.end_time > START + MS


@pytest.mark.req("000/O2")
def test_a_trace_on_a_clock_without_a_zone_stays_on_it(execution: Execution) -> None:
    """A trace started without a zone has only local times; document 000 uses ``datetime.now()``."""
    local = START.astimezone().replace(tzinfo=None)
    trace = ExecutionTrace(graph_id="main", start_time=local)
    execution.run("a", 1, 2)
    trace.follow(execution.source)
    trace.finish("completed", at=START + 3 * MS)

    assert trace.end_time == local + 3 * MS
    assert (trace.steps[0].start_time, trace.steps[0].end_time) == (local + MS, local + 2 * MS)
    assert trace.to_dict()["start_time"] == "2025-02-19T21:20:00Z"
    assert "in 3ms" in trace.explain()


@pytest.mark.req("000/O2")
def test_a_trace_is_json(trace: ExecutionTrace, execution: Execution) -> None:
    """The JSON form has all fields; a payload that is not JSON is replaced by its type."""
    execution.run("a", 10, 15, input={"x": (1, 2)}, output=object(), error="no luck")
    trace.follow(execution.source)
    trace.finish("failed", "a failed", at=START + 20 * MS)

    told = trace.to_dict()

    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told == {
        "graph_id": "main",
        "start_time": "2025-02-19T21:20:00Z",
        "end_time": "2025-02-19T21:20:00.020000Z",
        "status": "failed",
        "steps": [
            {
                "step_id": "a",
                "node_id": "a",
                "node_type": "function",
                "input": {"x": [1, 2]},
                "output": {"type": "object"},
                "error": "no luck",
                "start_time": "2025-02-19T21:20:00.010000Z",
                "end_time": "2025-02-19T21:20:00.015000Z",
                "duration_ms": 5.0,
                "tokens_used": 0,
                "metadata": {
                    "trace_node": "n000002",
                    "status": "fail",
                    "stop_reason": "no luck",
                    "attempts": 1,
                    "cost_usd": 0.0,
                },
            }
        ],
        "total_tokens": 0,
        "total_cost": 0.0,
        "error": "a failed",
    }


def test_impossible_numbers_become_null(trace: ExecutionTrace) -> None:
    """NaN and infinity become null, because JSON does not have them."""
    trace.total_cost = float("nan")
    trace.add_step(step(duration_ms=float("inf")))

    told = trace.to_dict()

    assert told["total_cost"] is None
    assert told["steps"] == [asdict(step()) | {
        "duration_ms": None, "start_time": "2025-02-19T21:20:00Z",
        "end_time": "2025-02-19T21:20:00.005000Z",
    }]  # fmt: skip


@pytest.mark.req("000/O2")
def test_an_explanation_begins_as_in_the_document(trace: ExecutionTrace) -> None:
    """The explanation starts with the lines that the document specifies."""
    trace.add_step(step("fetch", duration_ms=12.4))
    trace.add_step(step("parse", duration_ms=0.6, error="bad input"))
    trace.status = "failed"

    assert trace.explain().splitlines()[:5] == [
        "Graph: main",
        "Status: failed",
        "  fetch (FunctionNode): 12ms",
        "  parse (FunctionNode): 1ms",
        "    Error: bad input",
    ]


@pytest.mark.req("000/O2")
def test_an_explanation_is_read_at_a_glance(trace: ExecutionTrace, execution: Execution) -> None:
    """The explanation shows totals, slowest steps, critical path and the cause of the stop."""
    execution.run("load", 0, 20)
    quick = execution.begin("quick", error="no luck", recovered_by="skip")
    slow = execution.begin("slow")
    for _ in range(2):
        execution.graph.begin_node(quick.node, "system", "attempt")
    inner = execution.begin("slow/inner", parent=slow.node)
    execution.call(inner.node, tokens=1200, cost_usd=0.95)
    execution.at(30)
    quick.end()
    execution.at(119)
    inner.end()
    execution.at(120)
    slow.end()
    last = execution.begin("last")
    last.end(stop="steps: 3 of 3 used")
    trace.follow(execution.source)
    trace.finish("failed", "Out of steps.", at=START + 130 * MS)

    assert trace.explain() == (
        "Graph: main\n"
        "Status: failed\n"
        "  load (function): 20ms\n"
        "  quick (function): 10ms\n"
        "    Error: no luck\n"
        "    2 attempts, recovered by skip\n"
        "  slow (function): 100ms\n"
        "  slow/inner (function): 99ms\n"
        "  last (function): 0ms\n"
        "Total: 5 steps in 130ms, 1,200 tokens, $0.9500\n"
        "Slowest: slow 100ms, load 20ms, quick 10ms, last 0ms\n"
        "Critical path: load 20ms > slow 100ms > last 0ms\n"
        "Stopped at: last: steps: 3 of 3 used\n"
        "Error: Out of steps."
    )


def test_a_sequence_has_no_critical_path_to_tell(
    trace: ExecutionTrace, execution: Execution
) -> None:
    """A sequence shows no critical path, because it would list every step again."""
    for number in range(3):
        execution.run(f"s{number}", number, number + 1)
    trace.follow(execution.source)

    assert "Critical path" not in trace.explain()


def test_a_trace_without_steps_is_explained(trace: ExecutionTrace) -> None:
    """A trace without steps is explained with zero totals."""
    assert (
        trace.explain() == "Graph: main\nStatus: running\nTotal: 0 steps in 0ms, 0 tokens, $0.0000"
    )


def test_no_text_can_forge_a_line_of_the_explanation(trace: ExecutionTrace) -> None:
    """Control characters in names and errors cannot forge a line or steer a terminal."""
    trace.add_step(step("a\nStatus: completed", error="x\n\x1b[2J"))

    lines = trace.explain().splitlines()

    assert lines[2:4] == ["  a?Status: completed (FunctionNode): 5ms", "    Error: x??[2J"]


def test_payloads_are_compared_by_nobody_who_reads(trace: ExecutionTrace) -> None:
    """Payloads that refuse comparison or truth tests, such as arrays, can be traced."""

    class Array:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("ambiguous")

        __hash__ = None  # type: ignore[assignment]

        def __bool__(self) -> bool:
            raise AssertionError("ambiguous")

        def __repr__(self) -> str:
            raise AssertionError("endless")

    for number in range(3):
        trace.add_step(step(f"s{number}", 0, 5, input=Array(), output=[Array()]))

    assert "Critical path: s0 5ms" in trace.explain()
    assert json.dumps(trace.to_dict()).count('{"type": "Array"}') == 6
    assert repr(trace) == (
        f"ExecutionTrace(graph_id='main', start_time={START!r}, end_time=None, status='running', "
        "total_tokens=0, total_cost=0.0, error=None)"
    )
