"""Graphs inside steps share one budget, one stop, one pool of step slots and one trace."""

import asyncio
from typing import Any

import pytest

from caseworker.core.budget import stops
from caseworker.core.budget.budget import Budget, Dimension
from caseworker.core.budget.retry import ErrorPolicy
from caseworker.core.budget.usage import BudgetExceededError
from caseworker.engine.concurrency import StepSlots
from caseworker.engine.context import ExecutionResult, FlowContext
from caseworker.engine.ports import CallOutcome, Entry
from caseworker.engine.report import RecordedFailureError, class_of
from tests.unit.engine.driving import (
    GraphRun,
    Inputs,
    OurError,
    Scripted,
    drive,
    flow,
    graph,
    nests,
    statuses,
)

OUTER = graph("ABC", flow("A", "B"), flow("B", "C"))
INNER = graph("xyz", flow("x", "y"), flow("y", "z"))


@pytest.mark.req("000/B5")
def test_a_nested_graph_is_executed_inside_its_step() -> None:
    """A nested graph gets its step's inputs; its steps are below the step in trace and path."""
    node = Scripted()
    node.works["B"] = nests(INNER, node)
    outcome, world = drive(OUTER, node)

    assert outcome.steps["B"].outputs == {
        "default": {"x": {"default": "x"}, "y": {"default": "y"}, "z": {"default": "z"}}
    }
    assert dict(node.seen)["x"] == {"default": "A"}
    nodes = {n["name"]: n for n in world.gateway.graph.snapshot()["nodes"].values()}
    assert nodes["B/y"]["parent_id"] == nodes["B"]["node_id"]
    assert world.lifecycle("B/z") == ["step.started", "step.completed"]
    assert world.gateway.spent() == {"steps": 6}


@pytest.mark.req("000/B5")
@pytest.mark.parametrize("limit", range(7))
def test_a_nested_graph_shares_the_budget_of_its_run(limit: int) -> None:
    """Steps of a nested graph count against the step limit of the run."""
    node = Scripted()
    node.works["B"] = nests(INNER, node)
    outcome, world = drive(OUTER, node, budget=Budget(max_steps=limit))

    assert len(node.seen) == limit
    assert world.gateway.spent().get("steps", 0) == limit
    assert isinstance(outcome.stop, BudgetExceededError) is (limit < 6)
    if limit == 4:
        kept: Any = outcome.steps["B"].outputs["default"]
        assert list(kept) == ["x", "y"]


@pytest.mark.req("000/B5")
@pytest.mark.parametrize(
    ("own", "whole", "scope", "executed"),
    [(2, None, "run/B", 4), (None, 4, "run", 4), (2, 5, "run/B", 4), (9, 3, "run", 3)],
)
def test_whichever_limit_is_met_first_stops_the_step(
    own: int | None, whole: int | None, scope: str, executed: int
) -> None:
    """The sub-budget or the run's budget stops the step; the error names the scope."""
    node = Scripted()
    node.works["B"] = nests(INNER, node)
    outcome, _ = drive(
        OUTER,
        node,
        budget=Budget(max_steps=whole),
        limits={"B": {"sub_budget": Budget(max_steps=own)}},
    )

    assert isinstance(outcome.stop, BudgetExceededError)
    assert (outcome.stop.cause.scope, outcome.stop.cause.dimension) == (scope, "steps")
    assert len(node.seen) == executed


@pytest.mark.req("000/B5")
def test_what_a_sub_budget_has_spent_counts_above_it() -> None:
    """Spending within sub-budgets counts against the run and is not refunded for later steps."""

    async def spends(context: FlowContext, inputs: Inputs) -> Inputs:
        context.scope.charge({Dimension.TOKENS: 5})
        return {"default": None}

    outcome, world = drive(
        OUTER,
        Scripted(A=spends, B=spends, C=spends),
        budget=Budget(max_tokens=12),
        limits={step_id: {"sub_budget": Budget(max_tokens=5)} for step_id in "ABC"},
    )

    assert statuses(outcome) == {"A": "completed", "B": "completed", "C": "halted"}
    assert outcome.stop is not None
    assert outcome.stop.cause.scope == "run"
    assert world.gateway.spent() == {"tokens": 10, "steps": 3}


