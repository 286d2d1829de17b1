"""Configured values apply to cases over HTTP: each key changes what a run does.

The settings come from the environment, as an operator sets them. The model is a separate process,
and the tests compare with its record of received requests.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from caseworker_client import ApiError

from tests.support.configured_cases import FAILING, RIGHT, WRONG, Configured, calculation, plan
from tests.support.fake_provider.script import Step

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENT = {"ACT_MAX_STEPS": "50", "ACT_NO_PROGRESS_PATIENCE": "50"}
"""Limits high enough that only the tested limit ends the work of the small tier."""


def rulings(run: dict[str, Any]) -> list[str]:
    """Return the reasons of the gate's rulings, in order."""
    return [entry["reason"] for entry in run["result"]["logs"] if "decision" in entry]


@pytest.mark.req("002/2.1", "002/2.2", "002/2.5", "002/17.4")
async def test_six_small_and_two_big_calls_are_what_a_case_may_make(configured: Configured) -> None:
    """The default limits apply if the request sets none; the case fails when they are exhausted."""
    unknown = plan("abacus", {}, {})
    small = [unknown, WRONG] * 3

    run = await configured.run(small, **PATIENT, gold_answer="42")

    assert await configured.call_counts() == {"small": 6, "big": 2}
    assert "max_llm_calls_small" in rulings(run)
    assert (run["status"], run["finish_reason"]) == ("failed", "big_fail")


@pytest.mark.req("002/2.3", "002/2.5", "002/17.4")
async def test_six_tool_calls_are_what_a_case_may_make(configured: Configured) -> None:
    """Two rounds of three calls run; the limit stops the third round and nothing escalates."""
    run = await configured.run([calculation("1 / 0", "2 / 0", "3 / 0")], **PATIENT)

    assert (run["status"], run["stop"]["dimension"]) == ("halted", "tool_calls")
    assert (run["stop"]["limit"], run["usage"]["tool_calls"]) == (6, 6)
    assert await configured.call_counts() == {"small": 2, "big": 0}
    assert run["result"]["counters"]["tool_calls"] == len(run["result"]["evidence"]) == 6


@pytest.mark.req("002/2.1", "002/2.2", "002/2.3", "002/15.2")
@pytest.mark.parametrize(
    ("limit", "asked", "dimension"),
    [
        ({"BUDGET_MAX_LLM_CALLS_SMALL": "1"}, {"small": 1, "big": 2}, None),
        ({"BUDGET_MAX_LLM_CALLS_SMALL": "0"}, {"small": 0, "big": 2}, None),
        ({"BUDGET_MAX_LLM_CALLS_BIG": "1"}, {"small": 2, "big": 1}, None),
        ({"BUDGET_MAX_LLM_CALLS_BIG": "0"}, {"small": 2, "big": 0}, "llm_calls_big"),
        ({"BUDGET_MAX_TOOL_CALLS": "1"}, {"small": 1, "big": 0}, "tool_calls"),
        ({"BUDGET_MAX_API_CALLS": "1"}, {"small": 1, "big": 0}, "api_calls"),
        ({"BUDGET_MAX_TOKENS": "1"}, {"small": 0, "big": 0}, "tokens"),
    ],
)
async def test_a_configured_limit_allows_exactly_so_much(
    configured: Configured, limit: dict[str, str], asked: dict[str, int], dimension: str | None
) -> None:
    """The limit is exact, and a halted run names it."""
    run = await configured.run([FAILING], **limit)

    assert await configured.call_counts() == asked
    assert (run["stop"] or {}).get("dimension") == dimension
    assert run["finish_reason"] == ("budget" if dimension else "big_fail")


