"""Forks of random agent runs: the fork imports the calls of its source and repeats none."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pytest

from caseworker.core.trace.node import TAKEN_OVER
from caseworker.runs.run import CallRecord, NewRun, Run, RunKey, RunKind, RunRequest, RunSource
from tests.property.agent_stories import Tale
from tests.property.forked_stories import changed, ended_well, expected
from tests.support.event_log import event_problems
from tests.support.graph_invariants import unasked_calls, violations
from tests.support.memory_rows import journal_of
from tests.support.runs import KEY
from tests.support.seeded_loop import run
from tests.support.seeds import seeds


class Forks:
    """Forks of one agent run, at each of its nodes."""

    def __init__(self, seed: int) -> None:
        self.tale = Tale(seed)
        self.problems: list[str] = []
        self.made = self.taken_over = self.inner = self.whole = 0

    async def play(self) -> None:
        """Play the run, then a fork of the whole run and forks at each of its nodes."""
        await self.tale.play()
        nodes = [record.node_id for record in journal_of(self.tale.store.rows[KEY])]
        for number, until in enumerate([None, *nodes]):
            await self._fork(f"fork-{number}", until)

    async def _fork(self, run_id: str, until: str | None) -> None:
        tale = self.tale
        tale.made.clear()
        request = RunRequest(
            kind=RunKind.GRAPH,
            graph=tale.final.request.graph,
            inputs=tale.final.request.inputs,
            source=RunSource(KEY.run_id, until),
        )
        key = replace(KEY, run_id=run_id)
        process = tale.process()
        await process.post(NewRun(key=key, request=request, request_hash=run_id))
        await process.executor.ended(key)
        found = await tale.store.get(key)
        assert found is not None
        told = self._problems(key, found, until)
        self.problems += [f"{run_id} until {until}: {each}" for each in told]

    def _problems(self, key: RunKey, run: Run, until: str | None) -> Iterator[str]:
        before = {each.node_id: each for each in journal_of(self.tale.store.rows[KEY])}
        row = self.tale.store.rows[key]
        after = {each.node_id: each for each in journal_of(row)}
        taken = {id_ for id_, each in after.items() if TAKEN_OVER in each.node["metadata"]}
        self.made += len(self.tale.made)
        self.taken_over += len(taken)
        self.whole += not self.tale.made
        self.inner += any("/tool/" in str(before[id_].call_key) for id_ in taken)
        yield from violations(row.snapshots[0])
        yield from unasked_calls(after.values())
        yield from event_problems([row.events[seq] for seq in sorted(row.events)], run.status)
        for node_id in taken:
            yield from changed(before[node_id].node, after[node_id].node, KEY.run_id)
        missing = expected(before, until) - taken
        if missing:
            yield f"{missing} had ended well, and is not taken over"
        answered = {before[node_id].call_key for node_id in taken & ended_well(before)}
        for made, _ in self.tale.made:
            if _key_of(made) in answered:
                yield f"{made} was made again"
        yield from _doubled(after)


def _key_of(made: str) -> str:
    kind, _, about = made.partition(" ")
    if kind == "model":
        return about
    turn, _, number = about.rpartition("/")
    return f"{turn}/tool/{int(number) + 1}"


def _doubled(records: Mapping[str, CallRecord]) -> Iterator[str]:
    """Yield the calls that occur twice in a run that lost no worker."""
    keys = [each.call_key for each in records.values() if each.call_key is not None]
    yield from (f"{key} stands there twice" for key in {k for k in keys if keys.count(k) > 1})


@pytest.mark.req("003/resume")
@pytest.mark.guarantee(24)
@seeds(fast=4, proofs=100)
def test_a_fork_at_any_node_of_an_agent_repeats_no_call(seeds: Iterable[int]) -> None:
    """Calls that succeeded before the fork are not repeated, and the trace up to there is equal."""
    made = taken_over = inner = whole = count = 0
    for seed in seeds:
        count += 1
        forks = Forks(seed)
        story = run(forks.play, seed)
        assert [*forks.problems[:5], *story.leftover] == [], f"seed {seed}"
        made += forks.made
        taken_over += forks.taken_over
        inner += forks.inner
        whole += forks.whole

    # The stories of some seeds are short: four of them make as few as nine calls.
    assert made > count
    assert taken_over > 5 * count
    assert min(inner, whole) > 0.8 * count
