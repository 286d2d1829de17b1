"""Children of external runs share the budget of their parent, and end with it."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.support.external import QUICK_RECOVERY, Agent, start
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess, model_settings

pytestmark = pytest.mark.req("cw/15.parent")


def below(agent: Agent) -> Mapping[str, Any]:
    """Return the field that makes a run a child."""
    return {"parent": {"run_id": agent.run_id}}


async def children_of(agent: Agent) -> list[str]:
    """Return the IDs of the children in the trace of a run."""
    nodes = (await agent.get("/trace")).json()["snapshot"]["nodes"].values()
    return [node["metadata"]["child_run_id"] for node in nodes if node["name"] == "child run"]


async def refusal(agent: Agent) -> Mapping[str, Any]:
    """Return the error of a refused call."""
    reply = await agent.ask()
    assert reply.status_code == 400, reply.text
    error: Mapping[str, Any] = reply.json()["error"]
    return error


async def test_parent_and_children_share_one_budget(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """A child may have a larger limit, and still gets no more than its parent has left."""
    parent = await start(http, run_id="sharing", budget={"max_llm_calls": 4})
    child = await start(http, run_id="sharing-1", budget={"max_llm_calls": 9}, **below(parent))
    grandchild = await start(http, run_id="sharing-2", **below(child))
    small = await start(http, run_id="sharing-3", budget={"max_llm_calls": 1}, **below(parent))
    for each in (child, grandchild, small, parent):
        assert (await each.ask()).status_code == 200
    left = (await http.post("/runs/sharing-1/heartbeat")).json()["left"]
    refused = [await refusal(each) for each in (small, grandchild, child, parent)]
    ended = {each.run_id: await each.ended() for each in (parent, child, grandchild, small)}

    assert await provider.count("Hello") == 4
    assert left["llm_calls"] == 0
    assert [error["code"] for error in refused] == ["budget"] * 4, refused
    assert {run_id: run["usage"]["llm_calls"] for run_id, run in ended.items()} == {
        "sharing": 4,
        "sharing-1": 2,
        "sharing-2": 1,
        "sharing-3": 1,
    }
    assert ended["sharing-3"]["stop"]["scope"] == "run/child"
    assert ended["sharing-1"]["stop"]["scope"] == "run"
    assert ended["sharing-1"]["parent_run_id"] == "sharing"
    assert await children_of(parent) == ["sharing-1", "sharing-3"]


async def test_the_key_of_a_run_creates_children_of_this_run_only(
    http: httpx.AsyncClient, service: ServiceProcess
) -> None:
    """The parent is implied. The key creates no other kind, and no children of another run."""
    agent, other = await start(http, run_id="keyed"), await start(http, run_id="keyed-not")
    async with service.http(agent.key) as own:
        child = await start(own, run_id="keyed-1")
        again = await own.post("/runs", json={"kind": "external", "run_id": "keyed-1"})
        refused = [
            await own.post("/runs", json=body)
            for body in (
                {"input": "What is 6 * 7?"},
                {"kind": "agent", "agent": {"name": "a", "prompt": "b"}, "input": "c"},
                {"kind": "external", **below(other)},
                {"from": {"run_id": "keyed"}},
            )
        ]
        await agent.next_attempt()
        superseded = await own.post("/runs", json={"kind": "external"})
    assert child.run["parent_run_id"] == "keyed"
    assert (again.status_code, again.json()["attempt"]) == (200, 2)
    assert [each.status_code for each in refused] == [422] * 4, [each.text for each in refused]
    assert superseded.status_code == 409, superseded.text
    async with service.http(again.json()["access"]["key"]) as own:
        assert (await own.get("/runs/keyed")).status_code == 403
        assert (await own.get("/runs/keyed-1")).status_code == 200


async def test_a_run_that_is_not_accepted_is_no_child(
    http: httpx.AsyncClient, service: ServiceProcess
) -> None:
    """Otherwise a restarted parent is charged for it, and a run can be its own descendant."""
    parent = await start(http, run_id="once")
    child = await start(http, run_id="once-1", **below(parent))
    async with service.http(child.key) as own:
        taken = await own.post("/runs", json={"kind": "external", "run_id": "once"})
    equal = {"kind": "external", "run_id": "once-2", **below(parent)}
    async with asyncio.TaskGroup() as group:
        posting = [group.create_task(http.post("/runs", json=equal)) for _ in range(2)]
    both = [each.result() for each in posting]

    assert taken.status_code == 409, taken.text
    assert sorted(each.status_code for each in both) == [200, 202], [each.text for each in both]
    assert await children_of(child) == []
    assert sorted(await children_of(parent)) == ["once-1", "once-2"]


async def test_a_child_may_call_only_the_models_of_its_parent(http: httpx.AsyncClient) -> None:
    parent = await start(http, models={"mine": "small"})
    child = await start(http, models=["big", "small"], **below(parent))
    calls = [
        await child.http.post(
            child.api.path,
            json={**child.api.body("Hello"), "model": model},
            headers={"Authorization": f"Bearer {child.key}"},
        )
        for model in ("small", "big", "mine")
    ]
    assert [each.status_code for each in calls] == [200, 404, 404], [each.text for each in calls]


async def test_a_parent_must_exist_run_and_not_be_too_deep(http: httpx.AsyncClient) -> None:
    ended = await start(http, run_id="over")
    await ended.finish({"output": 1})
    await http.post("/runs", json={"run_id": "a-case", "input": "What is 6 * 7?"})
    line = [await start(http, run_id="deep-0")]
    for depth in range(1, 9):
        line.append(await start(http, run_id=f"deep-{depth}", **below(line[-1])))

    async def status(parent: str) -> int:
        body = {"kind": "external", "parent": {"run_id": parent}}
        return (await http.post("/runs", json=body)).status_code

    wanted = {"over": 409, "no-such-run": 404, "a-case": 422, "deep-8": 422}
    assert {parent: await status(parent) for parent in wanted} == wanted


@pytest.mark.parametrize("how", ["finished", "cancelled", "limited"])
async def test_children_end_with_their_parent(
    how: str, http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Open streams end with an error event, and the parent's usage counts their calls."""
    await provider.script("OPEN", [Step(text="a long text", after_events=2)])
    parent = await start(http, run_id=f"end-{how}", budget={"max_llm_calls": 3})
    child = await start(http, run_id=f"end-{how}-1", **below(parent))
    grandchild = await start(http, run_id=f"end-{how}-2", **below(child))
    async with grandchild.streamed("OPEN") as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        if how == "finished":
            await parent.finish({"output": "done"})
        elif how == "cancelled":
            await http.delete(f"/runs/{parent.run_id}")
        else:
            await http.delete(f"/runs/{child.run_id}")
        rest = [json.loads(line[6:]) async for line in lines if line.startswith("data: {")]
    runs = [await each.ended() for each in (grandchild, child)]

    assert rest[-1]["error"]["code"] == "cancelled"
    assert [run["status"] for run in runs] == ["cancelled", "cancelled"]
    assert (await refusal(grandchild))["code"] == "cancelled"
    if how == "limited":
        assert (await parent.ask()).status_code == 200
        await parent.finish({"output": 1})
    ended = await parent.ended()
    assert ended["status"] == ("cancelled" if how == "cancelled" else "completed")
    assert ended["usage"]["llm_calls"] == (2 if how == "limited" else 1)