@pytest.mark.req("002/2.4", "002/15.2")
async def test_the_configured_seconds_end_a_case_whose_model_says_nothing(
    configured: Configured,
) -> None:
    """The call in flight is cut off, and the run names the limit that stopped it."""
    run = await configured.run([Step(hang=True)], BUDGET_MAX_SECONDS="1.5")

    assert (run["status"], run["finish_reason"]) == ("halted", "budget")
    assert (run["stop"]["dimension"], run["stop"]["limit"]) == ("seconds", 1.5)
    (arrival,) = await configured.provider.wait_for_arrivals(1, ended=True)
    assert arrival.outcome == "client_gone"


@pytest.mark.req("002/2.4", "002/17.4")
async def test_sixty_seconds_are_what_a_case_may_take(configured: Configured) -> None:
    """A retry delay beyond the limit is not waited for."""
    later = Step(status=429, headers={"retry-after": "61"})

    run = await configured.run([later], RETRY_MAX_SECONDS="100")

    assert await configured.call_counts() == {"small": 1, "big": 2}
    assert run["result"]["counters"]["llm_calls_small"] == 1


@pytest.mark.req("002/3.1", "002/3.2", "002/17.2", "002/24.1", "002/24.2", "002/24.5")
@pytest.mark.parametrize(
    ("settings", "passes", "act_steps"),
    [
        ({}, 3, 3),
        ({"FLAGS_MODE": "fallback_only"}, 1, 1),
        ({"FLAGS_MODE": "fallback_only", "ACT_MAX_STEPS_FALLBACK_ONLY": "0"}, 1, 0),
        ({"ACT_MAX_STEPS": "2"}, 2, 2),
        ({"mode": "fallback_only"}, 1, 1),
        ({"FLAGS_MODE": "fallback_only", "mode": "hrm_small_then_escalate"}, 3, 3),
        ({"FLAGS_MODE": "fallback_only", "mode": "escalate"}, 3, 3),
        ({"FLAGS_MODE": "escalate"}, 3, 3),
    ],
)
async def test_each_mode_makes_as_many_rounds_as_configured(
    configured: Configured, settings: dict[str, str], passes: int, act_steps: int
) -> None:
    """The configured rounds run before the big tier; the request can set another mode."""
    run = await configured.run(
        [WRONG], [RIGHT], **settings, ACT_NO_PROGRESS_PATIENCE="50", gold_answer="42"
    )

    assert await configured.call_counts() == {"small": passes, "big": 1}
    assert run["result"]["counters"]["act_steps"] == act_steps
    assert (run["finish_reason"], run["result"]["answer"]) == ("success", "42")


@pytest.mark.req("002/3.2", "002/17.2", "002/24.5")
async def test_a_case_inside_a_graph_has_the_configured_mode_too(configured: Configured) -> None:
    """With the mode ``fallback_only`` configured, the case makes one round in each tier."""
    await configured.script([WRONG], [RIGHT])
    case = {"input": "What is 6 times 7?", "gold_answer": "42"}
    graph = {"steps": [{"id": "ask", "type": "case", "data": case}], "edges": []}

    async with configured.serving(FLAGS_MODE="fallback_only") as client:
        run = await client.run_graph(graph, wait_seconds=120)

    assert await configured.call_counts() == {"small": 1, "big": 1}
    assert run["result"]["outputs"]["ask"]["default"] == "42"


@pytest.mark.req("002/2.5", "002/6.5", "002/11.3", "002/17.3")
@pytest.mark.parametrize(
    ("escalate_when", "ended", "big"),
    [("fail", ("halted", "budget"), 0), ("fail_or_budget", ("completed", "success"), 1)],
)
async def test_the_configured_rule_says_whether_used_up_steps_escalate(
    configured: Configured, escalate_when: str, ended: tuple[str, str], big: int
) -> None:
    """With ``fail`` exhausted steps end the run instead of escalating."""
    settings = {"FLAGS_ESCALATE_WHEN": escalate_when, "ACT_MAX_STEPS": "1"}

    run = await configured.run([WRONG], [RIGHT], **settings, gold_answer="42")

    assert (run["status"], run["finish_reason"]) == ended
    assert (await configured.call_counts())["big"] == big


