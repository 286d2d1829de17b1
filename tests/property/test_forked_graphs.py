"""Forks of random graph runs: the fork imports the calls of its source and repeats none."""

from collections.abc import Iterable

import pytest

from tests.property.forked_stories import Forks
from tests.property.resumed_stories import tale_of
from tests.support.seeded_loop import run
from tests.support.seeds import seeds


@pytest.mark.guarantee(24)
@seeds(fast=4, proofs=100)
def test_a_fork_at_any_node_repeats_no_call_and_keeps_the_trace(seeds: Iterable[int]) -> None:
    """Calls that succeeded before the fork are not repeated, and the trace up to there is equal."""
    made = taken_over = lost = count = 0
    for seed in seeds:
        count += 1
        forks = Forks(tale_of(seed), seed)
        story = run(forks.play, seed)
        assert [*forks.problems[:5], *story.leftover] == [], f"seed {seed}"
        made += forks.made
        taken_over += forks.taken_over
        lost += forks.lost

    assert min(made, taken_over) > 40 * count
    assert lost > 2 * count
