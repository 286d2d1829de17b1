"""The judge: the provider's counts stay within the limits, for all requests without overrun.

The provider counts its own output, also after a close. A seed draws the dialect, the body, the
counts, cuts, cancels, later attempts, children and quotas of one tenant. The whole service runs on
a real database and a virtual clock, so a seed repeats: ``JUDGE_SEED=17`` plays
one, ``JUDGE_SEEDS=20000`` plays that many.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

import pytest

from tests.property.judge.breaks import BREAKS, REVEALED_BY, Broken
from tests.property.judge.oracle import Verdict, judged
from tests.property.judge.provider import IMPOSSIBLE, Behaviour
from tests.property.judge.stories import Story
from tests.property.judge.world import open_world
from tests.support.virtual_clock import run_virtually

SEEDS = 200
REACHED = (
    *("accepted", "answer 400", "run", "child run", "agent run", "later attempt", "quota"),
    *("complete stream", "cut stream", "closed stream"),
    *("complete reply", "cut reply", "closed reply"),
    *(f"counts {kind}" for kind in ("right", "late", "missing", "running", *IMPOSSIBLE)),
    *("accepted image url", "accepted image data", "accepted document url"),
    *("accepted document data", "accepted choices", "accepted search", "accepted vendor tool"),
    *("drawn unknown field", "drawn unknown id", "drawn best_of", "drawn stored prompt"),
    *("thinking hidden", "thinking shown", "cache written", "cache read", "estimated"),
    *("event cancel", "event finish", "client gone", "body with a pause", "adversarial text"),
    *("ordinary text", "drawn no output limit", "refused by a limit"),
)
"""Features that the first seeds must reach, so that the judge has cases to decide."""
BREAK_SEEDS = 1_500
"""Seeds in which the judge must find a service that is broken on purpose."""


def _numbers() -> Sequence[int]:
    if (one := os.environ.get("JUDGE_SEED")) is not None:
        return [int(each) for each in one.split(",")]
    return range(int(os.environ.get("JUDGE_SEEDS", SEEDS)))


def verdicts(url: str, seeds: Iterable[int], broken: Broken | None = None) -> list[Verdict]:
    """Play seeds one after the other on one database.

    A service that is ``broken`` plays until the first violation.
    """
    stories: dict[str, Story] = {}

    def behaviour_of(marker: str, request: int) -> Behaviour:
        return stories[marker[1:-1].partition("/")[0]].behaviour(marker, request)

    async def play() -> list[Verdict]:
        found = []
        async with open_world(url, behaviour_of) as world:
            with ExitStack() as breaks:
                if broken is not None:
                    breaks.enter_context(broken(world.connection))
                for seed in seeds:
                    story = stories[str(seed)] = Story(seed)
                    await story.play(world)
                    found.append(judged(story, world))
                    stories.clear()
                    world.provider.generations.clear()
                    if broken is not None and found[-1].violations:
                        break
        return found

    return run_virtually(play)


@pytest.mark.req("cw/3.judge")
@pytest.mark.guarantee(7)
def test_no_accepted_request_costs_more_than_its_limits(database_url: str) -> None:
    """The provider's count times the price is at most each limit, and at most the charge."""
    seen, broken = Counter[str](), list[str]()
    seeds = _numbers()
    for verdict in verdicts(database_url, seeds):
        seen += verdict.reached
        broken += [f"seed {verdict.seed}: {violation}" for violation in verdict.violations]

    print(dict(sorted(seen.items())))  # noqa: T201
    assert not broken, "\n".join(broken)
    if len(seeds) >= SEEDS:
        assert [kind for kind in REACHED if not seen[kind]] == []


@pytest.mark.proof
@pytest.mark.parametrize("name", BREAKS)
def test_the_judge_finds_a_service_without(name: str, database_url: str) -> None:
    """One term of a maximum or of a charge is missing."""
    needed = REVEALED_BY.get(name, set())
    seeds = (seed for seed in range(BREAK_SEEDS) if needed <= Story(seed).about)
    found = verdicts(database_url, seeds, BREAKS[name])

    assert found[-1].violations, f"{BREAK_SEEDS} seeds found nothing"
    print(f"seed {found[-1].seed}: {found[-1].violations[0]}")  # noqa: T201