@pytest.mark.req("002/6.2", "002/6.4", "002/11.1")
@pytest.mark.parametrize(
    ("settings", "small"),
    [
        ({"ACT_NO_PROGRESS_PATIENCE": "0"}, 2),
        ({}, 3),
        ({"ACT_NO_PROGRESS_PATIENCE": "0", "ACT_MIN_IMPROVEMENT": "0.9"}, 1),
    ],
)
async def test_the_configured_patience_and_improvement_end_the_small_tiers_work(
    configured: Configured, settings: dict[str, str], small: int
) -> None:
    """The first round passes three of four checks and later rounds do not improve on that."""
    run = await configured.run([WRONG], [RIGHT], ACT_MAX_STEPS="9", **settings, gold_answer="42")

    assert "no_progress" in rulings(run)
    assert (await configured.call_counts())["small"] == small


@pytest.mark.req("002/15.1")
@pytest.mark.parametrize(("share", "verified"), [("0.8", True), ("0.81", False)])
async def test_the_configured_share_of_checks_is_what_an_answer_must_pass(
    configured: Configured, share: str, verified: bool
) -> None:
    """A right answer next to a failed action passes four of five checks."""
    both = plan("calculator", {"expression": "1 / 0"}, {"expression": "6 * 7"})
    run = await configured.run(
        [both], [both], VERIFIER_THRESHOLDS_PASS_METRIC=share, mode="fallback_only"
    )

    assert run["result"]["verified"] is verified


@pytest.mark.req("002/9.3", "002/23.4", "002/23.5")
async def test_the_configured_length_of_an_input_is_the_limit(configured: Configured) -> None:
    """One more character is refused, and the refusal names the limit."""
    await configured.provider.script("", [RIGHT], repeat_last=True)
    async with configured.serving(FLAGS_MAX_INPUT_CHARS="12") as client:
        run = await client.post_run({"input": "\N{SNOWMAN}" * 12}, wait_seconds=120)
        with pytest.raises(ApiError, match="12") as refused:
            await client.post_run({"input": "\N{SNOWMAN}" * 13})

    assert run["status"] == "completed"
    assert refused.value.status == 422
    assert [error["field"] for error in refused.value.problem["errors"]] == ["input"]


@pytest.mark.req("002/9.5", "002/25.1", "002/25.5")
@pytest.mark.parametrize(
    ("fields", "zone"),
    [({}, "Pacific/Kiritimati"), ({"timezone": "America/Lima"}, "America/Lima")],
)
async def test_the_configured_zone_holds_unless_a_case_names_its_own(
    configured: Configured, fields: dict[str, str], zone: str
) -> None:
    """The zone applies to the planner's day and to the calendar."""
    today = plan("calendar", {"operation": "today"})

    run = await configured.run([today], FLAGS_TIMEZONE="Pacific/Kiritimati", **fields)

    found = run["result"]["evidence"][0]["result"]
    assert (await configured.document())["today"] == found["text"]
    assert found["timezone"] == zone


@pytest.mark.req("002/22.1")
@pytest.mark.parametrize(("fields", "seed"), [({}, 11), ({"seed": 12}, 12)])
async def test_the_configured_seed_reaches_the_model_unless_a_case_names_its_own(
    configured: Configured, fields: dict[str, int], seed: int
) -> None:
    """Every request to the model has the seed."""
    await configured.run([FAILING, RIGHT], FLAGS_SEED="11", **fields)

    assert [(await configured.body(place))["seed"] for place in (0, 1)] == [seed, seed]


