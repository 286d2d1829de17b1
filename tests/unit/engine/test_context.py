"""The context that a node receives."""

import pytest

from caseworker.core.budget import stops
from caseworker.core.budget.budget import Budget, Dimension
from caseworker.core.budget.ledger import Scope
from caseworker.core.budget.stops import HandOver
from caseworker.core.budget.usage import BudgetExceededError, ResourceUsage
from caseworker.core.graph.graph import GraphStep, StepGraph
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.engine.calls import Calls
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.context import ExecutionContext, FlowContext, RunContext
from caseworker.engine.driver import GraphExecution
from caseworker.engine.prepared import PreparedGraph
from caseworker.engine.step_path import StepPath
from tests.unit.engine.gateway import MemoryJournal


@pytest.mark.req("000/B4", "000/G5")
def test_a_context_needs_nothing() -> None:
    """A context without budget and token refuses nothing."""
    context = ExecutionContext()

    context.check_budget()
    context.check_cancelled()
    assert (context.session, context.input, context.upstream) == (None, None, {})


@pytest.mark.req("000/B4", "000/B3")
def test_a_budget_is_checked_before_a_further_charge() -> None:
    """The error carries the usage, the budget and the reason, and names the dimension."""
    budget = Budget(max_tokens=100)
    context = ExecutionContext(budget=budget)
    context.usage.tokens_used += 99
    context.check_budget()

    context.usage.tokens_used += 1
    with pytest.raises(BudgetExceededError) as refused:
        context.check_budget()

    error = refused.value
    assert (error.usage, error.budget) == (context.usage, budget)
    assert error.reason == "The run's token budget is spent: 100 used, limit 100"
    assert error.cause.dimension is Dimension.TOKENS


@pytest.mark.req("000/B4", "000/C1")
def test_a_cancel_is_checked() -> None:
    """A cancelled token fails the check, with the reason of the cancel request."""
    token = CancellationToken()
    context = ExecutionContext(cancellation=token)
    context.check_cancelled()

    token.cancel("enough")
    with pytest.raises(stops.CancelledError, match="enough"):
        context.check_cancelled()


@pytest.mark.req("000/B4")
def test_another_input_makes_another_context_that_shares_all_the_rest() -> None:
    """A context with another input shares usage, session, token and budget with the original."""
    session = object()
    context = ExecutionContext(
        session=session,
        input=1,
        upstream={"a": 1},
        budget=Budget(max_steps=1),
        cancellation=CancellationToken(),
    )

    other = context.with_input(2)
    other.usage.steps_executed += 1

    assert (context.input, other.input) == (1, 2)
    assert other.session is session
    assert other.cancellation is context.cancellation
    assert other.upstream == {"a": 1}
    with pytest.raises(BudgetExceededError):
        context.check_budget()


@pytest.mark.req("000/B4")
def test_more_results_make_another_context_and_leave_the_old_one_alone() -> None:
    """New upstream results are added or replace earlier ones; the original stays unchanged."""
    context = ExecutionContext(upstream={"a": 1, "b": 1})

    other = context.with_upstream({"b": 2, "c": 2})

    assert other.upstream == {"a": 1, "b": 2, "c": 2}
    assert context.upstream == {"a": 1, "b": 1}


def test_two_contexts_do_not_share_their_defaults() -> None:
    """Each context counts its own usage."""
    one, other = ExecutionContext(), ExecutionContext()
    one.usage.api_calls += 1
    one.upstream["a"] = 1

    assert (other.usage.api_calls, other.upstream) == (0, {})


def flow_context(**services: object) -> FlowContext:
    graph, token = ExecutionGraph("run-1"), CancellationToken()
    calls = Calls(graph=graph, journal=MemoryJournal([]), token=token, jitter=lambda: 0.0)
    run = RunContext(
        run_id="run-1",
        root=graph.create_root("run"),
        trace=graph,
        scope=Scope("run", usage=ResourceUsage()),
        token=token,
        calls=calls,
        services={type(service): service for service in services.values()},
    )
    shape = StepGraph(id="g", steps=(GraphStep(id="step", type="any"),))
    view = GraphExecution(PreparedGraph(shape, {}), {}, run)
    return FlowContext(
        run, view, "step", StepPath("step"), run.root, run.scope, lambda source: None
    )


@pytest.mark.req("004/context")
def test_services_are_found_by_their_type() -> None:
    """A node finds a service by its type; a missing one raises LookupError."""
    stop = HandOver("a service of some type")
    context = flow_context(some=stop)

    assert context.service(HandOver) is stop
    with pytest.raises(LookupError, match="This run has no Budget"):
        context.service(Budget)
