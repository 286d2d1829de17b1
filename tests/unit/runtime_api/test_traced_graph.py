"""An ExecutionTrace passed to a graph, as seed 000 requires it."""

import asyncio
import gc
import json
import sys
import time
import weakref
from datetime import UTC, datetime

import pytest

from caseworker import (
    Budget,
    BudgetExceededError,
    CancellationToken,
    CancelledError,
    ErrorPolicy,
    ExecutionContext,
    ExecutionTrace,
    FunctionNode,
    Graph,
)
from caseworker.core.trace.step_trace import StepRecord
from caseworker.engine import report
from tests.support.work import counted_calls, counted_waits


def trace() -> ExecutionTrace:
    return ExecutionTrace(graph_id="main", start_time=datetime.now(UTC))


def two_steps() -> Graph:
    graph = Graph("main")
    graph.add_step(FunctionNode("double", lambda context: context.input * 2), "a", input=21)
    graph.add_step(
        FunctionNode("spends", lambda context: context.upstream["a"] + 1), "b", depends_on=["a"]
    )
    return graph


@pytest.mark.req("000/D12", "000/O1", "000/O2")
async def test_a_trace_tells_of_every_step() -> None:
    """Each record has the node, input, output, start and duration."""
    found = trace()
    results = await two_steps().execute(ExecutionContext(trace=found))

    first, second = found.steps
    assert results == {"a": 42, "b": 43}
    assert (first.step_id, first.node_id, first.node_type) == ("a", "double", "FunctionNode")
    assert (first.input, first.output, first.error) == (21, 42, None)
    assert (second.step_id, second.output) == ("b", 43)
    assert found.start_time <= first.start_time <= first.end_time <= second.start_time
    assert first.duration_ms > 0
    assert found.status == "completed"
    assert found.end_time is not None
    assert json.loads(json.dumps(found.to_dict()))["steps"][0]["step_id"] == "a"
    assert found.explain().startswith("Graph: main\nStatus: completed\n  a (FunctionNode): ")


@pytest.mark.req("000/D12", "000/G5")
async def test_without_a_trace_nothing_is_gathered_and_the_structure_is_there_all_the_same() -> (
    None
):
    """Only payloads are optional; the structure is always recorded."""
    ran = await two_steps().run()

    names = [node["name"] for node in ran.calls.snapshot()["nodes"].values()]
    assert names == ["main", "a", "b"]


@pytest.mark.req("000/O2")
async def test_a_trace_tells_how_a_graph_ended() -> None:
    """A limit is reported as failed, a cancel request as cancelled."""

    def fails(context: ExecutionContext) -> None:
        raise ValueError("the valve is stuck")

    graph = Graph("main")
    graph.add_step(FunctionNode("n", fails), "a")
    failed, halted, cancelled = trace(), trace(), trace()
    token = CancellationToken()
    token.cancel("enough")
    with pytest.raises(ValueError, match="the valve is stuck"):
        await graph.execute(ExecutionContext(trace=failed))
    with pytest.raises(BudgetExceededError):
        await graph.execute(ExecutionContext(trace=halted, budget=Budget(max_steps=0)))
    with pytest.raises(CancelledError):
        await graph.execute(ExecutionContext(trace=cancelled, cancellation=token))

    assert (failed.status, failed.error) == ("failed", "ValueError: the valve is stuck")
    assert failed.steps[0].error == "ValueError: the valve is stuck"
    assert halted.status == "failed"
    assert "Step limit exceeded: 0 used, limit 0" in str(halted.error)
    assert (cancelled.status, cancelled.error) == ("cancelled", "enough")


@pytest.mark.req("000/O1", "000/O3")
async def test_nested_graphs_and_attempts_stand_in_the_trace() -> None:
    """A nested step is listed by path; the calls below a step are found by its CallNode."""
    attempts: list[int] = []

    def fails_once(context: ExecutionContext) -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError
        return "worked"

    inner = Graph("inner")
    inner.add_step(
        FunctionNode("n", fails_once),
        "x",
        error_policy=ErrorPolicy(on_error="retry", retry_count=1, retry_delay_ms=0),
    )
    outer = Graph("outer")
    outer.add_step(inner, "a")
    found = trace()
    ran = await outer.run(ExecutionContext(trace=found))

    steps = {step.step_id: step for step in found.steps}
    assert steps.keys() == {"a", "a/x"}
    assert steps["a/x"].metadata["attempts"] == 2
    node = ran.calls.snapshot()["nodes"][steps["a/x"].metadata["trace_node"]]
    assert (node["name"], node["retries_used"]) == ("a/x", 1)
    assert ran.calls.snapshot()["aggregates"]["total_retries"] == 1


