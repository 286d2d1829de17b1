"""The judge: the provider's counts stay within the limits, for all requests without overrun.

The provider counts its own output, also after a close. A seed draws the dialect, the body, the
counts, cuts, cancels, later attempts, children and quotas of one tenant. The whole service runs on
a real database and a virtual clock, so a seed repeats: ``JUDGE_SEED=17`` plays
one, ``JUDGE_SEEDS=20000`` plays that many.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from tests.property.judge.oracle import Verdict, judged
from tests.property.judge.provider import Behaviour
from tests.property.judge.stories import Story
from tests.property.judge.world import open_world
from tests.support.virtual_clock import run_virtually

SEEDS = 200


def _numbers() -> Sequence[int]:
    if (one := os.environ.get("JUDGE_SEED")) is not None:
        return [int(each) for each in one.split(",")]
    return range(int(os.environ.get("JUDGE_SEEDS", SEEDS)))


def verdicts(url: str, seeds: Iterable[int]) -> list[Verdict]:
    """Play seeds one after the other on one database."""
    stories: dict[str, Story] = {}

    def behaviour_of(marker: str, request: int) -> Behaviour:
        return stories[marker[1:-1].partition("/")[0]].behaviour(marker, request)

    async def play() -> list[Verdict]:
        found = []
        async with open_world(url, behaviour_of) as world:
            for seed in seeds:
                story = stories[str(seed)] = Story(seed)
                await story.play(world)
                found.append(judged(story, world))
                stories.clear()
                world.provider.generations.clear()
        return found

    return run_virtually(play)


@pytest.mark.req("cw/3.judge")
@pytest.mark.guarantee(7)
def test_no_accepted_request_costs_more_than_its_limits(database_url: str) -> None:
    """The provider's count times the price is at most each limit, and at most the charge."""
    seen, broken = Counter[str](), list[str]()
    for verdict in verdicts(database_url, _numbers()):
        seen += verdict.reached
        broken += [f"seed {verdict.seed}: {violation}" for violation in verdict.violations]

    print(dict(sorted(seen.items())))  # noqa: T201
    assert broken == []
