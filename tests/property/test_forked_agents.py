"""Forks of random agent runs: the fork imports the calls of its source and repeats none."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pytest

from caseworker.runs.run import CallRecord, NewRun, Run, RunKey, RunKind, RunRequest, RunSource
from tests.property.agent_stories import AgentRun
from tests.property.forked_stories import ForkedJournal
from tests.support.graph_invariants import unasked_calls
from tests.support.memory_rows import journal_of
from tests.support.runs import KEY
from tests.support.seeded_loop import run
from tests.support.seeds import seeds


class AgentForks:
    """Forks of one agent run, at each of its nodes."""

    def __init__(self, seed: int) -> None:
        self.agent_run = AgentRun(seed)
        self.problems: list[str] = []
        self.new_calls = 0
        """The number of external calls of all forks."""
        self.imported = 0
        """The number of nodes that all forks imported."""
        self.importing_tool_calls = 0
        """The number of forks that imported a tool call, or a call of a sub-agent."""
        self.without_calls = 0
        """The number of forks that made no external call."""

    async def play(self) -> None:
        """Play the run, then a fork of the whole run and forks at each of its nodes."""
        await self.agent_run.play()
        nodes = [record.node_id for record in journal_of(self.agent_run.store.rows[KEY])]
        for number, until in enumerate([None, *nodes]):
            await self._fork(f"fork-{number}", until)

    async def _fork(self, run_id: str, until: str | None) -> None:
        agent_run = self.agent_run
        agent_run.external_calls.clear()
        request = RunRequest(
            kind=RunKind.GRAPH,
            graph=agent_run.final.request.graph,
            inputs=agent_run.final.request.inputs,
            source=RunSource(KEY.run_id, until),
        )
        key = replace(KEY, run_id=run_id)
        process = agent_run.process()
        await process.post(NewRun(key=key, request=request, request_hash=run_id))
        await process.executor.ended(key)
        run = await agent_run.store.get(key)
        assert run is not None
        problems = self._problems(key, run, until)
        self.problems += [f"{run_id} until {until}: {each}" for each in problems]

    def _problems(self, key: RunKey, run: Run, until: str | None) -> Iterator[str]:
        journal = ForkedJournal.of(self.agent_run.store, KEY, key)
        calls = self.agent_run.external_calls
        self.new_calls += len(calls)
        self.imported += len(journal.imported)
        self.without_calls += not calls
        self.importing_tool_calls += any(
            "/tool/" in str(journal.before[id_].call_key) for id_ in journal.imported
        )
        yield from unasked_calls(journal.after.values())
        yield from journal.problems(self.agent_run.store.rows[key], run, until)
        imported = journal.imported_results
        yield from (f"{call} was repeated" for call, _ in calls if _key_of(call) in imported)
        yield from _doubled(journal.after)


def _key_of(call: str) -> str:
    kind, _, about = call.partition(" ")
    if kind == "model":
        return about
    turn, _, number = about.rpartition("/")
    return f"{turn}/tool/{int(number) + 1}"


def _doubled(records: Mapping[str, CallRecord]) -> Iterator[str]:
    """Yield the calls that occur twice in a run that lost no worker."""
    keys = [each.call_key for each in records.values() if each.call_key is not None]
    yield from (f"{key} occurs twice" for key in {k for k in keys if keys.count(k) > 1})


@pytest.mark.req("003/resume")
@pytest.mark.guarantee(24)
@seeds(fast=4, proofs=100)
def test_a_fork_at_any_node_of_an_agent_repeats_no_call(seeds: Iterable[int]) -> None:
    """Calls that succeeded before the fork are not repeated, and the trace up to there is equal."""
    played: list[AgentForks] = []
    for seed in seeds:
        forks = AgentForks(seed)
        story = run(forks.play, seed)
        assert [*forks.problems[:5], *story.leftover] == [], f"seed {seed}"
        played.append(forks)

    # The runs of some seeds are short: the forks of four of them make as few as nine calls.
    assert sum(forks.new_calls for forks in played) > len(played)
    assert sum(forks.imported for forks in played) > 5 * len(played)
    assert sum(forks.importing_tool_calls for forks in played) > 0.8 * len(played)
    assert sum(forks.without_calls for forks in played) > 0.8 * len(played)
