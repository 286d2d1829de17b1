"""Random graph runs from which others go on: the way there is the old one's, and costs nothing.

``FORKED_SEEDS`` is how many runs there are: 100 are what is documented.
"""

import os
from collections.abc import Iterator

import pytest
import structlog

from tests.property.forked_stories import Forks
from tests.property.resumed_stories import tale_of
from tests.support.seeded_loop import run

SEEDS = int(os.environ.get("FORKED_SEEDS", "16"))
SHARDS = 4


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


@pytest.mark.timeout(600)
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.long
def test_a_run_goes_on_from_every_node_of_another_one(shard: int) -> None:
    """No call that had succeeded by then is made again, and the trace up to there is the same."""
    made = taken_over = lost = 0
    for seed in range(shard, SEEDS, SHARDS):
        forks = Forks(tale_of(seed), seed)
        story = run(forks.play, seed)
        assert [*forks.problems[:5], *story.leftover] == [], f"seed {seed}"
        made += forks.made
        taken_over += forks.taken_over
        lost += forks.lost

    assert min(made, taken_over) > 40 * SEEDS / SHARDS
    assert lost > 2 * SEEDS / SHARDS