@pytest.mark.req("000/perf", "000/D12")
async def test_tracing_makes_nothing_and_reads_no_clock_while_steps_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records are created after the run; ``make bench ARGS=tracing`` measures the cost."""
    made: list[str] = []
    read: list[int] = []

    class CountedRecord(StepRecord):
        __slots__ = ()

        def __init__(self, step_id: str, *others: object) -> None:
            made.append(step_id)
            super().__init__(step_id, *others)  # type: ignore[arg-type]

    def counted_ns() -> int:
        read.append(1)
        return 1

    monkeypatch.setattr(report, "StepRecord", CountedRecord)
    monkeypatch.setattr(time, "monotonic_ns", counted_ns)
    reads = []
    for context in (ExecutionContext(), ExecutionContext(trace=trace())):
        read.clear()
        await two_steps().execute(context)
        reads.append(len(read))
    assert made == []
    assert reads[0] == reads[1] > 0

    assert context.trace is not None
    assert [step.step_id for step in context.trace.steps] == ["a", "b"]
    assert made == ["a", "b"]


@pytest.mark.req("000/perf")
async def test_tracing_adds_less_than_5_percent_of_work_to_100_steps() -> None:
    """Calls, lines and objects are counted three times, so a slow machine does not matter."""
    graph, before = Graph("main"), list[str]()
    for number in range(100):
        graph.add_step(FunctionNode("one", lambda context: 1), f"s{number}", depends_on=before)
        before = [f"s{number}"]
    await graph.execute(ExecutionContext())  # warm up one-time work

    async def counted(traced: ExecutionTrace | None) -> tuple[int, int, int]:
        allocated = sys.getallocatedblocks()
        with counted_calls(lines=True) as work:
            await graph.execute(ExecutionContext(trace=traced))
        return work.calls, work.lines, sys.getallocatedblocks() - allocated

    counts = [(await counted(None), await counted(trace())) for _ in range(3)]
    plain, traced = (list(map(min, *each)) for each in zip(*counts, strict=True))

    assert (plain[0] > 5_000, plain[1] > 20_000) == (True, True), plain
    assert traced[0] < 1.05 * plain[0], (plain, traced)
    assert traced[1] < 1.05 * plain[1], (plain, traced)
    assert traced[2] - plain[2] < 12 * 100, (plain, traced)


@pytest.mark.req("000/perf")
async def test_tracing_waits_for_nothing() -> None:
    """Trivial steps never leave the event loop without work, with or without a trace."""
    graph, before = Graph("main"), list[str]()
    for number in range(100):
        graph.add_step(FunctionNode("one", lambda context: 1), f"s{number}", depends_on=before)
        before = [f"s{number}"]

    for traced in (None, trace()):
        with counted_waits() as waits:
            await graph.execute(ExecutionContext(trace=traced))

        assert waits == []


@pytest.mark.req("000/perf")
async def test_a_wait_of_a_step_is_noticed() -> None:
    """The count sees a pause of a step, and a thread that works."""

    async def pauses(context: ExecutionContext) -> int:
        await asyncio.sleep(0.002)
        return await asyncio.to_thread(lambda: 1)

    graph = Graph("main")
    graph.add_step(FunctionNode("one", pauses), "s")

    with counted_waits() as waits:
        await graph.execute(ExecutionContext(trace=trace()))

    assert any(wait is not None and wait > 0 for wait in waits)


async def test_a_trace_that_is_kept_keeps_nothing_of_the_run_alive() -> None:
    """The trace keeps only its own data; other objects are freed without the garbage collector."""
    found, token = trace(), CancellationToken()
    gone = weakref.ref(token)
    gc.disable()
    try:
        await two_steps().execute(ExecutionContext(trace=found, cancellation=token))
        del token

        assert gone() is None
    finally:
        gc.enable()
    assert [step.output for step in found.steps] == [42, 43]
