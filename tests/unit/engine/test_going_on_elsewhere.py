"""Runs that another process resumes, and runs that this process resumes."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.retry import ErrorPolicy
from caseworker.core.budget.stops import HandOver
from caseworker.engine.context import FlowContext
from caseworker.engine.ports import CallOutcome
from tests.support.seeded_loop import deaf
from tests.unit.engine.driving import (
    GraphRun,
    OurError,
    Scripted,
    drive,
    flow,
    graph,
    nests,
    statuses,
)

Inputs = Mapping[str, Any]

WIDE = graph("AB", max_parallel=2)


async def waits(context: FlowContext, inputs: Inputs) -> Inputs:
    await asyncio.sleep(100)
    return {}


async def stubborn(context: FlowContext, inputs: Inputs) -> Inputs:
    await deaf(100)
    return {"default": "too late"}


def hands_over_after(seconds: float) -> Any:
    def before(world: GraphRun) -> None:
        stop = HandOver("The process is shutting down.")
        asyncio.get_running_loop().call_later(seconds, world.gateway.token.trip, stop)

    return before


@pytest.mark.req("004/lifecycle")
def test_a_step_that_goes_on_elsewhere_has_no_end_although_a_sibling_gave_the_run_up() -> None:
    """Both steps are resumed elsewhere after one of them handed the run over."""

    async def gives_up(context: FlowContext, inputs: Inputs) -> Inputs:
        await asyncio.sleep(1)
        raise HandOver("The database answers too slowly.")

    outcome, world = drive(WIDE, Scripted(A=gives_up, B=waits))

    assert isinstance(outcome.stop, HandOver)
    assert world.lifecycle("A") == world.lifecycle("B") == ["step.started"]


@pytest.mark.req("004/lifecycle")
def test_a_step_that_ignores_a_hand_over_has_no_end_here() -> None:
    """A step that ignores a hand-over is abandoned without an end event and resumed elsewhere."""
    node = Scripted(A=stubborn, x=stubborn)
    node.works["B"] = nests(graph("x"), node)
    outcome, world = drive(WIDE, node, before=hands_over_after(5), after_seconds=200)

    assert isinstance(outcome.stop, HandOver)
    assert statuses(outcome) == {"A": "cancelled", "B": "cancelled"}
    assert [world.lifecycle(path) for path in ("A", "B", "B/x")] == [["step.started"]] * 3
    assert {path: world.nodes()[path][0] for path in ("A", "B", "B/x")} == dict.fromkeys(
        ("A", "B", "B/x"), "halt"
    )


@pytest.mark.req("000/B3")
@pytest.mark.parametrize("seed", range(10))
def test_what_a_recorded_step_produced_is_kept_if_the_run_is_stopped_at_once(seed: int) -> None:
    """Recorded results are kept even if the deadline passed while the run was queued again."""

    def before(world: GraphRun) -> None:
        for step_id in "AB":
            recorded = {"default": f"from {step_id}"}
            world.gateway.journal.remember(f"step:{step_id}", CallOutcome.RESULT, recorded)
        world.gateway.token.cancel("too late")

    outcome, world = drive(graph("ABC", max_parallel=3), before=before, seed=seed)

    assert str(outcome.stop) == "too late"
    assert statuses(outcome) == {"A": "completed", "B": "completed", "C": "not_started"}
    assert outcome.steps["B"].outputs == {"default": "from B"}
    assert world.node.seen == []


@pytest.mark.req("000/E2")
def test_attempts_that_had_failed_are_not_made_again() -> None:
    """A resumed step continues with the attempt that its lost worker was executing."""
    node = Scripted()
    began: list[str] = []

    async def fails(context: FlowContext, inputs: Inputs) -> Inputs:
        began.append(context.path.text)
        if context.path.text != "A~3":
            raise OurError("Not yet.")
        return {"default": "at last"}

    node.works["A"] = fails
    limits = {"A": {"policy": ErrorPolicy(on_error="retry", retry_count=2)}}
    cut, first = drive(graph("A"), node, limits=limits, before=hands_over_after(2.5))
    [entry] = [e for e in first.gateway.journal.entries.values() if e.call_key == "step:A"]

    def before(world: GraphRun) -> None:
        world.gateway.journal.remember("step:A", CallOutcome.UNKNOWN, entry.value, hashed="")

    outcome, world = drive(graph("A"), node, limits=limits, before=before)

    assert began == ["A", "A~2", "A~3"]
    assert isinstance(cut.stop, HandOver)
    assert outcome.steps["A"].outputs == {"default": "at last"}
    assert world.gateway.spent() == {}


def test_the_pause_before_an_attempt_that_had_begun_is_not_waited_again() -> None:
    """A resumed attempt skips the retry delay that was over when the worker was lost."""
    began: list[tuple[str, float]] = []
    node = Scripted()

    async def works(context: FlowContext, inputs: Inputs) -> Inputs:
        began.append((context.path.text, asyncio.get_running_loop().time()))
        if context.path.text == "A":
            raise OurError("Not yet.")
        await asyncio.sleep(100)
        return {"default": "at last"}

    node.works["A"] = works
    limits = {"A": {"policy": ErrorPolicy(on_error="retry", retry_count=1)}}
    _, first = drive(graph("A"), node, limits=limits, before=hands_over_after(50))
    [entry] = [e for e in first.gateway.journal.entries.values() if e.call_key == "step:A"]
    [(_, at_once), (_, after_the_pause)] = began

    def before(world: GraphRun) -> None:
        world.gateway.journal.remember("step:A", CallOutcome.UNKNOWN, entry.value, hashed="")

    began.clear()
    outcome, _ = drive(graph("A"), node, limits=limits, before=before)

    assert after_the_pause > at_once
    assert began == [("A~2", at_once)]
    assert outcome.steps["A"].outputs == {"default": "at last"}


@pytest.mark.req("000/E2")
def test_a_step_whose_attempts_were_used_up_goes_on_with_its_fallback_value() -> None:
    """A step with exhausted attempts returns its fallback value without another execution."""

    def before(world: GraphRun) -> None:
        failed = {"failed_attempts": 2, "error_class": "OurError", "message": "No."}
        world.gateway.journal.remember("step:A", CallOutcome.UNKNOWN, failed, hashed="")

    policy = ErrorPolicy(on_error="skip", retry_count=1, fallback_value="instead")
    outcome, world = drive(graph("A"), limits={"A": {"policy": policy}}, before=before)

    assert outcome.steps["A"].outputs == {"default": "instead"}
    assert str(outcome.steps["A"].error) == "No."
    assert world.node.seen == []


def test_a_step_that_was_made_good_says_so_after_its_worker_was_lost_too() -> None:
    """A resumed run still reports the error and the policy that recovered the step."""

    async def fails(context: FlowContext, inputs: Inputs) -> Inputs:
        raise OurError("No.")

    limits = {"A": {"policy": ErrorPolicy(on_error="skip", fallback_value="instead")}}
    whole, first = drive(graph("AB", flow("A", "B")), Scripted(A=fails), limits=limits)
    noted = {e.call_key: e for e in first.gateway.journal.entries.values()}

    def before(world: GraphRun) -> None:
        entry = noted["step:A"]
        assert entry.outcome is not None
        world.gateway.journal.remember("step:A", entry.outcome, entry.value, hashed="")

    resumed, _ = drive(graph("AB", flow("A", "B")), limits=limits, before=before)

    for outcome in (whole, resumed):
        report = outcome.steps["A"]
        assert (report.recovered_by, str(report.error)) == ("skip", "No.")
        assert report.outputs == {"default": "instead"}


def test_a_nested_step_that_was_made_good_gives_what_took_its_place() -> None:
    """A nested step returns its fallback value, not the partial output from before its failure."""

    async def fails(context: FlowContext, inputs: Inputs) -> Inputs:
        context.keep(lambda: {"default": "half"})
        raise OurError("No.")

    async def completes(context: FlowContext, inputs: Inputs) -> Inputs:
        context.keep(lambda: {"default": "half"})
        return {"default": "whole"}

    node = Scripted(x=fails, y=completes)
    skip = {"policy": ErrorPolicy(on_error="skip", fallback_value="instead")}
    node.works["B"] = nests(graph("xy"), node, x=skip)
    outcome, _ = drive(graph("B"), node, budget=Budget())

    assert outcome.steps["B"].outputs == {
        "default": {"x": {"default": "instead"}, "y": {"default": "whole"}}
    }
