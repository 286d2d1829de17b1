"""Rolling upgrades: the previous release keeps working after the schema has changed."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from caseworker.platform.postgres.schema_version import TableLockedError, upgrade
from tests.support.database import TestServer
from tests.support.external import start
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient
from tests.support.previous_release import REVISION, PreviousService, unpack
from tests.support.service import ServiceProcess, finished, model_settings
from tests.support.standing import create_key
from tests.support.stores import eventually, open_oracle
from tests.support.tenants import OPERATOR_KEY
from tests.support.threads import ThreadClient, prompts

PLAN = {"actions": [{"tool": "calculator", "args": {"expression": "6 * 7"}}]}

PRICES = {
    f"MODELS_{tier}_PRICE_PER_MILLION_{side}_USD": price
    for tier in ("SMALL", "BIG")
    for side, price in (("IN", "0"), ("OUT", "100"))
}

PATIENT = {"SHUTDOWN_GRACE_SECONDS": "60"}

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the previous release."""
    return unpack(tmp_path_factory.mktemp("previous"))


@pytest.fixture
def older_url(postgres: TestServer) -> Iterator[str]:
    """Yield a database with the schema of the previous release."""
    with postgres.empty_database() as url:
        upgrade(url, REVISION)
        yield url


@dataclass(frozen=True)
class Fleet:
    """One process of each release on one database."""

    before: PreviousService
    after: ServiceProcess
    of_before: JsonClient
    of_after: JsonClient
    http_before: httpx.AsyncClient
    http_after: httpx.AsyncClient


@asynccontextmanager
async def rolled_out(
    folder: Path,
    url: str,
    provider: FakeProvider,
    *under_way: str,
    prices: Mapping[str, str] | None = None,
) -> AsyncIterator[Fleet]:
    """Migrate under a running process of the previous release, and start the new one."""
    settings = {**model_settings(provider.openai_url), **(prices or {})}
    async with (
        PreviousService(folder, url, settings) as before,
        before.client() as of_before,
    ):
        for marker in under_way:
            await hanging(marker, of_before, provider)
        await asyncio.to_thread(_upgrade_at_last, url)
        async with (
            ServiceProcess(url, settings=settings) as after,
            after.client() as of_after,
            before.http() as http_before,
            after.http() as http_after,
        ):
            yield Fleet(before, after, of_before, of_after, http_before, http_after)


def _upgrade_at_last(url: str) -> None:
    """Migrate, and retry while the running process holds a lock."""
    for _ in range(5):
        with suppress(TableLockedError):
            return upgrade(url)
    raise AssertionError("the migration did not come through")


def question(marker: str) -> dict[str, str]:
    """Return a run named by its marker."""
    return {"run_id": marker, "input": f"{marker}: what is 6 times 7?", "gold_answer": "42"}


async def hanging(marker: str, client: JsonClient, provider: FakeProvider) -> None:
    """Post a run whose first call hangs and whose second one is answered."""
    await provider.script(marker, [Step(hang=True), Step(plan=PLAN)], repeat_last=True)
    await client.post_run(question(marker))
    await provider.wait_for_arrivals(1, marker)


async def test_the_code_before_works_on_the_new_schema(
    folder: Path, database_url: str, provider: FakeProvider
) -> None:
    """The previous release starts, executes a run, cancels another, and shows both."""
    await provider.script("CASE", [Step(plan=PLAN)], repeat_last=True)
    settings = model_settings(provider.openai_url)
    async with (
        PreviousService(folder, database_url, settings) as before,
        before.client() as of_before,
    ):
        await hanging("STOPPED", of_before, provider)
        await of_before.post_run(question("CASE"))
        await of_before.cancel_run("STOPPED")
        run = await finished(of_before, "CASE")
        stopped = await finished(of_before, "STOPPED")
        kinds = [kind for kind, *_ in await _kinds(of_before, "CASE")]

    assert (run["status"], run["result"]["answer"]) == ("completed", "42")
    assert stopped["status"] == "cancelled"
    assert {"llm", "tool"} <= set(kinds)


