"""The overhead of a turn without its model and tools, and the log lines of an agent."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from caseworker.core.budget.budget import Budget
from caseworker.models.ports import ModelError, ModelReply, ModelRequest
from tests.support.graph_invariants import assert_sound
from tests.support.work import counted_calls, counted_waits
from tests.unit.cases.agent.world import BrokenTool
from tests.unit.nodes.agent.world import agent, asking, model_reply, scripted_agent, wants

TURNS = 200


def turns(count: int, *, chars: int = 10) -> list[Any]:
    """Return `count` turns with one tool call each, and an answer."""
    calls = [model_reply("x" * chars, wants("echo", f"c{n}", say=str(n))) for n in range(count)]
    return [*calls, "Done."]


def unlimited() -> dict[str, Any]:
    return agent(tools=["echo"], limits={"max_turns": None})


@pytest.mark.req("003/NFR1.1")
async def test_a_turn_costs_far_less_than_100_ms() -> None:
    """The limits in calls and lines are a quarter above the measured few milliseconds."""
    here = scripted_agent(*turns(TURNS), budget=Budget())

    with counted_calls(lines=True) as work:
        outcome = await here.run(asking(unlimited()), default="?")

    assert outcome.steps["a"].outputs["result"]["turn_count"] == TURNS + 1
    assert work.calls / TURNS < 2_600, work
    assert work.lines / TURNS < 7_000, work


@pytest.mark.req("003/NFR1.1")
async def test_a_turn_waits_for_nothing_but_its_model_and_tools() -> None:
    """The model and the tool answer at once here, so the event loop never has to wait."""
    here = scripted_agent(*turns(TURNS), budget=Budget())

    with counted_waits() as waits:
        outcome = await here.run(asking(unlimited()), default="?")

    assert outcome.steps["a"].outputs["result"]["turn_count"] == TURNS + 1
    assert waits == []


@pytest.mark.req("003/NFR1.1")
async def test_a_wait_within_a_turn_is_noticed() -> None:
    """The count sees a model that answers after a pause."""

    async def late(request: ModelRequest) -> ModelReply:
        await asyncio.sleep(0.002)
        return model_reply("Done.")

    here = scripted_agent(late, budget=Budget())

    with counted_waits() as waits:
        await here.run(asking(unlimited()), default="?")

    assert any(wait is not None and wait > 0 for wait in waits)


def long_session(count: int) -> None:
    """Run turns with 400 kB of answers in this process and print its peak memory in bytes."""

    async def session() -> None:
        here = scripted_agent(*turns(count, chars=400_000 // count), budget=Budget())
        outcome = await here.run(asking(unlimited()), default="?")
        assert outcome.steps["a"].outputs["result"]["turn_count"] == count + 1

    asyncio.run(session())
    status = Path("/proc/self/status").read_text(encoding="ascii")
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", status)  # getrusage counts the parent's as well
    sys.stderr.write(str(int(peak) * 1024))


@pytest.mark.req("003/NFR1.3")
@pytest.mark.parametrize("count", [40, pytest.param(TURNS, marks=pytest.mark.proof)])
def test_the_process_of_a_long_session_stays_under_500_megabytes(count: int) -> None:
    """Each prompt contains all earlier answers, 400 kB at the end."""
    program = f"from {__name__} import long_session; long_session({count})"

    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=800
    )

    assert int(ran.stderr) < 500_000_000


@pytest.mark.req("003/NFR3.1", "003/NFR3.2")
async def test_the_end_of_an_agent_is_logged_with_turns_tokens_and_duration() -> None:
    """The log line has named fields and no sentence."""
    here = scripted_agent(*turns(2))

    with capture_logs() as logs:
        await here.run(asking(unlimited()), default="?")

    [ended] = [entry for entry in logs if entry["event"] == "agent.ended"]
    assert {name: ended[name] for name in ("agent", "step_id", "turns", "terminate_reason")} == {
        "agent": "helper",
        "step_id": "a",
        "turns": 3,
        "terminate_reason": "goal",
    }
    assert ended["token_usage"] == here.scope.usage.to_dict()["tokens"] == 45
    assert ended["seconds"] >= 0


FIELDS = {
    "agent.ended": {"agent", "step_id", "turns", "terminate_reason", "seconds", "token_usage"},
    "model.failed": {"model", "provider", "call_key", "attempt", "error_class", "error", "status"},
    "model.fallback": {"tier", "model", "error_class", "error", "fallback"},
    "step.attempt_failed": {"step_id", "node_id", "attempt", "error_class", "error", "exc_info"},
    "step.failed": {"step_id", "node_id", "attempts", "error_class", "error", "exc_info"},
    "tool.broke": {"tool", "call_key", "exc_info"},
}
"""The log events of a running agent, with the fields of each line."""


@pytest.mark.req("003/NFR3.1")
async def test_everything_that_goes_wrong_in_an_agent_is_logged_with_its_fields() -> None:
    """A broken tool, a fallback, a retry and the end each have a log line."""
    busy = ModelError("busy", retryable=True, status=503)
    definition = agent(tools=["broken"], model={"fallbacks": ["big"]})
    down = [busy, busy]
    here = scripted_agent(model_reply("", wants("broken")), *down, *down, more_tools=[BrokenTool()])
    policy = {"on_error": "retry", "retry_count": 1, "retry_delay_ms": 0}
    graph = asking(definition)
    graph["steps"][0]["policy"] = policy

    with capture_logs() as logs:
        outcome = await here.run(graph, default="?")

    assert outcome.error is not None
    found = {entry["event"]: entry.keys() - {"event", "log_level"} for entry in logs}
    assert found == FIELDS
    assert [e["terminate_reason"] for e in logs if e["event"] == "agent.ended"] == ["error"] * 2


@pytest.mark.req("003/NFR3.3", "001/wiring")
async def test_a_tool_call_is_a_child_of_the_llm_call_that_asked_for_it() -> None:
    """Events name the agent's node; its LLM calls are children of that node."""
    here = scripted_agent(*turns(2))

    await here.run(asking(unlimited()), default="?")

    snapshot = here.trace.snapshot()
    assert_sound(snapshot)
    [own] = [name for name, node in snapshot["nodes"].items() if node["name"] == "a"]
    calls = [node for node in snapshot["nodes"].values() if node["kind"] in ("llm", "tool")]
    assert [node["kind"] for node in calls] == ["llm", "tool"] * 2 + ["llm"]
    first, second = calls[0]["node_id"], calls[2]["node_id"]
    assert [node["parent_id"] for node in calls] == [own, first, own, second, own]
    turned = [event for event in here.told if event.type == "turn_start"]
    assert [event.node_id for event in turned] == [own] * 3
