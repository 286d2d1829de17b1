"""Random graphs executed on the seeded loop keep the promises of the engine."""

from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from caseworker.core.budget.budget import Dimension
from caseworker.core.graph.facts import StepStatus
from caseworker.core.graph.graph import Edge
from caseworker.core.graph.topology import Topology
from caseworker.engine.events import STEP_SKIPPED, STEP_STARTED, Event
from caseworker.engine.report import GraphOutcome
from tests.property.graph_stories import GRACE_SECONDS, Plan, PlannedRun, play_planned_run, world_of
from tests.support.graph_invariants import violations
from tests.support.memory_rows import STEP_ENDS
from tests.support.seeded_loop import run
from tests.support.seeds import seeds

ENDED = {StepStatus.COMPLETED, StepStatus.SKIPPED}


@pytest.mark.req("004/lifecycle", "004/subgraph", "000/B1", "000/B5", "000/C3", "000/P1", "000/P2")
@pytest.mark.guarantee(5, 6, 7)
@seeds(fast=200, proofs=2_000)
def test_every_promise_holds_for_every_graph(seeds: Iterable[int]) -> None:
    """Steps run in order, start and end once, stay within budget, and leave no task."""
    for seed in seeds:
        world, story = play_planned_run(seed)
        found = [*problems(world), *(f"left over: {task}" for task in story.leftover)]
        assert found == [], f"seed {seed}: {found}"


@seeds(fast=20, proofs=100, shards=1)
def test_the_same_seed_tells_the_same_story(seeds: Iterable[int]) -> None:
    """Two runs of a seed agree in every step of the loop and in every event."""
    for seed in seeds:
        one, first = play_planned_run(seed)
        other, second = play_planned_run(seed)
        assert first.digest == second.digest
        assert one.events == other.events


def test_the_stories_are_worth_their_time() -> None:
    """All kinds of ends, nested graphs, parallel steps, reached limits and late results occur."""
    seen = Counter[str]()
    for seed in range(100):
        world, _ = play_planned_run(seed)
        seen.update(_kinds(world))

    assert seen.keys() >= {
        "completed",
        "failed",
        "cancelled",
        "steps",
        "tokens",
        "seconds",
        "step.skipped",
        "step.error",
        "step.cancelled",
        "late_result",
        "nested",
        "parallel",
        "several attempts",
        "sub budget",
        "recovered",
    }
    assert min(seen.values()) >= 2