async def test_runs_are_accepted_executed_and_shown_by_either_release(
    folder: Path, older_url: str, provider: FakeProvider
) -> None:
    """Either process may execute them, also a run that was active during the migration."""
    async with rolled_out(folder, older_url, provider, "UNDER-WAY") as fleet:
        clients = (fleet.of_before, fleet.of_after)
        await provider.release()
        for number in range(8):
            await provider.script(f"CASE-{number}", [Step(plan=PLAN)], repeat_last=True)
            await clients[number % 2].post_run(question(f"CASE-{number}"))
        names = ["UNDER-WAY", *(f"CASE-{number}" for number in range(8))]
        for client in clients:
            runs = [await finished(client, name) for name in names]
            assert {(run["status"], run["result"]["answer"]) for run in runs} == {
                ("completed", "42")
            }
        assert all([await _kinds(fleet.of_after, name) for name in names])
        older = ["UNDER-WAY", *(f"CASE-{number}" for number in range(0, 8, 2))]
        traces = [[await _kinds(client, name) for name in older] for client in clients]
        async with httpx.AsyncClient(trust_env=False) as http:
            asked = [f"{client.url}/spend?group_by=model" for client in clients]
            spent = [(await http.get(url)).raise_for_status().json() for url in asked]

    assert traces[0] == traces[1]
    assert spent[0] == spent[1]
    assert spent[1]["total"]["runs"] == len(names)


async def test_either_release_stops_the_runs_of_the_other(
    folder: Path, older_url: str, provider: FakeProvider
) -> None:
    """A cancel request at one process ends the call in the process of the other release."""
    async with rolled_out(folder, older_url, provider, "OF-BEFORE") as fleet:
        await fleet.of_after.cancel_run("OF-BEFORE")
        assert (await finished(fleet.of_after, "OF-BEFORE"))["status"] == "cancelled"
        await hanging("OF-EITHER", fleet.of_after, provider)
        await fleet.of_before.cancel_run("OF-EITHER")
        assert (await finished(fleet.of_before, "OF-EITHER"))["status"] == "cancelled"


async def test_the_new_release_takes_over_the_runs_of_a_killed_process_of_the_one_before(
    folder: Path, older_url: str, provider: FakeProvider
) -> None:
    """The journal of the older process is read like its own."""
    async with rolled_out(folder, older_url, provider, "OF-BEFORE") as fleet:
        fleet.before.child.kill()
        run = await finished(fleet.of_after, "OF-BEFORE")

    assert (run["status"], run["result"]["answer"], run["attempts"]) == ("completed", "42", 2)


async def test_the_release_before_takes_over_the_runs_of_a_killed_process_of_the_new_one(
    folder: Path, older_url: str, provider: FakeProvider
) -> None:
    """The older release reads the journal of the newer one, as it must after a rollback."""
    async with rolled_out(folder, older_url, provider) as fleet:
        fleet.before.child.freeze()
        await hanging("OF-AFTER", fleet.of_after, provider)
        fleet.after.child.kill()
        fleet.before.child.thaw()
        run = await finished(fleet.of_before, "OF-AFTER")

    assert (run["status"], run["result"]["answer"], run["attempts"]) == ("completed", "42", 2)
    assert len(await provider.arrivals("OF-AFTER")) == 2


async def test_both_releases_see_what_the_other_has_reserved_of_a_quota(
    folder: Path, older_url: str, provider: FakeProvider
) -> None:
    """The previous release reserves whole runs, and the new one each call."""
    async with rolled_out(folder, older_url, provider, prices=PRICES) as fleet:
        older, newer = fleet.http_before, fleet.http_after
        (await newer.put("/quotas/default", json={"max_cost_usd_per_day": 1})).raise_for_status()
        await provider.script("OF-BEFORE", [Step(hang=True)], repeat_last=True)
        await provider.script("OF-AFTER", [Step(hang=True), Step()])
        limited = {**question("OF-BEFORE"), "budget": {"max_cost_usd": 1.0}}
        (await older.post("/runs", json=limited)).raise_for_status()
        await provider.wait_for_arrivals(1, "OF-BEFORE")
        agent = await start(newer)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(agent.ask("OF-AFTER", max_completion_tokens=5000))
            async with open_oracle(older_url) as oracle:
                awaited = "SELECT count(*) > 0 FROM accounts WHERE awaited_until IS NOT NULL"
                await eventually(lambda: oracle.value(awaited))
            assert await provider.count("OF-AFTER") == 0
            await fleet.of_before.cancel_run("OF-BEFORE")
            await provider.wait_for_arrivals(1, "OF-AFTER")
            limited["budget"] = {"max_cost_usd": 0.6}
            refused = await older.post("/runs", json=limited | {"run_id": "REFUSED"})
            used = [(await http.get("/quotas")).json()["use"] for http in (older, newer)]
            await provider.release()
        accepted = await older.post("/runs", json=limited | {"run_id": "ACCEPTED"})

    assert waiting.result().status_code == 200
    assert (refused.status_code, accepted.status_code) == (429, 202)
    assert used[0] == used[1]
    assert used[0]["reserved_usd_today"] == pytest.approx(0.5, abs=0.01)


