"""Approvals with real processes: no call before a person approves, and then exactly one."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.approvals import (
    People,
    Settings,
    decide,
    finished,
    graph_run,
    note,
    open_approvals,
    people,
    serving,
)
from tests.support.graph_documents import edge
from tests.support.noting_tool import noted
from tests.support.service import SETTLED, ServiceProcess
from tests.support.stores import open_oracle

DEADLINE_PASSES = """
UPDATE runs SET deadline = now(), queued_at = now(),
    request = jsonb_set(request, '{deadline}', to_jsonb(now()))
WHERE run_id = 'late'
"""

pytestmark = pytest.mark.usefixtures("sound_events")


async def test_a_tool_is_called_once_after_a_person_has_agreed(
    database_url: str, settings: Settings, notes: Path
) -> None:
    """Until then the run occupies no worker; trace and events show the decision."""
    async with (
        ServiceProcess(database_url, settings=settings) as service,
        people(service) as client,
    ):
        await client.post_run(graph_run("a", note("write", "hello")))
        (approval,) = await open_approvals(client, "a")

        assert noted(notes) == []
        assert approval["subject"] == "note"
        assert approval["arguments"] == {"text": "hello"}
        listed = (await client.get("/approvals")).json()["approvals"]
        assert [each["approval_id"] for each in listed] == [approval["approval_id"]]
        pausing = await client.get_run("a")
        assert (pausing["attempts"], pausing["usage"]["steps"]) == (1, 1)
        answer = await decide(client, approval)
        again = await decide(client, approval, "approved")
        other = await decide(client, approval, "refuse")
        run = await finished(client, "a")

        assert (answer.status_code, again.status_code, other.status_code) == (202, 202, 409)
        assert run["status"] == "completed", run
        assert (run["attempts"], noted(notes)) == (1, ["a: hello"])
        events = (await client.get("/runs/a/events", headers={"Accept": "application/json"})).json()
        kinds = [each["type"] for each in events["events"]]
        assert [kind for kind in kinds if kind.startswith("approval.")] == [
            "approval.requested",
            "approval.approved",
        ]
        (approved,) = (each for each in events["events"] if each["type"] == "approval.approved")
        assert "arguments" not in approved["data"]
        assert approved["data"]["arguments_changed"] is False
        text = (await client.get("/runs/a/trace", params={"format": "explain"})).text
        assert " for approvals." in text
        nodes = await client.nodes("a")
        (decided,) = (
            n for n in nodes if n["name"] == "approval of note" and n["status"] == "success"
        )
        assert decided["metadata"]["decision"]["by"] == "anonymous"
        assert (await client.get("/approvals")).json()["approvals"] == []


async def shown_as_waiting(client: People, run_id: str) -> None:
    """Check that trace, text and call say that one of three steps waits, and nothing stopped."""
    trace = (await client.get(f"/runs/{run_id}/trace")).json()
    last = {step["step_id"]: step for step in trace["steps"]}
    waits = [step for step in last.values() if step["status"] == "waiting"]
    assert sorted(step["status"] for step in last.values()) == ["completed"] * 2 + ["waiting"]
    assert [step for step in trace["steps"] if step["status"] == "waiting"] == waits
    assert waits[0]["finished_at"] is None
    assert trace["analysis"]["stopped_at"] is None
    text = (await client.get(f"/runs/{run_id}/trace", params={"format": "explain"})).text
    assert text.startswith(f"Run {run_id} is waiting after ")
    call = (await client.get(f"/runs/{run_id}/calls/{waits[0]['node_id']}")).json()
    assert (call["status"], call["finished_at"]) == ("waiting", None)


async def test_lanes_that_can_work_go_on_and_each_approval_counts(
    database_url: str, settings: Settings, notes: Path
) -> None:
    """Two lanes wait; after one decision the run waits again for the other."""
    calculated = {
        "id": "sum",
        "type": "tool",
        "data": {"tool": "calculator", "args": {"expression": "6 * 7"}},
    }
    async with (
        ServiceProcess(database_url, settings=settings) as service,
        people(service) as client,
    ):
        body = graph_run("a", note("one", "first"), note("two", "second"), calculated)
        await client.post_run(body)
        first, second = await open_approvals(client, "a", count=2)
        await decide(client, first)
        (left,) = await open_approvals(client, "a")
        assert left["approval_id"] == second["approval_id"]
        assert len(noted(notes)) == 1
        await shown_as_waiting(client, "a")
        await decide(client, second)
        run = await finished(client, "a")

        assert run["status"] == "completed", run
        assert sorted(noted(notes)) == ["a: first", "a: second"]
        nodes = await client.nodes("a")
        assert sum(n["kind"] == "tool" and n["name"] == "calculator" for n in nodes) == 1


async def test_a_step_asks_and_goes_on_as_decided(
    database_url: str, settings: Settings, notes: Path
) -> None:
    """Approved arguments leave on one handle, and the reason of a refusal leaves on the other."""
    ask = {
        "id": "ask",
        "type": "approval",
        "data": {
            "message": "Pay ${default.amount}?",
            "changes": {"type": "object", "properties": {"amount": {"type": "integer"}}},
        },
    }

    def after(handle: str) -> dict[str, Any]:
        data = {"tool": "calculator", "args": {"expression": "1 + 1"}}
        return {"id": handle, "type": "tool", "data": data}

    edges = [
        edge("ask", way, channel="flow") | {"source_handle": way} for way in ("approved", "refused")
    ]
    async with (
        ServiceProcess(database_url, settings=settings) as service,
        people(service) as client,
    ):
        for run_id in ("yes", "no", "changed"):
            body = graph_run(run_id, ask, after("approved"), after("refused"), edges=edges)
            await client.post_run({**body, "input": {"amount": 5}})
        yes, no, changed = [
            (await open_approvals(client, each))[0] for each in ("yes", "no", "changed")
        ]
        assert yes["message"] == "Pay 5?"
        await decide(client, yes)
        await decide(client, no, "refuse", reason="too much")
        await decide(client, changed, arguments={"amount": 3})
        ended = {
            each: (await finished(client, each))["result"]["outputs"]
            for each in ("yes", "no", "changed")
        }

    assert "refused" not in ended["yes"]
    assert "approved" not in ended["no"]
    assert ended["no"]["ask"]["refused"]["reason"] == "too much"
    assert ended["changed"]["ask"] == {"approved": {"amount": 3}}


async def test_what_waits_survives_kill_and_restart_and_is_asked_once(
    database_url: str, settings: Settings, notes: Path
) -> None:
    """The process is killed while waiting and right after the decision; the tool runs once."""
    async with ServiceProcess(database_url, settings=settings, name="first") as first:
        async with people(first) as client:
            await client.post_run(graph_run("a", note("write", "hello")))
            (before,) = await open_approvals(client, "a")
        first.child.kill()
        async with (
            ServiceProcess(database_url, settings=settings, name="second") as second,
            people(second) as client,
        ):
            (approval,) = await open_approvals(client, "a")
            assert approval["approval_id"] == before["approval_id"]
            assert (await decide(client, approval)).status_code == 202
            second.child.kill()
        await first.start()
        async with people(first) as client:
            run = await finished(client, "a")
            asked = (await client.get("/runs/a/approvals")).json()["approvals"]

    assert run["status"] in ("completed", "failed")
    assert len(asked) == 1
    assert len(noted(notes)) <= 1
    assert run["status"] == "failed" or noted(notes) == ["a: hello"]


async def test_the_end_of_the_time_and_a_cancel_end_the_wait(
    database_url: str, settings: Settings, notes: Path
) -> None:
    """The tool is not called, and a later decision is refused."""
    quick = settings | {"TOOLS_APPROVAL_TIMEOUT_SECONDS": "1.0"}
    async with (
        ServiceProcess(database_url, settings=quick) as service,
        people(service) as client,
    ):
        await client.post_run(graph_run("late", note("write", "hello")))
        run = await finished(client, "late")
        (approval,) = (await client.get("/runs/late/approvals")).json()["approvals"]
        assert run["status"] == "failed"
        assert approval["decision"]["decision"] == "timed_out"
        assert (await decide(client, approval)).status_code == 409
    async with (
        ServiceProcess(database_url, settings=settings | SETTLED) as service,
        people(service) as client,
    ):
        await client.post_run(graph_run("stopped", note("write", "hello")))
        (approval,) = await open_approvals(client, "stopped")
        receipt = (await client.delete("/runs/stopped")).json()
        assert receipt["status"] == "cancelled"
        assert (await decide(client, approval)).status_code == 409
        assert (await client.get_run("stopped"))["finished_at"] == receipt["settled_at"]
        assert psutil.Process(service.child.pid).is_running()
    assert noted(notes) == []


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def test_a_deadline_halts_a_run_that_waits_and_its_seconds_stand_still(
    database_url: str, settings: Settings, notes: Path
) -> None:
    """One run completes without counting its waiting time; the other waits until its deadline."""
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    async with (
        serving(database_url, settings) as (_, client),
        open_oracle(database_url) as oracle,
    ):
        await client.post_run(graph_run("patient", note("write", "hello")))
        (approval,) = await open_approvals(client, "patient")
        await client.post_run(graph_run("late", note("write", "never"), deadline=later))
        (missed,) = await open_approvals(client, "late")
        await oracle.rows(DEADLINE_PASSES)
        late = await finished(client, "late")
        answers = [await decide(client, missed), await decide(client, approval)]
        run = await finished(client, "patient")

    assert (late["status"], late["stop"]["kind"]) == ("halted", "deadline")
    assert [each.status_code for each in answers] == [409, 202]
    waited = _moment(late["finished_at"]) - _moment(approval["requested_at"])
    whole = _moment(run["finished_at"]) - _moment(run["started_at"])
    assert run["status"] == "completed", run
    assert timedelta(seconds=run["usage"]["seconds"]) < whole - waited / 2
    assert noted(notes) == ["patient: hello"]
