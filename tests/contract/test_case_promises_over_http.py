"""What a case promises, seen by its caller: what goes in, what comes out, and what goes wrong."""

from typing import Any

import pytest

from tests.support.configured_cases import (
    FAILING,
    QUESTION,
    RIGHT,
    WRONG,
    Configured,
    calculation,
    plan,
)
from tests.support.fake_provider.script import Step
from tests.support.graph_invariants import violations
from tests.support.service import finished

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUICK = {"RETRY_BASE_SECONDS": "0.01", "RETRY_JITTER": "0"}
PICTURE = {"kind": "line", "symbol": "AAPL", "start": "2012-01-03", "end": "2012-03-30"}


def said(run: dict[str, Any], event: str) -> list[dict[str, Any]]:
    """The entries of a case's log that tell of an event."""
    return [entry for entry in run["result"]["logs"] if entry.get("event") == event]


@pytest.mark.req("002/9.1", "002/6.1", "002/7.4")
@pytest.mark.parametrize(
    ("fields", "verified"),
    [
        ({}, True),
        ({"expected_tools": ["calculator"]}, True),
        ({"expected_tools": ["calculator", "calendar"]}, False),
        ({"gold_answer": "42.0"}, True),
        ({"gold_answer": "43"}, False),
        ({"gold_answer": None, "expected_tools": []}, True),
    ],
)
async def test_what_a_caller_expects_decides_what_is_verified(
    configured: Configured, fields: dict[str, Any], verified: bool
) -> None:
    """Tools that must be used and the right answer, which no model is told."""
    run = await configured.run([RIGHT], [RIGHT], **fields, mode="fallback_only")

    assert run["result"]["verified"] is verified
    assert run["result"]["answer"] == "42"
    ended = ("completed", "success") if verified else ("failed", "big_fail")
    assert (run["status"], run["finish_reason"]) == ended
    assert run["result"]["finish_reason"] == run["finish_reason"]
    prompts = [arrival.prompt for arrival in await configured.provider.arrivals()]
    assert not any("43" in prompt for prompt in prompts)


@pytest.mark.req("002/9.2", "002/14.1", "002/14.3", "002/19.4", "002/20.1", "002/22.2", "002/22.5")
async def test_a_result_has_its_answer_its_log_and_its_counters(configured: Configured) -> None:
    """Every entry of the log names the run; the counters are those of the run's usage."""
    run = await configured.run([FAILING, RIGHT], run_id="case-with-a-result")

    result = run["result"]
    assert {"answer", "verified", "finish_reason", "logs", "artifacts", "counters"} <= set(result)
    assert {entry["run_id"] for entry in result["logs"]} == {"case-with-a-result"}
    assert all({"ts", "tier", "step_type"} <= set(entry) for entry in result["logs"])
    steps = [entry["step_type"] for entry in result["logs"]]
    assert steps == ["gate", "plan", "tool", "verify"] * 2 + ["gate"]
    counters = {name: result["counters"][name] for name in ("llm_calls_small", "tool_calls")}
    assert counters == {name: run["usage"][name] for name in counters}
    assert result["counters"]["act_steps"] == 2
    assert result["counters"]["tokens"]["total"]["input"] > 0


@pytest.mark.req("002/5.3", "002/5.4", "002/9.4")
async def test_a_picture_is_referred_to_by_a_url_that_gives_it_out(configured: Configured) -> None:
    """The name is the server's; no bytes stand in the result."""
    await configured.script([plan("plotter", PICTURE | {"title": "../../etc/passwd"})])
    async with configured.serving() as client:
        run = await client.post_run(
            {"input": "Plot AAPL.", "expected_tools": ["plotter"]}, wait_seconds=120
        )
        (artifact,) = run["result"]["artifacts"]
        picture = await client.artifact(run["run_id"], artifact["name"])

    assert artifact["url"] == f"/runs/{run['run_id']}/artifacts/{artifact['name']}"
    assert artifact["name"].startswith("plot-aapl-line-")
    assert picture.startswith(b"\x89PNG")
    assert (len(picture), run["result"]["verified"]) == (artifact["size_bytes"], True)


@pytest.mark.req("002/4.2", "002/13.4", "002/14.4", "002/21.1")
async def test_a_timeout_that_a_retry_mended_is_in_the_trace(configured: Configured) -> None:
    """With its kind and its reason; the logical call counts once, its attempts twice."""
    await configured.script([Step(hang=True), RIGHT])
    async with configured.serving(**QUICK, MODELS_SMALL_TIMEOUT_SECONDS="1.5") as client:
        run = await client.post_run(QUESTION, wait_seconds=120)
        snapshot = (await client.trace(run["run_id"]))["snapshot"]

    nodes = list(snapshot["nodes"].values())
    (call,) = (node for node in nodes if node["kind"] == "llm")
    attempts = [node for node in nodes if node["parent_id"] == call["node_id"]]
    assert [(node["status"], node["error_class"]) for node in attempts] == [
        ("fail", "TimeoutError"),
        ("success", None),
    ]
    assert "1.5 seconds" in attempts[0]["stop_reason"]
    assert (run["usage"]["llm_calls_small"], run["usage"]["api_calls"]) == (1, 2)
    assert (run["result"]["verified"], violations(snapshot)) == (True, [])


