"""The table of work and ends: whatever a run does when it ends, it ends in the same way.

The result is kept, each start has its end in the events, the graph is closed, the receipt names
what took effect, and nothing is executed after the stop.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.approvals import People, decide, finished, people
from tests.support.event_log import require_sound_events
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.gated_tools import PLUGINS
from tests.support.graph_invariants import violations
from tests.support.noting_tool import NOTES, noted
from tests.support.service import SETTLED, ServiceProcess, model_settings
from tests.support.stores import Oracle, eventually, open_oracle
from tests.support.work_and_ends import (
    DEAR,
    ENDED,
    ENDS,
    KEPT,
    WORK,
    body_of,
    dear_call,
    scripts_of,
    works_at,
)

TESTED = ("DELETE", "deadline", "a failing sibling", "seconds", "cost")
"""Ends that each run of the tests plays; the simulation draws from all of them, and the proofs play
them all."""
DEADLINE_SECONDS = 20
DEAR_MODEL = "fake-dear"
UNKNOWN = "Outcome unknown"
WAITS = """
SELECT count(*) > 0 FROM journal
WHERE run_id = %s AND outcome = 'not_made' AND node ->> 'status' <> 'halt'
"""
"""Whether a call of a run waits: it is journaled as not made."""


def settings_of(provider: FakeProvider, notes: Path) -> dict[str, str]:
    dear: dict[str, Any] = {
        "provider": "openai",
        "base_url": provider.openai_url,
        "api_key": "none",
    }
    dear |= {"model": DEAR_MODEL, "price_per_million_in_usd": 0, "price_per_million_out_usd": 100}
    free = {
        f"MODELS_{tier}_PRICE_PER_MILLION_{way}_USD": "0"
        for tier in ("SMALL", "BIG")
        for way in ("IN", "OUT")
    }
    return {
        **model_settings(provider.openai_url),
        **free,
        **SETTLED,
        "MODELS_NAMED": json.dumps({DEAR["name"]: dear}),
        "MODELS_SMALL_TIMEOUT_SECONDS": "150",
        "TOOLS_PLUGINS": json.dumps(PLUGINS),
        "TOOLS_REQUIRES_APPROVAL": '["calculator"]',
        "AGENTS_PLUGINS": '["tests.support.code_agents:questioner"]',
        "WORKER_MAX_RUNS": "100",
        NOTES: str(notes),
    }


@dataclass(frozen=True)
class Site:
    """A client of one process, and what its runs reach."""

    client: People
    provider: FakeProvider
    notes: Path
    oracle: Oracle

    async def hold_quota(self, marker: str) -> None:
        """Let the call of another run hold all that the tenant may spend."""
        used = (await self.client.get("/quotas")).json()["use"]["cost_usd_today"]
        await self.client.put("/quotas/default", json={"max_cost_usd_per_day": used + 0.1})
        await self.provider.script(marker, [Step(hang=True)], repeat_last=True)
        graph = {"steps": [dear_call(marker)], "edges": []}
        await self.client.post_run({"kind": "graph", "run_id": marker, "graph": graph})
        await self.provider.wait_for_arrivals(1, marker)

    async def free_quota(self, holder: str) -> None:
        """End the run that holds the quota, and remove the quota."""
        await self.client.delete(f"/runs/{holder}")
        await finished(self.client, holder)
        await self.client.delete("/quotas/default")

    async def begin(self, name: str, end: str) -> str:
        """Start a run, and return its ID once its work is in progress."""
        work, run_id = WORK[name], run_id_of(name, end)
        for marker, script in scripts_of(name, end, run_id).items():
            if script:
                await self.provider.script(marker, script, repeat_last=True)
        await self._post(name, end, run_id)
        if work.arrivals:
            await self.provider.wait_for_arrivals(work.arrivals, run_id)
        if work.waits_for_quota:
            await eventually(lambda: self.oracle.value(WAITS, run_id))
        wanted = Counter([*work.calls, *(["gate"] if ENDS[end] is not None else [])])

        async def is_in_progress() -> bool:
            made = Counter(line.split()[1] for line in self.made(run_id))
            waits = not work.waits or bool(await self.asked(run_id))
            return wanted <= made and waits and (not work.in_thread or await self._shows(run_id))

        await eventually(is_in_progress)
        return run_id

    async def _post(self, name: str, end: str, run_id: str) -> None:
        body = body_of(name, end, run_id)
        if end == "deadline":
            at = datetime.now(UTC) + timedelta(seconds=DEADLINE_SECONDS)
            body["deadline"] = at.isoformat()
        if not WORK[name].in_thread:
            await self.client.post_run(body)
            return
        thread = {"thread_id": run_id, "graph": body.pop("graph")}
        for path, sent in (("", thread), (f"/{run_id}/messages", body)):
            posted = await self.client.post(f"/threads{path}", json=sent)
            assert posted.is_success, posted.text

    async def _shows(self, run_id: str) -> bool:
        """Return whether the events of a run have the text of its evidence."""
        found = await self.events(run_id)
        return KEPT in "".join(e["data"].get("content") or "" for e in found)

    def made(self, run_id: str) -> list[str]:
        """Return the notes of the tools of a run."""
        return [line for line in noted(self.notes) if line.startswith(f"{run_id}:")]

    def open_gate(self, name: str) -> None:
        Path(f"{self.notes}.{name}").touch()

    async def asked(self, run_id: str) -> list[dict[str, Any]]:
        found = (await self.client.get(f"/runs/{run_id}/approvals")).json()
        return list(found["approvals"])

    async def events(self, run_id: str) -> list[dict[str, Any]]:
        as_json = {"Accept": "application/json"}
        found = await self.client.get(f"/runs/{run_id}/events?after=0", headers=as_json)
        return list(found.json()["events"])

    async def require_sound_end(self, name: str, end: str, run_id: str) -> None:
        run = await finished(self.client, run_id)
        about = (name, end, run["status"], run["stop"], run["result"])
        kind = "cancelled" if run["cancel"] else "budget"
        ended = ENDED.get(end, ("halted", kind))
        assert (run["status"], (run["stop"] or {}).get("kind")) == ended, about
        await self._require_closed(run_id, about)
        if WORK[name].keeps:
            assert KEPT in json.dumps(run["result"]), about
        if WORK[name].in_thread:
            messages = (await self.client.get(f"/threads/{run_id}/messages")).json()["messages"]
            assert KEPT in str(messages[-1]["content"]), (about, messages)
        made = self.made(run_id)
        for approval in await self.asked(run_id):
            assert (await decide(self.client, approval)).status_code == 409, about
        assert self.made(run_id) == made, about
        assert not [line for line in made if " pays " in line], about
        if WORK[name].waits_for_quota:
            sent = await self.provider.arrivals(run_id)
            assert not [each for each in sent if each.model == DEAR_MODEL], about

    async def _require_closed(self, run_id: str, about: object) -> None:
        trace = (await self.client.get(f"/runs/{run_id}/trace")).json()["snapshot"]
        assert violations(trace) == [], about
        assert {node["status"] for node in trace["nodes"].values()} <= {"success", "fail", "halt"}

    async def require_unknown_outcome(self, run_id: str) -> None:
        """An external tool that was cut is not repeated; its step fails, and so does its run."""
        run = await finished(self.client, run_id)
        assert (run["status"], run["stop"]["kind"]) == ("failed", "error"), run
        assert UNKNOWN in run["stop"]["reason"], run
        await self._require_closed(run_id, run)
        assert len(self.made(run_id)) == 1


@asynccontextmanager
async def site(
    service: ServiceProcess, provider: FakeProvider, notes: Path, url: str
) -> AsyncIterator[Site]:
    async with people(service) as client, open_oracle(url) as oracle:
        yield Site(client, provider, notes, oracle)


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work") / "notes"


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider, notes: Path) -> dict[str, str]:
    return settings_of(running_provider, notes)


def run_id_of(name: str, end: str) -> str:
    """Return the ID of a run; no ID is part of another one, because prompts are found by it."""
    return f"w.{name} {end}".replace(" ", "-").lower()


@pytest.mark.req("004/cancel-early", "card/delete", "cw/13.streamed")
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "end", [pytest.param(end, marks=[] if end in TESTED else pytest.mark.proof) for end in ENDS]
)
async def test_a_run_ends_soundly_whatever_it_does(
    service: ServiceProcess,
    provider: FakeProvider,
    notes: Path,
    module_database_url: str,
    end: str,
) -> None:
    """All kinds of work, each in a separate run, are ended in the same way."""
    async with site(service, provider, notes, module_database_url) as here:
        holder = run_id_of("holder", end)
        await here.hold_quota(holder)
        async with asyncio.TaskGroup() as group:
            begins = {name: group.create_task(here.begin(name, end)) for name in works_at(end)}
        run_ids = {name: task.result() for name, task in begins.items()}
        receipts = {}
        for name, run_id in run_ids.items():
            if end == "DELETE":
                deleted = await here.client.delete(f"/runs/{run_id}?reason=enough")
                receipts[name] = deleted.json()
            elif end != "deadline":
                here.open_gate(f"{run_id}-end")
        for name, run_id in run_ids.items():
            if end not in ("DELETE", "deadline"):
                here.open_gate(run_id)  # a call in flight may finish after a limit
            await here.require_sound_end(name, end, run_id)
            if end == "DELETE":
                await require_same_receipts(here.client, receipts[name], run_id)
        await here.free_quota(holder)
    require_sound_events(module_database_url)


async def require_same_receipts(client: People, first: dict[str, Any], run_id: str) -> None:
    """Both receipts and that of the run are equal, and their calls are those of the trace."""
    again, run = await client.delete(f"/runs/{run_id}"), await client.get_run(run_id)
    nodes = (await client.nodes(run_id)) if first["calls"] else []
    assert (first["status"], again.status_code) == ("cancelled", 200)
    assert {name: first[name] for name in run["cancel"]} == run["cancel"]
    assert {**again.json(), "already_finished": False} == first
    assert first["settled_at"] == run["finished_at"]
    status_of = {node["node_id"]: node["status"] for node in nodes}
    assert all(call["status"] == status_of[call["node_id"]] for call in first["calls"])


@pytest.mark.asyncio(loop_scope="module")
async def test_the_receipt_of_a_stopped_call_names_it(
    service: ServiceProcess, provider: FakeProvider, notes: Path, module_database_url: str
) -> None:
    """A local tool in flight is in the first receipt, though nothing stored its start."""
    async with site(service, provider, notes, module_database_url) as here:
        await here.client.post_run(body_of("tool", "DELETE", "named"))
        async with asyncio.timeout(150):
            while not here.made("named"):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        receipt = (await here.client.delete("/runs/named")).json()

    assert [(call["name"], call["status"]) for call in receipt["calls"]] == [("gate", "halt")]


@pytest.mark.req("002/11.1")
@pytest.mark.parametrize("kills", [False, True], ids=["SIGTERM", "kill -9"])
async def test_work_goes_on_elsewhere_and_is_stopped_there(
    database_url: str, provider: FakeProvider, tmp_path: Path, *, kills: bool
) -> None:
    """Runs resume in the other process, waiting calls keep their IDs, and a stop there is sound."""
    notes, end = tmp_path / "notes", "DELETE"
    settings = settings_of(provider, notes) | {"SHUTDOWN_GRACE_SECONDS": "0.1"}
    async with (
        ServiceProcess(database_url, settings=settings, name="first") as first,
        ServiceProcess(database_url, settings=settings, name="second") as second,
        site(first, provider, notes, database_url) as here,
        site(second, provider, notes, database_url) as there,
    ):
        await there.hold_quota("holder")
        run_ids = {name: await here.begin(name, end) for name in WORK}
        before = {name: await there.asked(run_id) for name, run_id in run_ids.items()}
        process = psutil.Process(first.child.pid)
        process.kill() if kills else process.terminate()
        await asyncio.to_thread(process.wait, 60)
        for name, run_id in run_ids.items():
            if not WORK[name].waits:
                await resumed(there, run_id)
        await there.require_unknown_outcome(run_ids.pop("external tool"))
        for name, run_id in run_ids.items():
            after = await there.asked(run_id)
            ids = [each["approval_id"] for each in after]
            assert ids == [each["approval_id"] for each in before[name]], name
            await there.client.delete(f"/runs/{run_id}")
        for name, run_id in run_ids.items():
            await there.require_sound_end(name, end, run_id)
        await there.free_quota("holder")
    require_sound_events(database_url)


async def resumed(there: Site, run_id: str) -> None:
    async def is_resumed() -> bool:
        return any(event["type"] == "run.resumed" for event in await there.events(run_id))

    await eventually(is_resumed)
