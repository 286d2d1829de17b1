"""The table of work and ends: whatever a run does when it ends, it ends in the same way.

The result is kept, each start has its end in the events, the graph is closed, the receipt names
what took effect, and nothing is executed after the stop.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio

from tests.acceptance.test_approvals import People, decide, finished, people
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.gated_tools import PLUGINS
from tests.support.graph_invariants import violations
from tests.support.noting_tool import NOTES, noted
from tests.support.service import ServiceProcess, model_settings
from tests.support.threads import ThreadClient
from tests.support.work_and_ends import ENDS, KEPT, WORK, Work, body_of, works_at

OPEN = {
    "step.started": "step",
    "turn_start": "turn",
    "tool_call_start": "tool",
    "call.started": "c",
}
CLOSED = {
    "step.completed": "step",
    "step.error": "step",
    "step.cancelled": "step",
    "turn_end": "turn",
    "tool_call_end": "tool",
    "call.completed": "c",
    "call.error": "c",
    "call.cancelled": "c",
}
ENDED = {
    "DELETE": ("cancelled", "cancelled"),
    "deadline": ("halted", "deadline"),
    "a failing sibling": ("failed", "error"),
}
DEADLINE_SECONDS = 8


def settings_of(provider: FakeProvider, notes: Path) -> dict[str, str]:
    return {
        **model_settings(provider.openai_url),
        "MODELS_SMALL_TIMEOUT_SECONDS": "150",
        "TOOLS_PLUGINS": json.dumps(PLUGINS),
        "TOOLS_REQUIRES_APPROVAL": '["calculator"]',
        "AGENTS_PLUGINS": '["tests.support.code_agents:questioner"]',
        "WORKER_MAX_RUNS": "100",
        NOTES: str(notes),
    }


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work") / "notes"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(
    module_database_url: str, running_provider: FakeProvider, notes: Path
) -> AsyncIterator[ServiceProcess]:
    settings = settings_of(running_provider, notes)
    async with ServiceProcess(module_database_url, settings=settings) as running:
        yield running


def run_id_of(name: str, end: str) -> str:
    return f"{name} {end}".replace(" ", "-").lower()


async def begun(client: People, provider: FakeProvider, notes: Path, name: str, end: str) -> str:
    """Start a run, and return its ID once its work is in progress."""
    work, run_id = WORK[name], run_id_of(name, end)
    if work.script:
        await provider.script(run_id, script_at(work, end, run_id), repeat_last=True)
    body = body_of(name, end, run_id)
    if end == "deadline":
        body["deadline"] = (datetime.now(UTC) + timedelta(seconds=DEADLINE_SECONDS)).isoformat()
    await client.post_run(body)
    if work.arrivals:
        await provider.wait_for_arrivals(work.arrivals, run_id)
    async with asyncio.timeout(150):
        wanted = Counter([*work.calls, *(["gate"] if ENDS[end] is not None else [])])
        while True:
            made = Counter(line.split()[1] for line in of_run(notes, run_id))
            if wanted <= made and (not work.waits or await asked(client, run_id)):
                return run_id
            await asyncio.sleep(0.02)


def script_at(work: Work, end: str, run_id: str) -> list[Step]:
    """Return the replies of the model; a call in flight finishes after a limit."""
    is_limit = end not in ("DELETE", "deadline")
    script = [replace(step, tool_calls=_marked(step.tool_calls, run_id)) for step in work.script]
    return [
        replace(step, hang=False, delay_seconds=4, text="Done.") if step.hang and is_limit else step
        for step in script
    ]


def _marked(calls: Any, run_id: str) -> Any:
    return json.loads(json.dumps(calls).replace("MARKER", f"Pay ({run_id})"))


def of_run(notes: Path, run_id: str) -> list[str]:
    return [line for line in noted(notes) if line.startswith(f"{run_id}:")]


async def asked(client: People, run_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.get(f"/runs/{run_id}/approvals")).json()[
        "approvals"
    ]
    return found


def open_gate(notes: Path, name: str) -> None:
    Path(f"{notes}.{name}").touch()


async def events_of(client: People, run_id: str) -> list[dict[str, Any]]:
    as_json = {"Accept": "application/json"}
    shown = await client.get(f"/runs/{run_id}/events?after=0", headers=as_json)
    found: list[dict[str, Any]] = shown.json()["events"]
    return found


async def unpaired(client: People, run_id: str) -> Mapping[str, int]:
    """Return the numbers of starts without an end, by kind."""
    found: Counter[str] = Counter()
    for event in await events_of(client, run_id):
        found[OPEN.get(event["type"], "")] += 1
        found[CLOSED.get(event["type"], "")] -= 1
    del found[""]
    return {kind: count for kind, count in found.items() if count}


async def require_sound_end(client: People, notes: Path, name: str, end: str, run_id: str) -> None:
    run = await finished(client, run_id)
    about = (name, end, run["status"], run["stop"], run["result"])
    kind = "cancelled" if run["cancel"] else "budget"
    assert (run["status"], (run["stop"] or {}).get("kind")) == ENDED.get(end, ("halted", kind)), (
        about
    )
    assert await unpaired(client, run_id) == {}, about
    trace = (await client.get(f"/runs/{run_id}/trace")).json()["snapshot"]
    assert violations(trace) == [], about
    assert {node["status"] for node in trace["nodes"].values()} <= {"success", "fail", "halt"}
    if WORK[name].keeps:
        assert KEPT in json.dumps(run["result"]), about
    made = of_run(notes, run_id)
    for approval in await asked(client, run_id):
        assert (await decide(client, approval)).status_code == 409, about
    assert of_run(notes, run_id) == made, about
    assert not [line for line in made if " pays " in line], about


@pytest.mark.req("004/cancel-early", "card/delete")
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("end", ENDS)
async def test_a_run_ends_soundly_whatever_it_does(
    service: ServiceProcess, provider: FakeProvider, notes: Path, end: str
) -> None:
    """All kinds of work, each in a separate run, are ended in the same way."""
    async with people(service) as client, asyncio.TaskGroup() as group:
        begins = {
            name: group.create_task(begun(client, provider, notes, name, end))
            for name in works_at(end)
        }
    run_ids = {name: task.result() for name, task in begins.items()}
    async with people(service) as client:
        receipts = {}
        for name, run_id in run_ids.items():
            if end == "DELETE":
                receipts[name] = (await client.delete(f"/runs/{run_id}?reason=enough")).json()
            elif end != "deadline":
                open_gate(notes, f"{run_id}-end")
        for name, run_id in run_ids.items():
            if end not in ("DELETE", "deadline"):
                open_gate(notes, run_id)  # a call in flight may finish after a limit
            await require_sound_end(client, notes, name, end, run_id)
            if end == "DELETE":
                await require_same_receipts(client, receipts[name], run_id)


async def require_same_receipts(client: People, first: dict[str, Any], run_id: str) -> None:
    """The first receipt may be earlier than the end, because it waits only for a moment."""
    again, run = await client.delete(f"/runs/{run_id}"), await client.get_run(run_id)
    second = again.json()
    nodes = (await client.nodes(run_id)) if second["calls"] else []
    assert (second["status"], again.status_code) == ("cancelled", 200)
    assert {name: second[name] for name in run["cancel"]} == run["cancel"]
    assert second["settled_at"] == run["finished_at"]
    if first["settled_at"] is not None:
        assert {**second, "already_finished": False} == first
    status_of = {node["node_id"]: node["status"] for node in nodes}
    assert all(call["status"] == status_of[call["node_id"]] for call in second["calls"])


@pytest.mark.asyncio(loop_scope="module")
async def test_the_receipt_of_a_stopped_call_names_it(
    service: ServiceProcess, provider: FakeProvider, notes: Path
) -> None:
    """A local tool in flight is in the first receipt, though nothing stored its start."""
    async with people(service) as client:
        body = {**body_of("tool", "DELETE", "named"), "run_id": "named"}
        await client.post_run(body)
        async with asyncio.timeout(150):
            while not of_run(notes, "named"):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        receipt = (await client.delete("/runs/named")).json()

    assert [call["name"] for call in receipt["calls"]] == ["gate"]


@pytest.mark.req("cw/13.streamed")
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("end", ["DELETE", "deadline"])
async def test_a_message_of_a_thread_that_waits_keeps_its_text(
    service: ServiceProcess, provider: FakeProvider, notes: Path, end: str
) -> None:
    """The text of the turn that asked for an approval stays in the message."""
    marker = f"thread-{end}"
    asks = [{"id": "c1", "name": "pays", "arguments": '{"text": "never"}'}]
    await provider.script(marker, [Step(text="I will pay.", tool_calls=asks)])
    agent = {"name": "payer", "prompt": {"system": "Help."}, "tools": ["pays"]}
    async with (
        people(service) as client,
        httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=150) as http,
    ):
        thread = await ThreadClient.begin(http, marker, agent=agent)
        more = {}
        if end == "deadline":
            at = datetime.now(UTC) + timedelta(seconds=DEADLINE_SECONDS)
            more["deadline"] = at.isoformat()
        turn = await thread.post(content=f"Pay ({marker})", **more)
        run_id = turn["run"]["run_id"]
        async with asyncio.timeout(150):
            while not await asked(client, run_id):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        if end == "DELETE":
            await client.delete(f"/runs/{run_id}")
        run = await finished(client, run_id)
        message = (await thread.messages())[-1]
        left = await unpaired(client, run_id)

    assert run["status"] == ENDED[end][0]
    assert left == {}
    assert message["content"] == "I will pay."


@pytest.mark.req("002/11.1")
@pytest.mark.parametrize("kills", [False, True], ids=["SIGTERM", "kill -9"])
async def test_work_goes_on_elsewhere_and_is_stopped_there(
    database_url: str, provider: FakeProvider, tmp_path: Path, *, kills: bool
) -> None:
    """Runs resume in the next process, waiting calls keep their IDs, and a stop there is sound."""
    notes, end = tmp_path / "notes", "DELETE"
    settings = settings_of(provider, notes) | {"SHUTDOWN_GRACE_SECONDS": "0.1"}
    names = [name for name in WORK if name != "external tool"]  # its outcome is unknown then
    first = ServiceProcess(database_url, settings=settings, name="first")
    async with first, people(first) as client:
        run_ids = {name: await begun(client, provider, notes, name, end) for name in names}
        before = {name: await asked(client, run_id) for name, run_id in run_ids.items()}
        process = psutil.Process(first.child.pid)
        process.kill() if kills else process.terminate()
        await asyncio.to_thread(process.wait, 60)
    async with (
        ServiceProcess(database_url, settings=settings, name="second") as second,
        people(second) as client,
    ):
        for name, run_id in run_ids.items():
            if not WORK[name].waits:
                await resumed(client, run_id)
        for name, run_id in run_ids.items():
            after = await asked(client, run_id)
            ids = [each["approval_id"] for each in after]
            assert ids == [each["approval_id"] for each in before[name]], name
            await client.delete(f"/runs/{run_id}")
        for name, run_id in run_ids.items():
            await require_sound_end(client, notes, name, end, run_id)


async def resumed(client: People, run_id: str) -> None:
    async with asyncio.timeout(150):
        while True:
            events = await events_of(client, run_id)
            if any(event["type"] == "run.resumed" for event in events):
                return
            await asyncio.sleep(0.05)