async def test_the_release_before_claims_no_run_whose_calls_must_reserve(
    folder: Path, older_url: str, provider: FakeProvider
) -> None:
    """It requeues the run of a killed process, and the next new process executes it."""
    async with rolled_out(folder, older_url, provider, prices=PRICES) as fleet:
        older = fleet.http_before
        quota = await fleet.http_after.put("/quotas/default", json={"max_cost_usd_per_day": 9})
        quota.raise_for_status()
        fleet.before.child.freeze()
        await hanging("OF-AFTER", fleet.of_after, provider)
        fleet.after.child.kill()
        fleet.before.child.thaw()
        async with open_oracle(older_url) as oracle:
            queued = "SELECT status = 'queued' FROM runs WHERE run_id = 'OF-AFTER'"
            await eventually(lambda: oracle.value(queued))
            for number in range(3):
                await provider.script(f"OF-BEFORE-{number}", [Step(plan=PLAN)], repeat_last=True)
                limited = question(f"OF-BEFORE-{number}") | {"budget": {"max_cost_usd": 1}}
                (await older.post("/runs", json=limited)).raise_for_status()
                run = await finished(fleet.of_before, f"OF-BEFORE-{number}")
                assert run["status"] == "completed"
            assert await oracle.value(queued)
        settings = {**model_settings(provider.openai_url), **PRICES}
        async with ServiceProcess(older_url, settings=settings) as after, after.client() as client:
            run = await finished(client, "OF-AFTER")

    assert (run["status"], run["result"]["answer"], run["attempts"]) == ("completed", "42", 2)


async def test_the_release_before_lists_standing_keys_and_accepts_none(
    folder: Path, older_url: str, provider: FakeProvider
) -> None:
    """It does not claim the runs of their sessions either, and shows them."""
    operator = {"Authorization": f"Bearer {OPERATOR_KEY}"}
    prices = {**PRICES, "AUTH_BOOTSTRAP_KEY": OPERATOR_KEY}
    async with rolled_out(folder, older_url, provider, prices=prices) as fleet:
        holder = await create_key(
            fleet.http_after, OPERATOR_KEY, budget_per_day={"max_cost_usd": 1}
        )
        assert (await holder.ask()).status_code == 200
        older = holder.at(fleet.http_before)
        (listed,) = (await fleet.http_before.get("/keys", headers=operator)).json()["keys"]
        (run,) = (await fleet.http_before.get("/runs", headers=operator)).json()["runs"]
        refused = [
            (await older.ask()).status_code,
            (await older.http.get("/runs", headers=older.headers)).status_code,
        ]
        fleet.after.child.kill()
        async with open_oracle(older_url) as oracle:
            await eventually(lambda: oracle.value("SELECT status = 'queued' FROM runs"))
        (queued,) = (await fleet.http_before.get("/runs", headers=operator)).json()["runs"]

    assert (listed["key_id"], listed["scopes"]) == (holder.key["key_id"], ["read"])
    assert (run["kind"], run["status"], queued["status"]) == ("external", "running", "queued")
    assert refused == [401, 401]


