"""Tools with transient failures are retried within the run's limits (seed 002, 21.3)."""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import pytest

from caseworker.core.budget.budget import Budget, Dimension
from caseworker.engine.report import GraphOutcome
from caseworker.tools.ports import ToolResult, failure
from tests.support.limits import retry_policy
from tests.support.seeded_loop import run
from tests.unit.cases.agent.world import CaseRun, Source, case_run, plan, result_of

BUSY = failure("The source is busy.", "source_unavailable")


def played(source: Source, **settings: Any) -> tuple[CaseRun, GraphOutcome]:
    """Let a planner call the source once, on virtual time."""
    place = case_run(
        [plan(("source", {}))], more_tools=[source], tool_retry=retry_policy(), **settings
    )
    story = run(place.run, seed=0)
    assert story.result is not None
    return place, story.result


def tried(place: CaseRun) -> tuple[str, Sequence[str]]:
    """Return the status of the source's call and of each attempt."""
    nodes = place.trace.snapshot()["nodes"].values()
    [call] = [node for node in nodes if node["kind"] == "tool"]
    attempts = [node for node in nodes if node["parent_id"] == call["node_id"]]
    return call["status"], [node["status"] for node in attempts]


@pytest.mark.req("002/4.2", "002/14.1", "002/4.3")
def test_a_failure_that_a_retry_made_good_is_in_the_log_of_the_case() -> None:
    """Failed attempts are logged, also when the call is replayed."""
    place, outcome = played(Source(BUSY, None, {"value": "42"}))

    again = run(partial(place.run_again), seed=0).result
    assert again is not None
    for ended in (outcome, again):
        logged = [e for e in result_of(ended)["logs"] if e.get("event") == "attempt_failed"]
        assert [(e["step_type"], e["tool"], e["error_class"], e["error"]) for e in logged] == [
            ("tool", "source", "source_unavailable", "The source is busy."),
            ("tool", "source", "TimeoutError", "No answer within 2 seconds."),
        ]
        assert all(entry["ts"] and entry["tier"] == "small" for entry in logged)


@pytest.mark.req("002/21.1", "002/21.3")
def test_a_transient_failure_is_tried_again_after_the_usual_waits() -> None:
    """A transient failure is retried with back-off, and each attempt counts as a tool call."""
    source = Source(BUSY, BUSY, {"value": "42"})

    place, outcome = played(source)

    assert source.asked_at == pytest.approx([0, 0.5, 1.5])
    assert result_of(outcome)["answer"] == "42"
    assert tried(place) == ("success", ["fail", "fail", "success"])
    assert place.scope.usage.amounts[Dimension.TOOL_CALLS] == 3


def test_the_source_says_how_long_to_wait() -> None:
    """A tool's ``retry_after_seconds`` replaces the back-off."""
    source = Source({**BUSY, "retry_after_seconds": 7}, {"value": "42"})

    played(source)

    assert source.asked_at == pytest.approx([0, 7])


@pytest.mark.req("002/13.4")
def test_a_timeout_is_tried_again() -> None:
    """A timeout is retried; each attempt has its own timeout."""
    source = Source(None, {"value": "42"})

    _, outcome = played(source)

    assert source.asked_at == pytest.approx([0, 2.5])
    assert result_of(outcome)["answer"] == "42"


@pytest.mark.req("002/21.5", "002/13.5")
@pytest.mark.parametrize(
    ("source", "attempts"),
    [
        (Source(BUSY, BUSY, BUSY), 3),
        (Source(failure("No such thing.", "unknown"), BUSY), 1),
        (Source({**BUSY, "retry_after_seconds": 10**400}, BUSY), 1),
        (Source(BUSY, BUSY, idempotent=False), 1),
        (Source(BUSY, BUSY, transient=frozenset()), 1),
        (Source(None, BUSY, transient=frozenset()), 1),
    ],
    ids=[
        "used up",
        "not transient",
        "asks to wait for ever",
        "not repeatable",
        "names none",
        "timeout that names none",
    ],
)
def test_what_is_not_tried_again_is_a_failure_in_the_evidence(
    source: Source, attempts: int
) -> None:
    """A failure that is not retried becomes evidence with its message and code."""
    _, outcome = played(source)

    assert len(source.asked_at) == attempts
    evidence = result_of(outcome)["evidence"]
    assert evidence[0]["tool"] == "source"
    assert evidence[0]["result"]["error"]


def test_a_tool_that_returns_no_mapping_is_a_failure_in_the_evidence() -> None:
    """A tool result of the wrong type becomes failed evidence."""
    source = Source(cast("ToolResult", "42"), BUSY)

    _, outcome = played(source)

    assert len(source.asked_at) == 1
    failed = result_of(outcome)["evidence"][0]["result"]
    assert failed == {"error": "The tool returned a str, and no dict.", "code": "unfit_result"}


@pytest.mark.req("002/21.3")
def test_retries_of_tools_do_not_exceed_the_limit_of_tool_calls() -> None:
    """The tool call limit stops the retries, and the failed attempts are kept."""
    source = Source(BUSY, BUSY, {"value": "42"})

    place, outcome = played(source, budget=Budget(max_tool_calls=2))

    assert len(source.asked_at) == 2
    assert result_of(outcome)["finish_reason"] == "budget"
    assert place.scope.usage.amounts[Dimension.TOOL_CALLS] == 2