@pytest.mark.req("000/B5")
def test_the_seconds_of_a_sub_budget_interrupt_work_in_flight() -> None:
    """A sub-budget of ten seconds interrupts a step that takes an hour."""

    async def slow(context: FlowContext, inputs: Inputs) -> Inputs:
        await asyncio.sleep(3600)
        return {}

    outcome, world = drive(
        OUTER,
        Scripted(B=slow),
        limits={"B": {"sub_budget": Budget(max_time_seconds=10)}},
    )

    assert isinstance(outcome.stop, BudgetExceededError)
    assert (outcome.stop.cause.scope, outcome.stop.cause.dimension) == ("run/B", "seconds")
    assert world.ended_at == pytest.approx(11)


@pytest.mark.req("000/B5")
def test_a_sub_budget_remembers_what_was_spent_before_its_worker_was_lost() -> None:
    """A recovered step's sub-budget keeps its earlier charges, so a restart does not reset it."""

    async def spends(context: FlowContext, inputs: Inputs) -> Inputs:
        context.scope.charge({Dimension.TOKENS: 5})
        return {"default": None}

    def before(world: GraphRun) -> None:
        journal = world.gateway.journal
        journal.remember("step:B", CallOutcome.UNKNOWN, hashed="")
        journal.earlier_charges["B"] = {Dimension.TOKENS: 6}

    outcome, world = drive(
        OUTER,
        Scripted(B=spends),
        limits={"B": {"sub_budget": Budget(max_tokens=10)}},
        before=before,
    )

    assert outcome.stop is not None
    assert outcome.stop.cause.scope == "run/B"
    assert world.lifecycle("B") == ["step.resumed", "step.cancelled"]


def test_a_failure_inside_is_the_failure_of_the_step() -> None:
    """The error of a nested step reaches the policy of the outer step unchanged."""
    error = OurError("Deep inside.")

    async def fails(context: FlowContext, inputs: Inputs) -> Inputs:
        raise error

    node = Scripted(y=fails)
    node.works["B"] = nests(INNER, node)
    outcome, _ = drive(
        OUTER, node, limits={"B": {"policy": ErrorPolicy(on_error="skip", fallback_value=0)}}
    )

    assert set(statuses(outcome).values()) == {"completed"}
    assert outcome.steps["B"].error is error


@pytest.mark.req("000/C3")
def test_a_wish_to_stop_reaches_the_steps_of_a_nested_graph() -> None:
    """A cancel request stops a nested step and keeps the outputs of finished nested steps."""
    node = Scripted()
    node.works["B"] = nests(INNER, node)

    def before(world: GraphRun) -> None:
        asyncio.get_running_loop().call_later(3.5, world.gateway.token.cancel)

    outcome, world = drive(OUTER, node, before=before)

    assert isinstance(outcome.stop, stops.CancelledError)
    assert world.ended_at == pytest.approx(3.5)
    assert world.lifecycle("B/y") == ["step.started", "step.cancelled"]
    kept: Any = outcome.steps["B"].outputs["default"]
    assert kept == {"x": {"default": "x"}}


@pytest.mark.req("000/P2")
def test_a_failing_sibling_drains_a_nested_graph_too() -> None:
    """After a sibling fails, nested steps clean up before the outer graph ends."""
    cleaned: list[str] = []

    async def fails(context: FlowContext, inputs: Inputs) -> Inputs:
        await asyncio.sleep(2)
        raise OurError("No.")

    async def cleans_up(context: FlowContext, inputs: Inputs) -> Inputs:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0.1)
            cleaned.append(context.path.text)
        return {}

    node = Scripted(A=fails, x=cleans_up, y=cleans_up)
    node.works["B"] = nests(graph("xy", max_parallel=2), node)
    outcome, world = drive(graph("AB", max_parallel=3), node)

    assert sorted(cleaned) == ["B/x", "B/y"]
    assert statuses(outcome) == {"A": "failed", "B": "cancelled"}
    assert world.lifecycle("B/x") == ["step.started", "step.cancelled"]