async def test_agents_behind_the_new_release_answer_while_the_release_before_executes_their_runs(
    folder: Path, older_url: str, provider: FakeProvider
) -> None:
    """Replies, streams and polls are right, and a client that leaves stops its run."""
    agent = {"name": "helper", "prompt": {"system": "Help."}}
    settings = {**model_settings(provider.openai_url), "WORKER_ENABLED": "false"}
    markers = ("WHOLE", "STREAMED", "POLLED", "CANCELLED", "LEFT")
    for marker in markers:
        hangs = marker in ("CANCELLED", "LEFT")
        await provider.script(marker, [Step(text=f"{marker}: 42", chunk_chars=4, hang=hangs)])
    upgrade(older_url)
    async with (
        PreviousService(folder, older_url, model_settings(provider.openai_url)),
        ServiceProcess(older_url, settings=settings) as after,
        after.http() as http,
        after.client() as of_after,
        openai.AsyncOpenAI(base_url=f"{after.url}/v1", api_key="unused", max_retries=0) as ai,
    ):
        (await http.post("/agents", json={"agent": agent})).raise_for_status()

        async def chat(marker: str, *, stream: bool = False) -> Any:
            messages: Any = [{"role": "user", "content": marker}]
            return await ai.chat.completions.create(
                model="helper", messages=messages, stream=stream
            )

        whole = (await chat("WHOLE")).choices[0].message.content
        chunks = [chunk async for chunk in await chat("STREAMED", stream=True)]
        polled = await ai.responses.create(model="helper", input="POLLED", background=True)
        await finished(of_after, polled.id.removeprefix("resp_"))
        begun = await ai.responses.create(model="helper", input="CANCELLED", background=True)
        leaving = asyncio.create_task(chat("LEFT"))
        for marker in ("CANCELLED", "LEFT"):
            await provider.wait_for_arrivals(1, marker)
        await ai.responses.cancel(begun.id)
        leaving.cancel()
        ends = [
            await provider.wait_for_arrivals(1, containing=marker, ended=True)
            for marker in ("CANCELLED", "LEFT")
        ]
        text = (await ai.responses.retrieve(polled.id)).output_text
        stopped = await finished(of_after, begun.id.removeprefix("resp_"))

    assert whole == "WHOLE: 42"
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == "STREAMED: 42"
    assert text == "POLLED: 42"
    assert stopped["status"] == "cancelled"
    assert [arrival.outcome for [arrival] in ends] == ["client_gone"] * 2


async def _kinds(client: JsonClient, run_id: str) -> list[Any]:
    """Return kind, name, status and model of each node in a trace."""
    nodes = (await client.trace(run_id))["snapshot"]["nodes"].values()
    return [[node[name] for name in ("kind", "name", "status", "model")] for node in nodes]


@pytest.mark.req("cw/5.release")
async def test_a_process_of_either_release_that_ends_hands_its_runs_to_the_other(
    folder: Path, older_url: str, provider: FakeProvider
) -> None:
    """No run is lost, no recorded call is made again, and the new process cuts no call.

    The new process ends first, as in a rollback, and then the older one as in an upgrade.
    """
    tool = {"id": "call_1", "name": "calculator", "arguments": '{"expression": "6 * 7"}'}
    agent = {"name": "worker", "prompt": {"system": "Calculate."}, "tools": ["calculator"]}
    async with rolled_out(folder, older_url, provider, prices=PATIENT) as fleet:
        marker = "FROM-AFTER"
        await provider.script(marker, [Step(tool_calls=[tool], hang=True), Step(text="42")])
        await provider.script("CLIENT", [Step(text=text) for text in ("one", "two", "three")])
        run = {"run_id": marker, "kind": "agent", "agent": agent, "input": marker}
        (await fleet.http_after.post("/runs", json=run)).raise_for_status()
        external = await start(fleet.http_after, run_id="external")
        await external.ask("CLIENT")
        await provider.wait_for_arrivals(1, marker)
        fleet.after.child.signal(signal.SIGTERM)
        await provider.release()
        assert await fleet.after.child.wait() == 0
        ended = await finished(fleet.of_before, marker)
        second = await replace(external, http=fleet.http_before).ask_until_owned("CLIENT")
        settings = {**model_settings(provider.openai_url), **PATIENT}
        async with (
            ServiceProcess(older_url, settings=settings) as newest,
            newest.http() as http,
        ):
            assert await fleet.before.child.terminate() == 0
            third = await replace(external, http=http).ask_until_owned("CLIENT")
            usage = (await replace(external, http=http).get()).json()["usage"]

    assert (ended["status"], ended["attempts"]) == ("completed", 1)
    assert await provider.count(marker) == 2
    texts = [each.json()["choices"][0]["message"]["content"] for each in (second, third)]
    assert texts == ["two", "three"]
    assert (usage["llm_calls"], await provider.count("CLIENT")) == (3, 3)


