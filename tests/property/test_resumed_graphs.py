"""Random graphs resumed by another process: nothing is lost, repeated or reported twice."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from caseworker.engine.events import STEP_RESUMED, STEP_STARTED
from caseworker.runs.run import RunStatus
from tests.property.resumed_stories import GraphRun, graph_run_of, play_graph_run
from tests.support.event_log import event_problems
from tests.support.graph_invariants import unlike_journal, violations
from tests.support.runs import KEY
from tests.support.seeds import seeds


@pytest.mark.req("004/lifecycle", "000/B1", "000/E2")
@seeds(fast=50, proofs=200)
def test_every_promise_holds_for_a_graph_resumed_by_another_process(seeds: Iterable[int]) -> None:
    """No stored step is repeated, the event log is valid, and the result is the same."""
    for seed in seeds:
        uninterrupted, _, steps = play_graph_run(seed)
        draw = random.Random(seed)
        for before in draw.sample(range(steps), min(3, steps)):
            graph_run, leftover, _ = play_graph_run(seed, before_step=before)
            found = [*problems(graph_run, uninterrupted), *leftover]
            assert found == [], f"seed {seed}, step {before}: {found}"


def test_the_runs_cover_every_kind_of_interruption() -> None:
    """Most runs are interrupted, some twice; steps are resumed and replayed; all ends occur."""
    seen = Counter[str]()
    for seed in range(0, 200, 4):
        _, _, steps = play_graph_run(seed)
        graph_run, _, _ = play_graph_run(seed, before_step=random.Random(seed).randrange(steps))
        seen[graph_run.final.status.value] += 1
        seen[f"interrupted {graph_run.interrupted} times"] += 1
        seen["replayed"] += any(graph_run.ended_before)
        seen["nested"] += any("/" in path for path, _ in graph_run.attempts)
        seen["retried"] += any("~" in path for path, _ in graph_run.attempts)
        seen.update({event.type for event in graph_run.store.rows[KEY].events.values()})

    assert seen["interrupted 1 times"] > 30
    for kind in ("completed", "failed", "halted", "interrupted 2 times", "replayed", "nested"):
        assert seen[kind] >= 5, seen
    assert min(seen["retried"], seen[STEP_RESUMED], seen["step.skipped"]) >= 5, seen


def problems(graph_run: GraphRun, uninterrupted: GraphRun) -> Iterator[str]:
    """Yield each violated promise."""
    row, run = graph_run.store.rows[KEY], graph_run.final
    log = [row.events[seq] for seq in sorted(row.events)]
    yield from event_problems(log, run.status)
    stored = {node_id: record.node for node_id, record in row.calls.items()}
    for snapshot in row.snapshots:
        yield from violations(snapshot)
        yield from unlike_journal(snapshot, stored)
    yield from _repetitions(graph_run)
    started = sum(event.type == STEP_STARTED for event in log)
    if run.usage is None or run.usage["steps"] != started:
        yield f"{run.usage} was charged, and {started} steps have started"
    limit = graph_run.budget.max_steps
    if limit is not None and started > limit:
        yield f"{started} steps of {limit}"
    if graph_run.calm and (run.status, run.result) != (
        uninterrupted.final.status,
        uninterrupted.final.result,
    ):
        yield f"it ended as {run.status} with {run.result}, not with {uninterrupted.final.result}"


def _repetitions(graph_run: GraphRun) -> Iterator[str]:
    """Yield each step or call that was repeated after its end was stored."""
    for number, stored in enumerate(graph_run.ended_before, start=2):
        for path, process in graph_run.attempts:
            if process >= number and f"step:{path}" in stored:
                yield f"{path} was executed again by process {process}"
        for key, process in graph_run.external_calls:
            if process >= number and key in stored:
                yield f"{key} was called again by process {process}"
    attempts = Counter(path for path, _ in graph_run.attempts)
    for path, count in attempts.items():
        if count > 1 + graph_run.interrupted:
            yield f"{path} started {count} times"


def test_calm_runs_can_end_in_one_way_only() -> None:
    """Runs compared with an uninterrupted run can end in only one way."""
    calm = [seed for seed in range(0, 200, 4) if graph_run_of(seed).calm]

    assert len(calm) >= 30
    assert all(play_graph_run(seed)[0].final.status is RunStatus.COMPLETED for seed in calm)