@pytest.mark.req("000/P1")
@pytest.mark.parametrize(("ceiling", "seconds"), [(64, 4), (2, 8), (1, 16)])
def test_nested_graphs_share_one_pool_of_lanes(ceiling: int, seconds: int) -> None:
    """Four nested graphs of four steps each share one pool: at most four steps run at once."""
    most = working = 0

    async def inner(context: FlowContext, inputs: Inputs) -> Inputs:
        nonlocal most, working
        working += 1
        most = max(most, working)
        await asyncio.sleep(1)
        working -= 1
        return {"default": None}

    class Quick(Scripted):
        async def execute(self, data: Any, inputs: Inputs, context: FlowContext) -> Any:

            return ExecutionResult(await self.works[context.node_id](context, inputs))

    node = Quick(**dict.fromkeys("wxyz", inner))
    wide = graph("wxyz", max_parallel=4)
    node.works |= dict.fromkeys("ABCD", nests(wide, node))

    def before(world: GraphRun) -> None:
        world.slots = StepSlots(ceiling)

    outcome, world = drive(graph("ABCD", max_parallel=4), node, before=before)

    assert set(statuses(outcome).values()) == {"completed"}
    assert most == min(4, ceiling)
    assert world.ended_at == pytest.approx(seconds)


def test_the_finished_steps_of_a_nested_graph_are_not_executed_again() -> None:
    """A recovered run skips the finished steps of a nested graph."""

    def before(world: GraphRun) -> None:
        journal = world.gateway.journal
        journal.remember("step:A", CallOutcome.RESULT, {"default": "from A"})
        journal.remember("step:B", CallOutcome.UNKNOWN, hashed="")
        journal.remember("step:B/x", CallOutcome.RESULT, {"default": "from x"})

    node = Scripted()
    node.works["B"] = nests(INNER, node)
    _, world = drive(OUTER, node, before=before)

    assert [step_id for step_id, _ in node.seen] == ["B", "y", "z", "C"]
    assert dict(node.seen)["y"] == {"default": "from x"}
    assert world.gateway.spent() == {"steps": 3}


@pytest.mark.req("004/lifecycle")
def test_a_graph_that_had_failed_is_not_taken_up_again() -> None:
    """It executes nothing and reports the recorded failure."""

    def before(world: GraphRun) -> None:
        journal = world.gateway.journal
        failure = {"error_class": "ValueError", "message": "No.", "outputs": {"so": "far"}}
        journal.remember("step:A", CallOutcome.RESULT, {"default": "from A"}, hashed="")
        journal.remember("step:B", CallOutcome.FAILURE, failure, hashed="")
        journal.remember("step:C", CallOutcome.UNKNOWN, hashed="")

    node = Scripted()
    outcome, world = drive(graph("ABC", max_parallel=3), node, before=before)

    assert node.seen == []
    assert isinstance(outcome.error, RecordedFailureError)
    assert (str(outcome.error), class_of(outcome.error)) == ("No.", "ValueError")
    assert statuses(outcome) == {"A": "completed", "B": "failed", "C": "not_started"}
    assert outcome.steps["A"].outputs == {"default": "from A"}
    assert outcome.steps["B"].outputs == {"so": "far"}
    assert world.told == []


@pytest.mark.parametrize("refuses", [False, True])
def test_a_failure_is_journaled_with_what_the_step_had_so_far(refuses: bool) -> None:
    """A failure is journaled with its partial outputs, or alone if they cannot be stored."""

    async def fails(context: FlowContext, inputs: Inputs) -> Inputs:
        context.keep(lambda: {"so": "far"})
        raise OurError("No.")

    def before(world: GraphRun) -> None:
        journal = world.gateway.journal
        note = journal.note

        def refuse(node_id: str, entry: Entry) -> None:
            if refuses and (entry.value or {}).get("outputs"):
                raise ValueError("Only JSON can be stored.")
            note(node_id, entry)

        journal.note = refuse  # type: ignore[method-assign]

    _, world = drive(graph("A"), Scripted(A=fails), before=before)
    noted = world.gateway.entry(2)

    assert noted.outcome is CallOutcome.FAILURE
    outputs = {} if refuses else {"so": "far"}
    failure = {"error_class": "OurError", "message": "No.", "attempts": 1}
    assert noted.value == {**failure, "outputs": outputs}