async def test_the_release_before_answers_in_threads_of_the_new_one_and_claims_none_of_its_runs(
    folder: Path, older_url: str, provider: FakeProvider
) -> None:
    """The run of a killed new process names only the last message of its branch.

    It waits for another new process. Until then both releases read all answers.
    """
    tool = {"id": "call_1", "name": "calculator", "arguments": '{"expression": "6 * 7"}'}
    agent = {"name": "helper", "prompt": {"system": "Help."}, "tools": ["calculator"]}
    called = [Step(tool_calls=[tool]), Step(text="It is 42.")]
    async with rolled_out(folder, older_url, provider) as fleet:
        older, newer = fleet.http_before, fleet.http_after
        thread = await ThreadClient.begin(older, "shared", agent=agent)
        await provider.script("(shared)", [*called, *called, Step(text="Three.")])
        await thread.answer(content="One? (shared)")
        thread.http = newer
        await thread.answer(content="Two?")
        thread.http = older
        third = await thread.answer(content="Three?")
        said = [await thread.contents()]
        thread.http = newer
        said.append(await thread.contents())
        assert third["run"]["status"] == "completed"
        fleet.before.child.freeze()
        await provider.script("(shared)", [Step(hang=True), Step(text="Four.")])
        turn = await thread.post(content="Four?")
        await provider.wait_for_arrivals(6, "(shared)")
        fleet.after.child.kill()
        fleet.before.child.thaw()
        run_id = turn["run"]["run_id"]
        async with open_oracle(older_url) as oracle:
            queued = "SELECT status = 'queued' FROM runs WHERE run_id = %s"
            await eventually(lambda: oracle.value(queued, run_id))
            for number in range(2):
                await provider.script(f"OTHER-{number}", [Step(plan=PLAN)], repeat_last=True)
                await fleet.of_before.post_run(question(f"OTHER-{number}"))
                await finished(fleet.of_before, f"OTHER-{number}")
            assert await oracle.value(queued, run_id)
        settings = model_settings(provider.openai_url)
        async with ServiceProcess(older_url, settings=settings) as after, after.client() as client:
            run = await finished(client, run_id)
        await provider.release()

    heard = await prompts(provider, "(shared)")
    assert (run["status"], run["attempts"]) == ("completed", 2)
    assert run["result"]["outputs"]["agent"]["default"] == "Four."
    assert said[0] == said[1]
    assert said[0] == ["One? (shared)", "It is 42.", "Two?", "It is 42.", "Three?", "Three."]
    texts = [text for text in heard[-1] if text and not text.startswith("{")]
    assert texts == [*said[0], "Four?"]
    assert heard[-1] == heard[-2]


async def test_the_release_before_shows_runs_with_tools_of_clients_and_claims_none(
    folder: Path, older_url: str, provider: FakeProvider
) -> None:
    """It lists their calls as approvals; an approval there is an error for the model, no hang."""
    lookup = {"name": "look_up", "parameters": {"type": "object", "properties": {}}}
    agent = {"name": "shop", "prompt": {"system": "Sell."}, "tools": [{"client": lookup}]}
    call = {"id": "call_1", "name": "look_up", "arguments": "{}"}
    names = ("ANSWERED", "APPROVED", "REFUSED", "STOPPED")
    for name in names:
        await provider.script(name, [Step(tool_calls=[call]), Step(text=f"End of {name}.")])
    async with rolled_out(folder, older_url, provider) as fleet, open_oracle(older_url) as oracle:
        older, newer = fleet.http_before, fleet.http_after
        for name in names:
            run = {"run_id": name, "kind": "agent", "agent": agent, "input": name}
            (await newer.post("/runs", json=run)).raise_for_status()
        waits = "SELECT count(*) = 4 FROM runs WHERE status = 'waiting'"
        await eventually(lambda: oracle.value(waits))
        paths = ["/runs", "/approvals", "/spend?group_by=model"]
        for name in names:
            parts = ("", "/approvals", "/trace", "/trace?format=explain", "/artifacts")
            paths += [f"/runs/{name}{part}" for part in parts]
        shown = {path: await older.get(path) for path in paths}
        listed = shown["/approvals"].json()["approvals"]
        calls = {each["run_id"]: each["approval_id"] for each in listed}
        for name, decision in (("APPROVED", "approve"), ("REFUSED", "refuse")):
            path = f"/runs/{name}/approvals/{calls[name]}"
            (await older.post(path, json={"decision": decision})).raise_for_status()
        await fleet.of_before.cancel_run("STOPPED")
        at = f"/runs/ANSWERED/calls/{calls['ANSWERED']}/result"
        (await newer.post(at, json={"output": "sent"})).raise_for_status()
        runs = {name: await finished(fleet.of_after, name) for name in names}
        afterwards = {path: await older.get(path) for path in paths}
        read = {name: await _tool_results(provider, name) for name in names}
        late = await newer.post(
            f"/runs/STOPPED/calls/{calls['STOPPED']}/result", json={"output": "sent"}
        )

    assert {path: reply.status_code for path, reply in shown.items()} == dict.fromkeys(paths, 200)
    assert {reply.status_code for reply in afterwards.values()} == {200}
    assert sorted(calls) == sorted(names)
    assert {name: run["status"] for name, run in runs.items()} == {
        "ANSWERED": "completed",
        "APPROVED": "completed",
        "REFUSED": "completed",
        "STOPPED": "cancelled",
    }
    assert all(runs[name]["usage"]["tool_calls"] == 1 for name in names)
    assert read["ANSWERED"] == ['{"output":"sent"}']
    assert [len(each) for each in read.values()] == [1, 1, 1, 0]
    assert all('"error"' in read[name][0] for name in ("APPROVED", "REFUSED"))
    assert late.status_code == 409


