"""Executing a graph: the scheduler orders, the driver obeys."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from app.control import stops
from app.control.budget import Budget, Dimension
from app.control.stops import HandOver
from app.control.usage import BudgetExceededError
from app.engine.context import FlowContext
from app.engine.driver import Driver, GraphExecution, GraphOutcome, RunContext
from app.engine.node import ExecutionResult
from app.engine.ports import CallOutcome
from app.engine.settling import AbandonedError, Supervisor
from app.kernel.errors import GraphError
from app.kernel.graph import Channel, Edge, Graph, Step
from app.kernel.lifecycle import StepStatus
from tests.support.seeded_loop import SeededLoop
from tests.unit.engine.gateway import Gateway, play

Work = Callable[[FlowContext, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


class OurError(Exception):
    """A failure whose words are ours."""

    __module__ = "app.nodes.test"


class Scripted:
    """A node that does for each step what a test says; others return their inputs."""

    def __init__(self, **works: Work) -> None:
        self.works = works
        self.seen: list[tuple[str, Mapping[str, Any]]] = []

    async def execute(
        self, data: Mapping[str, Any], inputs: Mapping[str, Any], context: FlowContext
    ) -> ExecutionResult:
        self.seen.append((context.node_id, inputs))
        await asyncio.sleep(1)
        work = self.works.get(context.node_id)
        outputs = {"default": context.node_id} if work is None else await work(context, inputs)
        return ExecutionResult(outputs)


def flow(source: str, target: str, handle: str = "default", into: str = "default") -> Edge:
    return Edge(
        source=source,
        target=target,
        source_handle=handle,
        target_handle=into,
        channel=Channel.FLOW,
    )


def graph(steps: str, *edges: Edge) -> Graph:
    return Graph(id="g", steps=tuple(Step(id=s, type="scripted") for s in steps), edges=edges)


CHAIN = graph("ABC", flow("A", "B"), flow("B", "C"))


class World:
    """One run of a graph."""

    def __init__(self, node: Scripted, budget: Budget) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SeededLoop)
        self.node = node
        self.gateway = Gateway(loop, budget=budget)

    def execution(self, of: Graph, inputs: Mapping[str, Any]) -> GraphExecution:
        gateway = self.gateway
        run = RunContext(
            run_id="run-1",
            root=gateway.root,
            trace=gateway.graph,
            scope=gateway.scope,
            token=gateway.token,
            journal=gateway.journal,
            calls=gateway.calls,
            services={},
        )
        return Driver({"scripted": self.node}).execution(of, inputs, run)

    def nodes(self) -> dict[str, tuple[str, str | None]]:
        """Status and stop reason of the last CallNode of each step."""
        found = self.gateway.graph.snapshot()["nodes"].values()
        return {node["name"]: (node["status"], node["stop_reason"]) for node in found}


def drive(
    of: Graph,
    node: Scripted | None = None,
    *,
    budget: Budget | None = None,
    inputs: Mapping[str, Any] | None = None,
    before: Callable[[World], None] = lambda world: None,
    seed: int = 0,
) -> tuple[GraphOutcome, World]:
    """Execute a graph under a supervisor, on virtual time."""

    async def main() -> tuple[GraphOutcome, World]:
        world = World(node or Scripted(), budget or Budget())
        before(world)
        execution = world.execution(of, inputs or {})
        token = world.gateway.token
        supervisor = Supervisor(grace_seconds=1)
        try:
            outcome = await supervisor.run(execution.run(), token, late=lambda _: None)
        except AbandonedError as abandoned:
            outcome = execution.abandoned(abandoned.stop)
            await asyncio.sleep(100)
        assert world.gateway.settled()
        return outcome, world

    result: tuple[GraphOutcome, World] = play(main, seed)
    return result


def statuses(outcome: GraphOutcome) -> dict[str, str]:
    return {step: report.status.value for step, report in outcome.steps.items()}


def test_values_travel_along_flow_edges() -> None:
    """From an output handle to an input handle; the inputs of the graph go to its entries."""

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


def test_steps_on_dead_paths_are_reported_and_never_started() -> None:
    """There is neither a CallNode nor a charge for them."""

    async def only_yes(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"yes": True}

    outcome, world = drive(
        graph("ABC", flow("A", "B", "yes"), flow("A", "C", "no")), Scripted(A=only_yes)
    )

    assert statuses(outcome) == {"A": "completed", "B": "completed", "C": "skipped"}
    assert "C" not in world.nodes()
    assert world.gateway.spent() == {"steps": 2}


@pytest.mark.req("000/B1")
@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_a_limit_of_n_steps_executes_exactly_n(limit: int) -> None:
    """The step that is refused is cancelled, with the reason on its node; results are kept."""
    outcome, world = drive(CHAIN, budget=Budget(max_steps=limit))

    done = [step for step, status in statuses(outcome).items() if status == "completed"]
    assert done == list("ABC")[:limit]
    if limit == 3:
        assert outcome.stop is None
        return
    refused = "ABC"[limit]
    assert isinstance(outcome.stop, BudgetExceededError)
    assert outcome.stop.cause.dimension == "steps"
    assert outcome.steps[refused].status is StepStatus.CANCELLED
    assert world.nodes()[refused] == ("halt", f"Step limit exceeded: {limit}/{limit} (scope run)")
    assert [step for step, _ in world.node.seen] == done


@pytest.mark.req("000/B3")
def test_a_step_that_a_limit_stops_keeps_what_it_had_so_far() -> None:
    """And the steps before it keep their results."""

    async def stopped(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        found = ["first"]
        context.keep(lambda: {"found": list(found)})
        found.append("second")
        context.scope.require_something_left()
        raise AssertionError

    outcome, _ = drive(CHAIN, Scripted(B=stopped), budget=Budget(max_tokens=0))

    assert isinstance(outcome.stop, BudgetExceededError)
    assert outcome.steps["A"].outputs == {"default": "A"}
    assert outcome.steps["B"].outputs == {"found": ["first", "second"]}
    assert statuses(outcome) == {"A": "completed", "B": "cancelled", "C": "pending"}


def test_an_overshoot_halts_the_next_step_and_keeps_the_finished_one() -> None:
    """A used more tokens than there were."""

    async def greedy(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        context.scope.add({Dimension.TOKENS: 101})
        return {"default": "A"}

    outcome, _ = drive(CHAIN, Scripted(A=greedy), budget=Budget(max_tokens=100))

    assert statuses(outcome) == {"A": "completed", "B": "cancelled", "C": "pending"}
    assert outcome.stop is not None
    assert outcome.stop.cause.dimension == "tokens"


@pytest.mark.req("000/C3")
def test_a_stop_is_heard_before_a_step() -> None:
    """A token that was tripped before lets nothing start."""
    outcome, world = drive(CHAIN, before=lambda world: world.gateway.token.cancel("early"))

    assert isinstance(outcome.stop, stops.CancelledError)
    assert set(statuses(outcome).values()) == {"pending"}
    assert world.node.seen == []


@pytest.mark.req("000/C3")
def test_a_stop_is_heard_after_a_step_whose_result_is_kept() -> None:
    """It had ended; only the next one does not begin."""

    async def last_words(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        context.token.cancel("enough")
        return {"default": "said"}

    outcome, world = drive(CHAIN, Scripted(A=last_words))

    assert str(outcome.stop) == "enough"
    assert statuses(outcome) == {"A": "completed", "B": "pending", "C": "pending"}
    assert outcome.steps["A"].outputs == {"default": "said"}
    assert world.gateway.entry().outcome is CallOutcome.RESULT


@pytest.mark.req("000/C3")
@pytest.mark.parametrize("seed", range(20))
def test_a_stop_reaches_a_step_in_flight(seed: int) -> None:
    """It is cancelled at once and keeps what it had so far."""

    async def waits(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        context.keep(lambda: {"so": "far"})
        await asyncio.sleep(60)
        return {}

    def in_a_while(world: World) -> None:
        asyncio.get_running_loop().call_later(10, world.gateway.token.cancel, "enough")

    outcome, world = drive(CHAIN, Scripted(B=waits), before=in_a_while, seed=seed)

    assert str(outcome.stop) == "enough"
    assert outcome.steps["B"].outputs == {"so": "far"}
    assert world.nodes()["B"] == ("halt", "enough")
    assert statuses(outcome) == {"A": "completed", "B": "cancelled", "C": "pending"}


def test_a_failed_step_fails_the_graph() -> None:
    """With its error, what it had so far, and what the others had come to."""

    async def fails(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        context.keep(lambda: {"so": "far"})
        raise OurError("The big tier found nothing.")

    outcome, world = drive(CHAIN, Scripted(B=fails))

    assert isinstance(outcome.error, OurError)
    assert outcome.stop is None
    assert statuses(outcome) == {"A": "completed", "B": "failed", "C": "pending"}
    assert outcome.steps["B"].outputs == {"so": "far"}
    assert world.nodes()["B"] == ("fail", "The big tier found nothing.")


def test_the_words_of_a_foreign_error_do_not_reach_the_trace() -> None:
    """They could hold a secret or somebody's address."""

    async def fails(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        raise RuntimeError("key sk-123 of alice@example.org")

    _, world = drive(CHAIN, Scripted(A=fails))

    assert world.nodes()["A"] == ("fail", "It broke with RuntimeError.")


@pytest.mark.parametrize("how", ["returns nothing", "returns no JSON", "has no node"])
def test_a_node_that_does_not_keep_its_promise_fails_its_step(how: str) -> None:
    """The driver itself never raises."""

    async def breaks(context: FlowContext, inputs: Mapping[str, Any]) -> Any:
        return None if how == "returns nothing" else {"default": object()}

    def before(world: World) -> None:
        if how == "returns no JSON":
            world.gateway.journal.note = refuse  # type: ignore[method-assign]

    def refuse(node_id: str, entry: Any) -> None:
        if entry.value is not None:
            raise ValueError("Only JSON can be stored.")

    placed = Graph(id="g", steps=(Step(id="A", type="x" if how == "has no node" else "scripted"),))
    outcome, world = drive(placed, Scripted(A=breaks), before=before)

    assert statuses(outcome) == {"A": "failed"}
    assert outcome.error is not None
    assert world.nodes()["A"][0] == "fail"


def test_what_a_step_kept_may_break_without_breaking_its_end() -> None:
    """The stop matters more."""

    async def stopped(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        context.keep(lambda: dict[str, Any]()["nothing"])
        raise stops.CancelledError("enough")

    outcome, _ = drive(CHAIN, Scripted(A=stopped))

    assert str(outcome.stop) == "enough"
    assert outcome.steps["A"].outputs == {}


def test_something_cancelled_that_a_step_waited_for_is_a_failure_of_the_step() -> None:
    """Nobody has asked the run to end, so it must not vanish."""

    async def waits(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone
        return {}

    outcome, world = drive(CHAIN, Scripted(A=waits))

    assert statuses(outcome)["A"] == "failed"
    assert world.nodes()["A"] == ("fail", "The step waited for something that was cancelled.")


def test_a_wish_beats_a_hand_over_that_a_step_ran_into() -> None:
    """Or the run would go on elsewhere."""

    async def handed_over(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        context.token.cancel("stop it")
        raise HandOver("the database is slow")

    outcome, _ = drive(CHAIN, Scripted(A=handed_over))

    assert str(outcome.stop) == "stop it"


def test_work_that_was_abandoned_changes_nothing_any_more() -> None:
    """The graph stands as it stood; the late result of the step is dropped."""

    async def stubborn(context: FlowContext, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        context.keep(lambda: {"so": "far"})
        for _ in range(3):
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                continue
        return {"default": "late"}

    def in_a_while(world: World) -> None:
        asyncio.get_running_loop().call_later(10, world.gateway.token.cancel, "enough")

    outcome, world = drive(CHAIN, Scripted(B=stubborn), before=in_a_while)

    assert str(outcome.stop) == "enough"
    assert statuses(outcome) == {"A": "completed", "B": "cancelled", "C": "pending"}
    assert outcome.steps["B"].outputs == {"so": "far"}
    assert [step for step, _ in world.node.seen] == ["A", "B"]


def test_steps_that_wait_for_one_another_fail_the_graph() -> None:
    """It would seem completed otherwise."""
    outcome, _ = drive(graph("AB", flow("A", "B"), flow("B", "A")))

    assert isinstance(outcome.error, GraphError)


# -- going on with an earlier execution ----------------------------------------------------------


def test_a_step_that_an_earlier_execution_has_finished_is_not_executed_again() -> None:
    """Its outputs are those of then, and it is not charged again."""

    def earlier(world: World) -> None:
        world.gateway.journal.remember("step:A", CallOutcome.RESULT, {"default": "then"})

    outcome, world = drive(graph("AB", flow("A", "B")), before=earlier)

    assert world.node.seen == [("B", {"default": "then"})]
    assert statuses(outcome) == {"A": "completed", "B": "completed"}
    assert world.gateway.spent() == {"steps": 1}
    assert "A" not in world.nodes()


def test_a_step_that_an_earlier_execution_has_begun_is_executed_again_but_counted_once() -> None:
    """Even if the limit is used up since."""

    def earlier(world: World) -> None:
        world.gateway.journal.remember("step:A", CallOutcome.UNKNOWN)

    outcome, world = drive(graph("A"), before=earlier, budget=Budget(max_steps=0))

    assert statuses(outcome) == {"A": "completed"}
    assert world.gateway.spent() == {}


@pytest.mark.req("000/C3")
def test_a_step_begins_only_with_a_permission_to_go_on() -> None:
    """Whoever wants the run to stop may not be able to tell this process at once."""

    async def refuse() -> None:
        raise stops.CancelledError("wished elsewhere")

    def before(world: World) -> None:
        world.gateway.journal.at_barrier = refuse

    outcome, world = drive(CHAIN, before=before)

    assert str(outcome.stop) == "wished elsewhere"
    assert world.nodes()["A"] == ("halt", "wished elsewhere")
    assert world.node.seen == []
    assert world.gateway.spent() == {}
