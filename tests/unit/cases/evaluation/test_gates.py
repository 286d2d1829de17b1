"""The targets of an evaluation."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from caseworker_cases.evaluation.gates import Miss, Targets, log_warnings, missed

MET: dict[str, Any] = {
    "format": 1,
    "evaluation": {},
    "counts": {"falsely_verified": 0},
    "cases": [],
    "success@1": 0.95,
    "escalation_rate": 0.15,
    "p95_latency_easy": 2.0,
    "mean_cost_usd_per_case": 0.01,
    "mean_tokens_per_case": 500.0,
}
ANYTHING = Targets(min_success=0, max_p95_latency_easy_seconds=99)
"""Targets that only a worse result than before can miss."""


def misses(targets: Targets | None = None, **figures: Any) -> list[str]:
    return [miss.message for miss in missed({**MET, **figures}, targets or Targets())]


@pytest.mark.req("002/26.1")
def test_targets_that_are_just_reached_are_met() -> None:
    """A figure equal to its target does not miss it."""
    assert misses() == []


@pytest.mark.req("002/12.1", "002/12.2", "002/12.4", "002/16.3", "002/26.1", "002/26.3")
@pytest.mark.parametrize(
    ("figure", "value", "message"),
    [
        ("success@1", 0.9499, "success@1 is 0.9499, below the target of 0.95"),
        ("escalation_rate", 0.1501, "escalation_rate is 0.1501, above the target of 0.15"),
        ("p95_latency_easy", 2.01, "p95_latency_easy is 2.01 seconds, above the target of 2"),
    ],
)
def test_each_target_that_is_missed_says_so(figure: str, value: float, message: str) -> None:
    """The message names the figure, its value and its target."""
    figures: dict[str, Any] = {figure: value}

    assert misses(**figures) == [message]


@pytest.mark.req("002/12.3")
def test_cost_is_limited_where_a_limit_is_given() -> None:
    """Mean cost and mean tokens per case are checked if a limit is given."""
    assert misses(Targets(max_mean_cost_usd=0.01, max_mean_tokens=500)) == []
    assert misses(Targets(max_mean_cost_usd=0.009)) == [
        "mean_cost_usd_per_case is 0.01 USD, above the target of 0.009"
    ]
    assert misses(Targets(max_mean_tokens=0)) == [
        "mean_tokens_per_case is 500 tokens, above the target of 0"
    ]


def test_a_wrong_answer_that_is_passed_off_as_verified_misses_the_target() -> None:
    """A single falsely verified answer misses the target, unless one is allowed."""
    wrong: dict[str, Any] = {"success@1": 0.99, "counts": {"falsely_verified": 1}}

    assert misses(**wrong) == [
        "falsely_verified is 1, above the target of 0: wrong answers reported as verified"
    ]
    assert misses(Targets(max_falsely_verified=1), **wrong) == []


def test_what_was_not_measured_misses_no_target() -> None:
    """A figure that was not measured misses no target."""
    assert misses(p95_latency_easy=None, escalation_rate=None) == []


@pytest.mark.req("002/26.5")
@pytest.mark.parametrize(
    ("before", "now", "reasons"),
    [
        ({}, {}, []),
        ({"success@1": 0.99}, {"success@1": 0.97}, []),
        ({"success@1": 0.99}, {"success@1": 0.969}, ["success@1 fell from 0.9900 to 0.9690"]),
        ({"success@1": 0.9}, {"success@1": 1.0}, []),
        ({"p95_latency_easy": 0.4}, {"p95_latency_easy": 0.6}, []),
        (
            {"p95_latency_easy": 0.4},
            {"p95_latency_easy": 0.61},
            ["p95_latency_easy grew from 0.4 to 0.61 seconds"],
        ),
        ({"p95_latency_easy": 0.01}, {"p95_latency_easy": 0.1}, []),
        ({"p95_latency_easy": None}, {"p95_latency_easy": 9.0}, []),
    ],
)
def test_what_became_worse_is_told_if_it_is_more_than_noise(
    before: dict[str, Any], now: dict[str, Any], reasons: list[str]
) -> None:
    """A drop of two points, or a latency 1.5 times as high, is tolerated."""
    found = missed({**MET, **now}, ANYTHING, {**MET, **before})

    assert len(found) == len(reasons)
    assert all(miss.message.startswith(reason) for miss, reason in zip(found, reasons, strict=True))


def test_nothing_may_become_worse_if_nothing_is_allowed() -> None:
    """With no allowed drop, any lower success rate misses the target."""
    strict = replace(ANYTHING, max_success_drop=0)

    assert missed({**MET, "success@1": 0.999}, strict, {**MET, "success@1": 1.0})
    assert missed({**MET, "success@1": 0.7}, strict, {**MET, "success@1": 0.7}) == []


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """Capture the log with the default configuration."""
    known = structlog.get_config()
    structlog.reset_defaults()
    with capture_logs() as lines:
        yield lines
    structlog.configure(**known)


@pytest.mark.req("002/12.5")
def test_every_missed_target_is_logged_as_a_warning(logged: list[Any]) -> None:
    """Each missed target is logged as a warning with figure and reason."""
    log_warnings([Miss("success@1", "too low")], "eval-1")

    assert logged == [
        {
            "log_level": "warning",
            "event": "performance.target_missed",
            "metric": "success@1",
            "detail": "too low (eval-1)",
        }
    ]