async def test_the_release_before_leaves_runs_with_tools_of_clients_to_the_new_one(
    folder: Path, older_url: str, provider: FakeProvider
) -> None:
    """It requeues the run of a killed new process; the next new process executes it."""
    lookup = {"name": "look_up", "parameters": {"type": "object", "properties": {}}}
    agent = {"name": "shop", "prompt": {"system": "Sell."}, "tools": [{"client": lookup}]}
    call = {"id": "call_1", "name": "look_up", "arguments": "{}"}
    await provider.script("WOKEN", [Step(tool_calls=[call]), Step(text="End.")])
    await provider.script("KILLED", [Step(hang=True), Step(tool_calls=[call]), Step(text="End.")])
    async with rolled_out(folder, older_url, provider) as fleet, open_oracle(older_url) as oracle:
        older, newer = fleet.http_before, fleet.http_after
        fleet.before.child.freeze()
        for name in ("WOKEN", "KILLED"):
            run = {"run_id": name, "kind": "agent", "agent": agent, "input": name}
            (await newer.post("/runs", json=run)).raise_for_status()
        waits = "SELECT status = 'waiting' FROM runs WHERE run_id = 'WOKEN'"
        await eventually(lambda: oracle.value(waits))
        await provider.wait_for_arrivals(1, "KILLED")
        fleet.after.child.kill()
        fleet.before.child.thaw()
        (approval,) = (await older.get("/runs/WOKEN/approvals")).json()["approvals"]
        path = f"/runs/WOKEN/approvals/{approval['approval_id']}"
        (await older.post(path, json={"decision": "refuse"})).raise_for_status()
        queued = "SELECT count(*) = 2 FROM runs WHERE status = 'queued'"
        await eventually(lambda: oracle.value(queued))
        for number in range(3):
            await provider.script(f"OTHER-{number}", [Step(plan=PLAN)], repeat_last=True)
            await fleet.of_before.post_run(question(f"OTHER-{number}"))
            await finished(fleet.of_before, f"OTHER-{number}")
        assert await oracle.value(queued)
        settings = model_settings(provider.openai_url)
        async with ServiceProcess(older_url, settings=settings) as after, after.client() as client:
            woken = await finished(client, "WOKEN")
            await eventually(
                lambda: oracle.value("SELECT status = 'waiting' FROM runs WHERE run_id = 'KILLED'")
            )
            (open_call,) = (await client.get_run("KILLED"))["required_action"]["calls"]
            await client.answer_call("KILLED", open_call["call_id"], "sent")
            killed = await finished(client, "KILLED")
        await provider.release()

    assert (woken["status"], killed["status"]) == ("completed", "completed")
    assert '"error"' in (await _tool_results(provider, "WOKEN"))[0]
    assert await _tool_results(provider, "KILLED") == ['{"output":"sent"}']


async def _tool_results(provider: FakeProvider, marker: str) -> list[str]:
    """Return the results of tools in the last request of a run."""
    body = (await provider.arrivals(marker, bodies=True))[-1].body or {}
    return [each["content"] for each in body["messages"] if each["role"] == "tool"]