@pytest.mark.req("000/C3")
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_a_cancel_at_every_step_of_the_loop_ends_the_run(seed: int) -> None:
    """The run ends at whatever step of the loop the cancellation comes."""
    peaceful = world_of(seed)
    steps = run(peaceful.play, seed).steps
    for before in range(0, steps, max(1, steps // 150)):
        world = world_of(seed)

        def strike(world: PlannedRun = world) -> None:
            world.token.cancel()

        story = run(world.play, seed, interrupt=strike, before_step=before)
        assert story.leftover == ()
        assert list(problems(world)) == []


def problems(world: PlannedRun) -> Iterator[str]:
    """Yield each promise that the engine has violated."""
    yield from violations(world.trace.snapshot())
    yield from _order_problems(world, world.plan, "")
    yield from _event_problems(world)
    yield from _budget_problems(world)
    yield from _end_problems(world)


def _order_problems(world: PlannedRun, plan: Plan, prefix: str) -> Iterator[str]:
    """Yield each step that started before its inputs, or without any."""
    topology = Topology(plan.graph)
    at = {event.step_id: place for place, event in _firsts(world, STEP_STARTED)}
    ends = {event.step_id: place for place, event in _lasts(world, {*STEP_ENDS, STEP_SKIPPED})}
    for step_id, edges in topology.incoming.items():
        path = prefix + step_id
        if path not in at:
            continue
        for edge in edges:
            if ends.get(prefix + edge.source, 10**9) > at[path]:
                yield f"{path} began before {edge.source} had ended"
        if not any(_live(world, plan, prefix, edge) for edge in edges):
            yield f"{path} began although every path to it is dead"
    for step_id, doing in plan.doings.items():
        if doing.inner is not None:
            yield from _order_problems(world, doing.inner, f"{prefix}{step_id}/")


def _live(world: PlannedRun, plan: Plan, prefix: str, edge: Edge) -> bool:
    doing, path = plan.doings[edge.source], prefix + edge.source
    if any(e.data.get("recovered_by") for e in world.events if e.step_id == path):
        return edge.source_handle == "default"
    return edge.source_handle in doing.produces


def _firsts(world: PlannedRun, kind: str) -> Iterator[tuple[int, Event]]:
    for place, event in reversed(list(enumerate(world.events))):
        if event.type == kind:
            yield place, event


def _lasts(world: PlannedRun, kinds: set[str]) -> Iterator[tuple[int, Event]]:
    return ((place, event) for place, event in enumerate(world.events) if event.type in kinds)


def _event_problems(world: PlannedRun) -> Iterator[str]:
    """Yield each step that did not start once and end once."""
    starts = Counter(e.step_id for e in world.events if e.type == STEP_STARTED)
    ends = Counter(e.step_id for e in world.events if e.type in STEP_ENDS)
    skips = Counter(e.step_id for e in world.events if e.type == STEP_SKIPPED)
    for path, count in (starts | ends | skips).items():
        nested_again = world.attempts.get(str(path).split("/")[0], 1) > 1 and "/" in str(path)
        if starts[path] != ends[path]:
            yield f"{path} started {starts[path]} times and ended {ends[path]} times"
        if count > 1 and not nested_again:
            yield f"{path} was told of {count} times"
        if skips[path] and starts[path] and not nested_again:
            yield f"{path} was skipped and started"


def _budget_problems(world: PlannedRun) -> Iterator[str]:
    budget, usage = world.budget, world.scope.usage
    started = sum(event.type == STEP_STARTED for event in world.events)
    if usage.of(Dimension.STEPS) != started:
        yield f"{usage.of(Dimension.STEPS)} steps were charged and {started} started"
    for dimension, limit in budget.limits().items():
        if dimension is not Dimension.SECONDS and usage.of(dimension) > limit:
            yield f"{usage.of(dimension)} {dimension} of {limit}"
    if any(world.scope.reserved(dimension) for dimension in Dimension):
        yield "something is still reserved"
    widest = max(_widths(world.plan))
    if world.most_working > min(widest, world.ceiling):
        yield f"{world.most_working} worked at once"


def _widths(plan: Plan) -> Iterator[int]:
    yield plan.graph.max_parallel
    for doing in plan.doings.values():
        if doing.inner is not None:
            yield from _widths(doing.inner)


def _end_problems(world: PlannedRun) -> Iterator[str]:
    """Yield each conflict between the ends of run and steps, and each late end."""
    outcome = world.outcome
    statuses = {step_id: report.status for step_id, report in outcome.steps.items()}
    if outcome.stop is None and outcome.error is None:
        yield from (f"{s} is {status}" for s, status in statuses.items() if status not in ENDED)
    elif StepStatus.RUNNING in statuses.values():
        yield "something is still running"
    if outcome.error is not None and outcome.stop is None and not _has(outcome, StepStatus.FAILED):
        yield "the graph failed without a failed step"
    seconds = world.budget.max_time_seconds
    for limit in (world.cancel_at, seconds):
        if limit is not None and world.ended_at > limit + 2 * GRACE_SECONDS:
            yield f"it ended at {world.ended_at} although {limit} was its end"


def _has(outcome: GraphOutcome, status: StepStatus) -> bool:
    return any(report.status is status for report in outcome.steps.values())


def _kinds(world: PlannedRun) -> Iterator[str]:
    outcome = world.outcome
    if outcome.stop is not None:
        yield outcome.stop.cause.dimension or outcome.stop.cause.kind.value
        if outcome.stop.cause.scope not in (None, "run"):
            yield "sub budget"
    else:
        yield "failed" if outcome.error else "completed"
    yield from {event.type for event in world.events}
    if any("/" in str(event.step_id) for event in world.events):
        yield "nested"
    if world.most_working > 1:
        yield "parallel"
    if max(world.attempts.values(), default=0) > 1:
        yield "several attempts"
    if any(event.data.get("recovered_by") for event in world.events):
        yield "recovered"
