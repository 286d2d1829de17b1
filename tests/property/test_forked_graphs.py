"""Forks of random graph runs: the fork imports the calls of its source and repeats none."""

from collections.abc import Iterable

import pytest

from tests.property.forked_stories import GraphForks
from tests.property.resumed_stories import graph_run_of
from tests.support.seeded_loop import run
from tests.support.seeds import seeds


@pytest.mark.guarantee(24)
@seeds(fast=4, proofs=100)
def test_a_fork_at_any_node_repeats_no_call_and_keeps_the_trace(seeds: Iterable[int]) -> None:
    """Calls that succeeded before the fork are not repeated, and the trace up to there is equal."""
    played: list[GraphForks] = []
    for seed in seeds:
        forks = GraphForks(graph_run_of(seed), seed)
        story = run(forks.play, seed)
        assert [*forks.problems[:5], *story.leftover] == [], f"seed {seed}"
        played.append(forks)

    assert sum(forks.new_calls for forks in played) > 40 * len(played)
    assert sum(forks.imported for forks in played) > 40 * len(played)
    assert sum(forks.recovered for forks in played) > 2 * len(played)