@pytest.mark.req("002/1.4", "002/4.2", "002/8.5", "002/13.5", "002/21.2", "002/21.5")
@pytest.mark.parametrize(
    ("failure", "error_class"),
    [
        (Step(status=503), "ModelUnavailable"),
        (Step(status=429), "ModelUnavailable"),
        (Step(cut="before"), "ModelUnavailable"),
        (Step(hang=True), "TimeoutError"),
    ],
)
async def test_a_small_model_that_is_down_is_logged_and_the_big_one_answers(
    configured: Configured, failure: Step, error_class: str
) -> None:
    """After three attempts, in words that tell a network from a busy provider."""
    seconds = "1" if failure.hang else "20"
    run = await configured.run([failure], [RIGHT], **QUICK, MODELS_SMALL_TIMEOUT_SECONDS=seconds)

    (logged,) = said(run, "provider_error")
    assert (logged["tier"], logged["error_class"], logged["attempts"]) == ("small", error_class, 3)
    assert len(said(run, "escalate_to_big")) == 1
    assert (run["finish_reason"], run["result"]["answer"]) == ("success", "42")
    assert await configured.asked() == {"small": 3, "big": 1}


@pytest.mark.req("002/3.4", "002/13.5", "002/17.1", "002/21.5")
async def test_two_models_that_are_down_fail_the_case_and_keep_what_was_found(
    configured: Configured,
) -> None:
    """The evidence of the first round stays; each of the big tier's two attempts is retried."""
    busy = Step(status=500)

    run = await configured.run([WRONG, busy], [busy], **QUICK, gold_answer="42")

    assert await configured.asked() == {"small": 4, "big": 6}
    assert (run["status"], run["finish_reason"], run["usage"]["api_calls"]) == (
        "failed",
        "big_fail",
        10,
    )
    assert (run["result"]["answer"], run["result"]["verified"]) == ("49", False)
    assert [entry["attempts"] for entry in said(run, "provider_error")] == [3, 3, 3]


@pytest.mark.req("002/4.5", "002/8.4", "002/11.4", "002/11.5", "002/13.3")
async def test_the_big_model_is_told_what_was_tried_found_and_wrong(
    configured: Configured,
) -> None:
    """First by the small tier, then by itself."""
    run = await configured.run(
        [FAILING], [calculation("2 / 0"), RIGHT], mode="fallback_only", run_id="told"
    )

    first, second = [await configured.document(place) for place in (1, 2)]
    assert first["previous_plan"]["actions"][0]["args"] == {"expression": "1 / 0"}
    assert second["previous_plan"]["actions"][0]["args"] == {"expression": "2 / 0"}
    assert "division by zero" in first["failure"]
    assert "division by zero" in second["failure"]
    assert [len(told["evidence"]) for told in (first, second)] == [1, 2]
    assert [found["tier"] for found in run["result"]["evidence"]] == ["small", "big", "big"]
    assert run["finish_reason"] == "success"


@pytest.mark.req("002/5.4", "002/7.1", "002/14.4", "002/14.5")
async def test_every_action_stands_in_the_evidence_the_log_and_the_trace(
    configured: Configured,
) -> None:
    """Also one that failed and one that was refused; every ruling says why."""
    both = plan("calculator", {"expression": "1 / 0"}, {"expression": "7 * 7"})
    await configured.script([plan("abacus", {"beads": 7}), both, RIGHT])
    async with configured.serving() as client:
        run = await client.post_run(QUESTION, wait_seconds=120)
        snapshot = (await client.trace(run["run_id"]))["snapshot"]

    result = run["result"]
    acted = [entry for entry in result["logs"] if entry["step_type"] == "tool"]
    calls = [node for node in snapshot["nodes"].values() if node["kind"] == "tool"]
    evidence = [found for found in result["evidence"] if "warning" not in found]
    assert [entry["args"]["expression"] for entry in acted] == ["1 / 0", "7 * 7", "6 * 7"]
    assert [found["args"] for found in evidence] == [entry["args"] for entry in acted]
    assert [call["metadata"]["args"] for call in calls] == [entry["args"] for entry in acted]
    assert [call["status"] for call in calls] == ["fail", "success", "success"]
    assert "division_by_zero" in acted[0]["output_summary"]
    assert [entry["tool"] for entry in said(run, "unknown_tool")] == ["abacus"]
    rulings = [entry["reason"] for entry in result["logs"] if "decision" in entry]
    assert rulings == ["within_limits", "within_limits", "passed"]


@pytest.mark.req("002/14.3", "002/14.5")
async def test_a_case_that_is_cancelled_shows_what_it_had_found(configured: Configured) -> None:
    """It has no finish reason, and nobody is asked any more."""
    await configured.script([WRONG, Step(hang=True)])
    async with configured.serving() as client:
        posted = await client.post_run({**QUESTION, "gold_answer": "42"})
        await configured.provider.wait_for_arrivals(2)
        await client.cancel_run(posted["run_id"], reason="changed our mind")
        run = await finished(client, posted["run_id"])

    assert (run["status"], run["finish_reason"], run["stop"]["kind"]) == (
        "cancelled",
        None,
        "cancelled",
    )
    assert [found["result"]["value"] for found in run["result"]["evidence"]] == ["49"]
    assert run["result"]["counters"]["llm_calls_small"] == run["usage"]["llm_calls_small"] == 2
    assert await configured.asked() == {"small": 2, "big": 0}
