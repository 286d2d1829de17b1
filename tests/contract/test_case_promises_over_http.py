"""Contracts of a case as its caller sees them: its inputs, results and errors."""

from typing import Any

import pytest

from tests.support.configured_cases import (
    QUESTION,
    RIGHT,
    Configured,
    plan,
)
from tests.support.fake_provider.script import Step
from tests.support.graph_invariants import violations

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUICK = {"RETRY_BASE_SECONDS": "0.01", "RETRY_JITTER": "0"}
PICTURE = {"kind": "line", "symbol": "AAPL", "start": "2012-01-03", "end": "2012-03-30"}


def said(run: dict[str, Any], event: str) -> list[dict[str, Any]]:
    """Return the entries of a case's log that report ``event``."""
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
    """Expected tools and the gold answer decide verification; the model never sees the answer."""
    run = await configured.run([RIGHT], [RIGHT], **fields, mode="fallback_only")

    assert run["result"]["verified"] is verified
    assert run["result"]["answer"] == "42"
    ended = ("completed", "success") if verified else ("failed", "big_fail")
    assert (run["status"], run["finish_reason"]) == ended
    assert run["result"]["finish_reason"] == run["finish_reason"]
    prompts = [arrival.prompt for arrival in await configured.provider.arrivals()]
    assert not any("43" in prompt for prompt in prompts)


@pytest.mark.req("002/5.3", "002/5.4", "002/9.4")
async def test_a_picture_is_referred_to_by_a_url_that_gives_it_out(configured: Configured) -> None:
    """The server chooses the file name, and the result contains no image data."""
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


@pytest.mark.req("002/4.2", "002/4.3", "002/13.4", "002/14.1", "002/14.4", "002/21.1")
async def test_failures_that_retries_mended_are_in_the_trace_and_the_log(
    configured: Configured,
) -> None:
    """The log has kind and reason; the call counts once and its three attempts are listed."""
    await configured.script([Step(hang=True), Step(status=429), RIGHT])
    async with configured.serving(**QUICK, MODELS_SMALL_TIMEOUT_SECONDS="1.5") as client:
        run = await client.post_run(QUESTION, wait_seconds=120)
        snapshot = (await client.trace(run["run_id"]))["snapshot"]

    nodes = list(snapshot["nodes"].values())
    (call,) = (node for node in nodes if node["kind"] == "llm")
    attempts = [n for n in nodes if (n["parent_id"], n["name"]) == (call["node_id"], "attempt")]
    assert [(node["status"], node["error_class"]) for node in attempts] == [
        ("fail", "TimeoutError"),
        ("fail", "ModelUnavailable"),
        ("success", None),
    ]
    assert "1.5 seconds" in attempts[0]["stop_reason"]
    logged = said(run, "attempt_failed")
    assert [(entry["step_type"], entry["error_class"]) for entry in logged] == [
        ("plan", "TimeoutError"),
        ("plan", "ModelUnavailable"),
    ]
    assert "1.5 seconds" in logged[0]["error"]
    assert (run["usage"]["llm_calls_small"], run["usage"]["api_calls"]) == (1, 3)
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
    """After three attempts the log distinguishes a network failure from a busy provider."""
    seconds = "1" if failure.hang else "20"
    run = await configured.run([failure], [RIGHT], **QUICK, MODELS_SMALL_TIMEOUT_SECONDS=seconds)

    (logged,) = said(run, "provider_error")
    assert (logged["tier"], logged["error_class"], logged["attempts"]) == ("small", error_class, 3)
    assert len(said(run, "escalate_to_big")) == 1
    assert (run["finish_reason"], run["result"]["answer"]) == ("success", "42")
    assert await configured.call_counts() == {"small": 3, "big": 1}


@pytest.mark.req("002/5.4", "002/7.1", "002/14.4", "002/14.5")
async def test_every_action_stands_in_the_evidence_the_log_and_the_trace(
    configured: Configured,
) -> None:
    """Failed and refused actions are recorded too, and every ruling states its reason."""
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
