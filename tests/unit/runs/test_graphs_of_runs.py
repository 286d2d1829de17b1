"""Runs of graphs with several steps, and their stored records."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from caseworker.core.graph.validation import Handles
from caseworker.engine.context import ExecutionResult, FlowContext
from caseworker.engine.prepared import PreparedGraph
from caseworker.nodes.catalog import NodeCatalog
from caseworker.nodes.node_type import NodeType
from caseworker.nodes.strict_parsing import StepData
from caseworker.runs.run import Deaths, NewRun, RunKind, RunRequest, RunStatus
from tests.support.limits import executor_limits
from tests.support.memory_rows import run_of
from tests.support.runs import GRACE, KEY, RunProcess, call, database, run_story
from tests.unit.runs.works import deaf_attempt


class Nothing(StepData):
    """The empty configuration of a step."""


class Works:
    """Executes each step with the function that a test defines."""

    def __init__(self, **works: Any) -> None:
        self.works = works
        self.begun: list[str] = []

    async def execute(
        self, data: Any, inputs: Mapping[str, Any], context: FlowContext
    ) -> ExecutionResult:
        self.begun.append(context.path.text)
        work = self.works.get(context.node_id)
        return ExecutionResult({"default": "done" if work is None else await work(context)})


def process(node: Works, store: Any = None, **settings: Any) -> RunProcess:
    """Return a process whose graphs consist of steps of one type."""
    return RunProcess(store=store, catalog=NodeCatalog((kind_of(node),)), **settings)


def kind_of(node: Works) -> NodeType:
    """Return the type of the steps."""
    return NodeType(name="work", description="A test.", node=node, data=Nothing, handles=Handles())


def new_graph(*step_ids: str, policies: Mapping[str, Any] = {}, **graph: Any) -> NewRun:
    steps = [
        {"id": step_id, "type": "work", "data": {}}
        | ({"policy": policies[step_id]} if step_id in policies else {})
        for step_id in step_ids
    ]
    document = {"steps": steps, "edges": [], "max_parallel": 8, **graph}
    request = RunRequest(kind=RunKind.GRAPH, graph=document)
    return NewRun(key=KEY, request=request, request_hash="h")


async def deaf_call(context: FlowContext) -> str:
    await call(context, "deaf", deaf_attempt, key=f"{context.path}/deaf")
    return "late"


async def waits(context: FlowContext) -> str:
    await asyncio.sleep(1000)
    return "never"


@pytest.mark.parametrize("case", ["drained", "timed out"])
def test_the_cost_of_abandoned_work_is_added_wherever_it_was_abandoned(case: str) -> None:
    """The step is abandoned by a cancelled graph, among other steps, or by its own timeout."""

    async def story() -> None:
        node = Works(A=deaf_call, B=waits)
        policies = {"A": {"on_error": "skip", "timeout_ms": 1000}} if case == "timed out" else {}
        one = process(node)
        await one.post(new_graph("A", "B", policies=policies))
        await asyncio.sleep(1 + GRACE + 2)
        await one.service.cancel(KEY, by="ops")
        run = await one.end_of()
        assert run.status is RunStatus.CANCELLED
        assert run.usage is not None
        assert (run.usage["tokens"], run.usage["api_calls"]) == (100, 1)

        await asyncio.sleep(60)
        later = await one.service.get(KEY)
        assert later.usage is not None
        assert (later.usage["tokens"], later.usage["api_calls"]) == (55, 1)
        log = [event.type for _, event in sorted(one.store.rows[KEY].events.items())]
        assert log[-2:] == ["run.cancelled", "late_result"]
        [late] = [r for r in await one.store.calls(KEY) if r.node["name"] == "deaf"]
        assert (late.node["status"], late.node["tokens_in"]) == ("halt", 50)

    run_story(story)


@pytest.mark.req("000/B3")
def test_a_run_against_which_too_many_deaths_count_keeps_what_it_had() -> None:
    """The result holds the outputs of finished steps; other losses do not count."""

    async def story() -> None:
        store, limits = database(), executor_limits(max_attempts=2)
        node = Works(B=waits)
        await process(node, store, limits=limits).post(new_graph("A", "B"))
        for loss in range(3):
            await asyncio.sleep(5)
            store.lose(f"p{loss + 1}")
            if loss == 2:
                run = run_of(store.rows[KEY])
                deaths = Deaths(count=2, calls=("crash",), cause="SIGSEGV")
                store.rows[KEY].run = replace(run, deaths=deaths)
            again = process(node, store, name=f"p{loss + 2}", limits=limits)
            await again.take()
        run = await again.end_of()
        assert run.status is RunStatus.FAILED
        assert run.stop is not None
        assert (run.stop["kind"], run.stop["call"]) == ("poisoned", "crash")
        assert run.result == {
            "outputs": {"A": {"default": "done"}},
            "steps": {"A": {"status": "completed"}, "B": {"status": "cancelled"}},
        }
        assert sorted(node.begun) == ["A", "B", "B", "B"]  # the first two start at once

    run_story(story)


def test_a_graph_that_was_made_ready_when_it_was_checked_is_not_read_again() -> None:
    """The run executes the prepared graph, and a new owner prepares it again."""

    async def story() -> None:
        store, node = database(), Works(A=waits)
        catalogs = CountingCatalog(node), CountingCatalog(node)
        one, other = (
            RunProcess(store=store, catalog=catalog, name=name)
            for catalog, name in zip(catalogs, ("p1", "p2"), strict=True)
        )
        new = new_graph("A")
        prepared, _ = CountingCatalog(node).examine(new.request.graph or {})

        await one.post(replace(new, prepared=prepared))
        await asyncio.sleep(5)
        store.lose("p1")
        await other.take()
        await asyncio.sleep(5)

        assert node.begun == ["A", "A"]
        assert [catalog.reads for catalog in catalogs] == [0, 1]
        await other.service.cancel(KEY, by="ops")
        await other.end_of()

    run_story(story)


class CountingCatalog(NodeCatalog):
    """A catalog that counts how often it prepares a graph for a run."""

    def __init__(self, node: Works) -> None:
        super().__init__((kind_of(node),))
        self.reads = 0

    def prepare(self, graph: Mapping[str, Any], *, graph_id: str) -> PreparedGraph:
        self.reads += 1
        return super().prepare(graph, graph_id=graph_id)