@pytest.mark.req("002/23.1", "002/23.2")
@pytest.mark.parametrize(
    ("settings", "offered"),
    [
        ({"TOOLS_ALLOW": '["respond", "calendar"]'}, ["calendar", "respond"]),
        ({"TOOLS_ALLOW": '["respond", "calculator"]', "TOOLS_DENY": "calculator"}, ["respond"]),
    ],
)
async def test_only_the_configured_tools_are_offered_and_run(
    configured: Configured, settings: dict[str, str], offered: list[str]
) -> None:
    """A plan that uses another tool gets the error for an unknown tool."""
    answered_so = plan("respond", {"answer": "42"})
    run = await configured.run([RIGHT, answered_so], **settings, gold_answer="42")

    functions = (await configured.document())["functions"]
    assert list(dict.fromkeys(name.partition(".")[0] for name in functions[:-1])) == offered
    refused, answered = run["result"]["evidence"]
    assert (refused["warning"], refused["result"]["code"]) == ("unknown_tool", "unknown_tool")
    assert (answered["tool"], run["result"]["answer"]) == ("respond", "42")
    assert run["usage"]["tool_calls"] == 1


RETRIES = {
    "RETRY_MAX_RETRIES": "3",
    "RETRY_BASE_SECONDS": "0.02",
    "RETRY_FACTOR": "4",
    "RETRY_JITTER": "0",
}


@pytest.mark.req("002/13.2", "002/21.1", "002/21.2", "002/15.2")
async def test_as_many_retries_are_made_as_configured(configured: Configured) -> None:
    """After three retries the call succeeds, so the big tier is not used."""
    run = await configured.run([Step(status=503)] * 3 + [RIGHT], **RETRIES)

    assert run["usage"]["api_calls"] == 4
    assert await configured.call_counts() == {"small": 4, "big": 0}


@pytest.mark.proof
async def test_retries_are_made_after_the_configured_waits(configured: Configured) -> None:
    """Each retry waits four times as long as the one before."""
    await configured.run([Step(status=503)] * 3 + [RIGHT], **RETRIES)

    times = [arrival.arrived_monotonic for arrival in await configured.provider.arrivals()]
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert all(wait >= least for wait, least in zip(waits, (0.02, 0.08, 0.32), strict=True))
    assert waits[0] < 0.4  # the usual wait would be half a second


@pytest.mark.req("002/1.1", "002/1.4", "002/15.1", "002/20.2", "002/20.3")
async def test_each_tier_asks_the_model_that_is_configured_at_its_price(
    configured: Configured,
) -> None:
    """The small model is asked first, and tokens and dollars are reported by tier and in total."""
    prices = {
        "MODELS_SMALL_PRICE_PER_MILLION_IN_USD": "1000",
        "MODELS_SMALL_PRICE_PER_MILLION_OUT_USD": "2000",
        "MODELS_BIG_PRICE_PER_MILLION_IN_USD": "10000",
        "MODELS_BIG_PRICE_PER_MILLION_OUT_USD": "20000",
    }
    options = {"MODELS_SMALL_TEMPERATURE": "0.25", "MODELS_BIG_MAX_OUTPUT_TOKENS": "777"}
    options["ADMISSION_MAX_COST_USD"] = "1000"
    small, big = (replace(step, tokens_in=100, tokens_out=10) for step in (FAILING, RIGHT))

    run = await configured.run([small], [big], **prices, **options, mode="fallback_only")

    bodies = [await configured.body(place) for place in (0, 1)]
    assert [body["model"] for body in bodies] == ["fake-small", "fake-big"]
    assert bodies[0]["temperature"] == 0.25
    assert bodies[1]["max_tokens"] == 777
    tokens = run["result"]["counters"]["tokens"]
    assert {tier: spent["cost_usd"] for tier, spent in tokens.items()} == {
        "small": pytest.approx(0.12),
        "big": pytest.approx(1.2),
        "total": pytest.approx(1.32),
    }
    assert run["usage"]["cost_usd"] == pytest.approx(1.32)
    assert run["usage"]["tokens"] == tokens["total"]["input"] + tokens["total"]["output"] == 220
