"""The driver executes the steps that the scheduler orders."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.core.graph.graph import GraphError
from caseworker.engine.context import FlowContext
from caseworker.engine.ports import CallOutcome
from tests.unit.engine.driving import (
    CHAIN,
    GraphRun,
    OurError,
    Scripted,
    drive,
    flow,
    graph,
    statuses,
)


def test_values_travel_along_flow_edges() -> None:
    """Values travel from output handles to input handles; entry steps get the graph's inputs."""

    async def two(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"left": 1, "right": 2}

    node = Scripted(A=two)
    diamond = graph(
        "ABCD",
        flow("A", "B", "left", "one"),
        flow("A", "C", "right"),
        flow("B", "D", into="from_b"),
        flow("C", "D", into="from_c"),
    )

    outcome, world = drive(diamond, node, inputs={"question": "?"})

    assert dict(node.seen) == {
        "A": {"question": "?"},
        "B": {"one": 1},
        "C": {"default": 2},
        "D": {"from_b": "B", "from_c": "C"},
    }
    assert set(statuses(outcome).values()) == {"completed"}
    assert (outcome.error, outcome.stop) == (None, None)
    assert world.gateway.spent() == {"steps": 4}
    assert world.nodes()["D"] == ("success", None)


@pytest.mark.req("004/context")
def test_the_steps_of_a_run_share_its_state() -> None:
    """A step reads a value that an earlier step stored in the shared state."""

    async def leaves(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        context.state["left"] = "something"
        return {"default": None}

    async def finds(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"default": context.state["left"]}

    outcome, _ = drive(graph("AB", flow("A", "B")), Scripted(A=leaves, B=finds))

    assert outcome.steps["B"].outputs == {"default": "something"}


def test_steps_on_dead_paths_are_reported_and_never_started() -> None:
    """Steps on dead paths are skipped without a CallNode or a charge."""

    async def only_yes(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"yes": True}

    outcome, world = drive(
        graph("ABC", flow("A", "B", "yes"), flow("A", "C", "no")), Scripted(A=only_yes)
    )

    assert statuses(outcome) == {"A": "completed", "B": "completed", "C": "skipped"}
    assert "C" not in world.nodes()
    assert world.gateway.spent() == {"steps": 2}


def test_a_failed_step_fails_the_graph() -> None:
    """The outcome holds the step's error, its partial outputs and the results of other steps."""

    async def fails(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        context.keep(lambda: {"so": "far"})
        raise OurError("The big tier found nothing.")

    outcome, world = drive(CHAIN, Scripted(B=fails))

    assert isinstance(outcome.error, OurError)
    assert outcome.stop is None
    assert statuses(outcome) == {"A": "completed", "B": "failed", "C": "not_started"}
    assert outcome.steps["B"].outputs == {"so": "far"}
    assert world.nodes()["B"] == ("fail", "The big tier found nothing.")


def test_the_words_of_a_foreign_error_reach_the_trace_redacted() -> None:
    """The trace keeps a foreign error's message, with personal data redacted."""

    async def fails(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        raise RuntimeError("key sk-123 of alice@example.org")

    _, world = drive(CHAIN, Scripted(A=fails))

    assert world.nodes()["A"] == ("fail", "RuntimeError: key sk-123 of [email]")


@pytest.mark.parametrize("how", ["returns nothing", "returns no JSON"])
def test_a_node_that_does_not_keep_its_promise_fails_its_step(how: str) -> None:
    """A node that returns an invalid value fails its step; the driver itself never raises."""

    async def breaks(context: FlowContext, inputs: Mapping[str, Any]) -> Any:
        return None if how == "returns nothing" else {"default": object()}

    def before(world: GraphRun) -> None:
        if how == "returns no JSON":
            world.gateway.journal.note = refuse  # type: ignore[method-assign]

    def refuse(node_id: str, entry: Any) -> None:
        if entry.outcome is CallOutcome.RESULT:
            raise ValueError("Only JSON can be stored.")

    outcome, world = drive(graph("A"), Scripted(A=breaks), before=before)

    assert statuses(outcome) == {"A": "failed"}
    assert outcome.error is not None
    assert world.nodes()["A"][0] == "fail"


def test_something_cancelled_that_a_step_waited_for_is_a_failure_of_the_step() -> None:
    """A cancelled future that a step awaits fails the step; the run was not cancelled."""

    async def waits(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone
        return {}

    outcome, world = drive(CHAIN, Scripted(A=waits))

    assert statuses(outcome)["A"] == "failed"
    assert world.nodes()["A"] == ("fail", "The step waited for something that was cancelled.")


def test_steps_that_wait_for_one_another_fail_the_graph() -> None:
    """Steps that depend on each other fail the graph, which would otherwise seem completed."""
    outcome, _ = drive(graph("AB", flow("A", "B"), flow("B", "A")))

    assert isinstance(outcome.error, GraphError)


def test_a_step_that_an_earlier_execution_has_finished_is_not_executed_again() -> None:
    """A step that an earlier execution finished keeps its outputs and is not charged again."""

    def earlier(world: GraphRun) -> None:
        world.gateway.journal.remember("step:A", CallOutcome.RESULT, {"default": "then"})

    outcome, world = drive(graph("AB", flow("A", "B")), before=earlier)

    assert world.node.seen == [("B", {"default": "then"})]
    assert statuses(outcome) == {"A": "completed", "B": "completed"}
    assert world.gateway.spent() == {"steps": 1}
    assert "A" not in world.nodes()


def test_a_step_that_an_earlier_execution_has_begun_is_executed_again_but_counted_once() -> None:
    """A step that an earlier execution started is not counted again, even at an exhausted limit."""

    def earlier(world: GraphRun) -> None:
        world.gateway.journal.remember("step:A", CallOutcome.UNKNOWN)

    outcome, world = drive(graph("A"), before=earlier, budget=Budget(max_steps=0))

    assert statuses(outcome) == {"A": "completed"}
    assert world.gateway.spent() == {}
