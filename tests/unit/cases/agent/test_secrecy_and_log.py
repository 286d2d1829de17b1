"""Contents of prompts and logs, and data that they must not contain."""

import json
from datetime import datetime

import pytest

from caseworker_cases.agent.work import MAX_SUMMARY_CHARS, summary
from tests.support.limits import case_defaults
from tests.unit.cases.agent.world import (
    calculate,
    cannot,
    case_run,
    events,
    plan,
    respond,
    result_of,
)

GOLD = "quite-unguessable-8813"
WRONG = plan(calculate("1 / 0"))


async def test_the_gold_answer_is_in_no_prompt_log_or_trace() -> None:
    """The gold answer appears in no prompt, log, trace or error."""
    here = case_run(
        ["no plan", plan(("abacus", {}), calculate("1 / 0")), plan(respond("blue"))],
        big=[plan(respond("green")), plan(respond("red"))],
    )

    outcome = await here.run(gold_answer=GOLD, act={"max_steps": 2})

    assert "not the right one" in here.big.document(1)["failure"]
    assert GOLD not in here.small.prompts + here.big.prompts
    assert GOLD not in json.dumps(result_of(outcome))
    assert GOLD not in json.dumps(here.trace.snapshot())
    assert GOLD not in str(outcome.error)


@pytest.mark.req("002/6.1", "002/9.1")
async def test_the_gold_answer_decides_what_is_verified() -> None:
    """The gold answer decides the verification, which shows that it was used at all."""
    right = result_of(await case_run([plan(respond(GOLD.upper()))]).run(gold_answer=GOLD))
    wrong = case_run([plan(respond("blue"))], big=[plan(respond("blue"))] * 2)
    unverified = result_of(await wrong.run(gold_answer=GOLD, mode="fallback_only"))

    assert (right["verified"], right["finish_reason"]) == (True, "success")
    assert (unverified["verified"], unverified["finish_reason"]) == (False, "big_fail")


@pytest.mark.req("002/14.1", "002/19.1", "002/7.1", "002/22.2")
async def test_every_step_is_logged_with_time_run_tier_and_kind() -> None:
    """Each step is logged in order, with time, run, tier and step type."""
    result = result_of(
        await case_run([WRONG], big=[plan(calculate("6 * 7"))]).run(mode="fallback_only")
    )

    assert [(entry["tier"], entry["step_type"]) for entry in result["logs"]] == [
        ("small", "gate"),
        ("small", "plan"),
        ("small", "tool"),
        ("small", "verify"),
        ("small", "gate"),
        ("big", "gate"),
        ("big", "gate"),
        ("big", "plan"),
        ("big", "tool"),
        ("big", "verify"),
        ("big", "gate"),
    ]
    assert {entry["run_id"] for entry in result["logs"]} == {"run-1"}
    assert all(datetime.fromisoformat(entry["ts"]).tzinfo for entry in result["logs"])


@pytest.mark.req("002/14.4", "002/19.4", "002/19.5", "002/20.4")
async def test_logs_say_what_was_used_done_found_measured_and_decided() -> None:
    """The log contains token usage, tool results, metrics, checks and decisions."""
    logs = result_of(await case_run([plan(calculate("6 * 7"))]).run())["logs"]

    _, planned, acted, verified, ruled = logs
    assert planned["token_usage"] == {
        "input": 100,
        "output": 20,
        "cached_input": 0,
        "reasoning": 0,
        "cost_usd": 0.0,
        "estimated": 0,
        "cost_usd_estimated": 0.0,
    }
    assert (acted["tool"], acted["args"]) == ("calculator", {"expression": "6 * 7"})
    assert '"value": "42"' in acted["output_summary"]
    assert verified["metric"] == 1.0
    assert {check for check, holds in verified["checks"].items() if holds} == {
        *("answered", "no_error", "repeated", "question_used", "computed_otherwise")
    }
    assert {check for check, holds in verified["checks"].items() if holds is None} == {
        *("tools_used", "gold", "expected_evidence", "operation")
    }
    assert (ruled["decision"], ruled["reason"]) == ("stop", "passed")


@pytest.mark.req("002/19.2")
async def test_personal_data_and_secrets_do_not_reach_the_log() -> None:
    """Personal data and secrets in arguments, results and replies are redacted in the log."""
    answer = "Write to bob@example.org with password: hunter2"
    replies = [plan((answer, {}), respond(answer)), cannot(answer)]
    result = result_of(
        await case_run([answer, replies[0]], big=replies).run(gold_answer="x", mode="fallback_only")
    )

    assert result["answer"] == answer
    assert "planner_cannot" in events(result)
    assert "bob@example.org" not in json.dumps(result["logs"])
    assert "hunter2" not in json.dumps(result["logs"])


def test_a_summary_is_redacted_before_it_is_cut() -> None:
    """A summary is redacted before it is cut, because a partial address is not recognised."""
    shown = summary("x " * 146 + "bob@example.org")

    assert len(shown) <= MAX_SUMMARY_CHARS + 1
    assert "bob" not in shown


@pytest.mark.req("002/25.1", "002/25.5", "002/9.5")
@pytest.mark.parametrize(
    ("timezone", "today"),
    [(None, "Monday, September 8, 2025"), ("Asia/Tokyo", "Tuesday, September 9, 2025")],
)
async def test_today_is_the_day_of_the_cases_own_zone(timezone: str | None, today: str) -> None:
    """Today's date is in the zone of the case, or in the configured one."""
    here = case_run([plan(respond("ok"))], defaults=case_defaults(timezone="UTC"))

    await here.run(timezone=timezone)

    assert here.small.document(0)["today"] == today
