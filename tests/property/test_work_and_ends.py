"""The table of work and ends in virtual time, with faults at the writes of the processes."""

from collections import Counter
from collections.abc import Iterable

import pytest

from caseworker.runs.journal.event_log import OpenStarts
from tests.property.ending_stories import (
    SIMULATED_ENDS,
    SIMULATED_WORK,
    played,
    problems,
    story_of,
)
from tests.support.crashing_wire import KEY
from tests.support.seeds import seeds


@pytest.mark.req("002/11.1")
@seeds(fast=150, proofs=3000)
def test_a_run_of_the_table_ends_soundly_whatever_its_processes_suffer(
    seeds: Iterable[int],
) -> None:
    """Result, events and trace are those of the end, and nothing is repeated or executed late."""
    seen = Counter[str]()
    for seed in seeds:
        story, cluster = story_of(seed), played(seed)
        found = list(problems(cluster, story))
        assert found == [], f"seed {seed}: {story}: {found}"
        seen.update([story.work, story.end])
        types = [each.type for each in cluster.database.rows[KEY].events.values()]
        seen.update({"run.resumed", "call.cancelled", "tool_call_end"}.intersection(types))

    wanted = [*SIMULATED_WORK, *SIMULATED_ENDS, "run.resumed", "call.cancelled", "tool_call_end"]
    assert all(seen[each] for each in wanted), seen


def test_the_oracle_sees_what_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the ends that the journal adds, turns, tool calls and calls stay open."""
    monkeypatch.setattr(OpenStarts, "all", lambda starts: [])
    monkeypatch.setattr(OpenStarts, "inside", lambda starts, step_id: [])

    found = [each for seed in range(80) for each in problems(played(seed), story_of(seed))]

    for kind in ("call ", "turn ", "tool_call "):
        assert any(each.startswith(kind) for each in found), found