async def test_after_the_owner_was_killed_another_process_owns_parent_and_children(
    database_url: str, provider: FakeProvider
) -> None:
    """Requests go to both survivors. The calls of the children before the crash still count."""
    settings = {**model_settings(provider.openai_url), **QUICK_RECOVERY}
    async with (
        ServiceProcess(database_url, settings=settings, name="killed") as killed,
        ServiceProcess(database_url, settings=settings, name="one") as one,
        ServiceProcess(database_url, settings=settings, name="two") as two,
        killed.http() as before,
        one.http() as first,
        two.http() as second,
    ):
        parent = await start(second, run_id="top", budget={"max_llm_calls": 6})
        child = await start(before, run_id="middle", **below(parent))
        grandchild = await start(first, run_id="bottom", **below(child))
        done = await start(before, run_id="done", **below(parent))
        for each in (parent, child, grandchild, done):
            assert (await each.ask()).status_code == 200
        await done.finish({"output": 1})
        two.child.kill()
        replies = [
            await replace(grandchild, http=first).ask_until_owned("later"),
            await replace(child, http=before).ask_until_owned("later"),
        ]
        parent = replace(parent, http=first)
        refused = await refusal(parent)
        run = await parent.ended()
        rest = [await replace(each, http=before).ended() for each in (child, grandchild)]

    assert [each.status_code for each in replies] == [200, 200], [each.text for each in replies]
    assert refused["code"] == "budget"
    assert await provider.count("") == 6
    assert run["usage"]["llm_calls"] == 6
    assert [each["usage"]["llm_calls"] for each in rest] == [4, 2]
    assert {each["status"] for each in rest} == {"cancelled"}
