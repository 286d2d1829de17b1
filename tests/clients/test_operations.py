"""Both clients handle approvals, their own tools, schedules and quotas of a real service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from caseworker_client import ApiError

from tests.clients.callers import Caller, Callers
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.service import ServiceProcess
from tests.support.stores import eventually

ASK = {
    "id": "ask",
    "type": "approval",
    "data": {
        "message": "Pay ${default.amount}?",
        "changes": {"type": "object", "properties": {"amount": {"type": "integer"}}},
    },
}
EVERY_YEAR = "0 0 1 1 *"
SUM = {
    "steps": [
        {"id": "sum", "type": "tool", "data": {"tool": "calculator", "args": {"expression": "6*7"}}}
    ],
    "edges": [],
}
RUN = {"kind": "graph", "graph": SUM}
LOOKUP = {
    "name": "look_up",
    "parameters": {"type": "object", "properties": {"order": {"type": "integer"}}},
}
SHOP = {"name": "shop", "prompt": "You are a shop.", "tools": [{"client": LOOKUP}]}


async def asking(caller: Caller, run_id: str) -> Any:
    """Post a run and return its approval once it waits."""
    graph = {"steps": [ASK], "edges": []}
    await caller.do("run_graph", graph, run_id=run_id, inputs={"default": {"amount": 5}})

    async def waits() -> bool:
        return bool((await caller.do("get_run", run_id)).status == "waiting")

    await eventually(waits)
    [approval] = (await caller.do("list_approvals", run_id)).approvals
    return approval


@pytest.mark.req("card/s2s")
async def test_what_a_run_asks_is_listed_and_approved_with_other_arguments(
    callers: Callers, service: ServiceProcess
) -> None:
    """The decision is returned and shown with the run, and invalid arguments are named."""
    caller, run_id = callers.of(service.url), f"yes-{id(callers)}"
    asked = await asking(caller, run_id)

    listed = (await caller.do("list_approvals", limit=200)).approvals
    with pytest.raises(ApiError) as unfit:
        await caller.do("approve", run_id, asked.approval_id, arguments={"amount": "all"})
    decided = await caller.do(
        "approve", run_id, asked.approval_id, arguments={"amount": 3}, reason="less will do"
    )
    run = await caller.do("wait_for_run", run_id, timeout_seconds=150)
    [kept] = (await caller.do("list_approvals", run_id)).approvals

    assert (asked.message, asked.arguments, asked.open) == (
        "Pay 5?",
        {"default": {"amount": 5}},
        True,
    )
    assert [each for each in listed if each.run_id == run_id] == [asked]
    assert [each.field for each in unfit.value.errors] == ["arguments.amount"]
    assert (decided.open, decided.decision.decision) == (False, "approved")
    assert (decided.decision.arguments, decided.decision.reason) == ({"amount": 3}, "less will do")
    assert run.result.outputs["ask"] == {"approved": {"amount": 3}}
    assert kept == decided


async def test_what_a_run_asks_is_refused_once(callers: Callers, service: ServiceProcess) -> None:
    """Repeating the same decision succeeds; another decision or an unknown approval is refused."""
    caller, run_id = callers.of(service.url), f"no-{id(callers)}"
    asked = await asking(caller, run_id)

    refused = await caller.do("refuse", run_id, asked.approval_id, reason="too much")
    again = await caller.do("refuse", run_id, asked.approval_id)
    run = await caller.do("wait_for_run", run_id, timeout_seconds=150)
    with pytest.raises(ApiError) as late:
        await caller.do("approve", run_id, asked.approval_id)
    with pytest.raises(ApiError) as unknown:
        await caller.do("approve", run_id, "nothing")

    assert (refused.decision.decision, refused.decision.reason) == ("refused", "too much")
    assert again.decision == refused.decision
    assert (run.status, "too much" in run.stop.reason) == ("failed", True)
    assert (late.value.status, late.value.type.rpartition(":")[2]) == (409, "approval-decided")
    assert unknown.value.status == 404


@pytest.mark.req("cw/17.result")
async def test_a_client_executes_its_tool_and_reports_an_error_of_it(
    callers: Callers, service: ServiceProcess, provider: FakeProvider
) -> None:
    """A repeated answer succeeds, another one is refused, and both calls are listed afterwards."""
    caller, run_id = callers.of(service.url), f"tool-{id(callers)}"
    calls = [{"id": f"c{n}", "name": "look_up", "arguments": f'{{"order": {n}}}'} for n in (1, 2)]
    await provider.script(run_id, [Step(tool_calls=calls), Step(text="On Monday.")])
    posted = await caller.do("run_agent", SHOP, f"Where? {run_id}", run_id=run_id)

    async def waits() -> bool:
        run = await caller.do("get_run", run_id)
        return bool(run.required_action and len(run.required_action.calls) == 2)

    await eventually(waits)
    calls_by_order = (await caller.do("get_run", run_id)).required_action.calls
    one, two = sorted(calls_by_order, key=lambda call: call.arguments["order"])
    listed = (await caller.do("list_calls", run_id, status="waiting")).calls
    sent = await caller.do("answer_call", run_id, one.call_id, {"sent": "Monday"})
    again = await caller.do("answer_call", run_id, one.call_id, {"sent": "Monday"})
    with pytest.raises(ApiError) as other:
        await caller.do("answer_call", run_id, one.call_id, {"sent": "Friday"})
    error = {"class": "KeyError", "message": "There is no such order."}
    await caller.do("answer_call", run_id, two.call_id, error=error)
    run = await caller.do("wait_for_run", run_id, timeout_seconds=150)
    ended = (await caller.do("list_calls", run_id)).calls

    assert (posted.required_action, run.required_action) == (None, None)
    assert (one.author, one.name, one.arguments) == ("client", "look_up", {"order": 1})
    assert [each.call_id for each in listed] == [one.call_id, two.call_id]
    assert (sent.status, sent.output, again.answered_at) == (
        "answered",
        {"sent": "Monday"},
        sent.answered_at,
    )
    assert (other.value.status, other.value.type.rpartition(":")[2]) == (409, "call-answered")
    assert (run.status, run.result.output) == ("completed", "On Monday.")
    assert [(each.status, each.error) for each in ended] == [
        ("answered", None),
        ("answered", error),
    ]


async def test_open_approvals_are_listed_page_by_page(
    callers: Callers, service: ServiceProcess
) -> None:
    """Each approval is listed once, oldest first."""
    caller = callers.of(service.url)
    runs = [f"{name}-{id(callers)}" for name in ("first", "second", "third")]
    for run_id in runs:
        await asking(caller, run_id)

    listed, cursor, pages = [], None, 0
    while pages == 0 or cursor is not None:
        page = await caller.do("list_approvals", limit=2, cursor=cursor)
        listed += [each.run_id for each in page.approvals]
        cursor, pages = page.next_cursor, pages + 1
    for run_id in runs:
        await caller.do("cancel_run", run_id)

    assert [each for each in listed if each in runs] == runs
    assert (len(set(listed)), pages) == (len(listed), -(-len(listed) // 2))


async def test_a_schedule_is_made_changed_paused_run_and_deleted(
    callers: Callers, service: ServiceProcess
) -> None:
    """Each method returns the current schedule, and a manual run is an ordinary run."""
    caller, name = callers.of(service.url), f"yearly-{id(callers)}"

    made = await caller.do("put_schedule", name, EVERY_YEAR, RUN, timezone="Europe/Paris")
    changed = await caller.do(
        *("put_schedule", name, EVERY_YEAR, RUN),
        overlap="allow",
        catch_up="all",
        max_catch_up=3,
    )
    paused = await caller.do("pause_schedule", name)
    run = await caller.do("run_schedule", name)
    ended = await caller.do("wait_for_run", run.run_id, timeout_seconds=150)
    resumed = await caller.do("resume_schedule", name)
    listed = (await caller.do("list_schedules", limit=200)).schedules
    found = await caller.do("get_schedule", name)
    await caller.do("delete_schedule", name)
    with pytest.raises(ApiError) as gone:
        await caller.do("get_schedule", name)

    assert (made.cron, made.timezone, made.overlap, made.run) == (
        EVERY_YEAR,
        "Europe/Paris",
        "skip",
        RUN,
    )
    assert (changed.timezone, changed.overlap, changed.catch_up) == ("UTC", "allow", "all")
    assert (changed.max_catch_up, changed.next_at is None) == (3, False)
    assert (paused.paused, paused.next_at) == (True, None)
    assert (ended.status, ended.metadata["schedule"]) == ("completed", name)
    assert (resumed.paused, resumed.next_at) == (False, changed.next_at)
    assert [each for each in listed if each.name == name] == [found]
    assert (gone.value.status, gone.value.type.rpartition(":")[2]) == (404, "schedule-not-found")


async def test_schedules_are_listed_page_by_page_and_refused_by_field(
    callers: Callers, service: ServiceProcess
) -> None:
    """Schedules are listed by name, and one that is created paused never fires."""
    caller = callers.of(service.url)
    names = [f"{id(callers)}-{letter}" for letter in "abc"]
    for name in reversed(names):
        made = await caller.do("put_schedule", name, EVERY_YEAR, RUN, paused=True)
        assert (made.paused, made.next_at) == (True, None)
    with pytest.raises(ApiError) as refused:
        await caller.do("put_schedule", names[0], "whenever", RUN)

    listed, cursor = [], ""
    while cursor is not None:
        page = await caller.do("list_schedules", limit=2, cursor=cursor or None)
        listed += [each.name for each in page.schedules]
        cursor = page.next_cursor
    for name in names:
        await caller.do("delete_schedule", name)

    assert [name for name in listed if name in names] == names
    assert len(set(listed)) == len(listed)
    assert [each.field for each in refused.value.errors] == ["cron"]


@asynccontextmanager
async def limited(caller: Caller, tenant: str, **limits: Any) -> AsyncIterator[Any]:
    """Yield the quota that a tenant has during the block."""
    try:
        yield await caller.do("put_quota", tenant, **limits)
    finally:
        await caller.do("delete_quota", tenant)


async def test_costs_are_added_up(callers: Callers, service: ServiceProcess) -> None:
    """The range is given with times, and the sums have the names of the API."""
    caller, start = callers.of(service.url), datetime.now(UTC) - timedelta(minutes=1)
    run = await caller.do("run_case", "What is 6 * 7?")

    spent = await caller.do("spend", "tenant", period="day", after=start)
    earlier = await caller.do("spend", "model", before=start)

    assert (spent.items[0].key, spent.items[0].period is not None) == ("default", True)
    assert spent.total.runs >= 1, run
    assert earlier.items == []


@pytest.mark.req("card/s2s")
async def test_a_quota_is_given_shown_and_taken_back(
    callers: Callers, service: ServiceProcess
) -> None:
    """A new quota replaces the old one completely, and omitted limits are unlimited."""
    caller, tenant = callers.of(service.url), f"tenant:{id(callers)}"

    usual = await caller.do("get_quota", tenant)
    async with limited(caller, tenant, max_running=3, max_cost_usd_per_day=4.5) as first:
        second = await caller.do("put_quota", tenant, max_queued=0, max_cost_usd_per_month=100)
        found = await caller.do("get_quota", tenant)
    back = await caller.do("get_quota", tenant)
    await caller.do("delete_quota", tenant)  # once more changes nothing

    assert (usual.is_default, usual.max_running, usual.updated_at) == (True, None, None)
    assert (first.tenant, first.is_default, first.max_running) == (tenant, False, 3)
    assert (first.max_cost_usd_per_day, first.max_runs_per_minute) == (4.5, None)
    assert (second.max_running, second.max_cost_usd_per_day) == (None, None)
    assert (second.max_queued, second.max_cost_usd_per_month) == (0, 100)
    assert (found, back) == (second, usual)
    assert (found.use.running, found.use.queued, found.use.cost_usd_today) == (0, 0, 0)


async def test_a_run_beyond_a_quota_is_refused_with_how_it_stands(
    callers: Callers, service: ServiceProcess
) -> None:
    """The client does not retry, because the quota allows no run for a minute."""
    caller = callers.of(service.url)
    async with limited(caller, "default", max_runs_per_minute=0):
        with pytest.raises(ApiError) as refused:
            await caller.do("run_graph", SUM)
    run = await caller.do("run_graph", SUM, wait_seconds=120)

    assert (refused.value.status, refused.value.retry_after_seconds) == (429, 60)
    assert refused.value.problem["quota"]["dimension"] == "runs_per_minute"
    assert run.status == "completed"


@pytest.mark.parametrize("fails", [False, True])
async def test_an_external_run_is_kept_and_finished_with_its_key(
    callers: Callers, service: ServiceProcess, fails: bool
) -> None:
    """A heartbeat returns the rest of the limits; a different second finish is an error."""
    body = {"kind": "external", "budget": {"max_llm_calls": 3}}
    run = await callers.of(service.url).do("create_run", body)
    agent = callers.of(service.url, api_key=run.access.key)
    how = {"error": {"class": "ValueError", "message": "No."}} if fails else {"output": [1]}

    beat = await agent.do("heartbeat", run.run_id)
    first = await agent.do("finish_run", run.run_id, **how)
    again = await agent.do("finish_run", run.run_id, **how)
    with pytest.raises(ApiError) as different:
        await agent.do("finish_run", run.run_id, "another")
    ended = await agent.do("get_run", run.run_id)

    assert (beat.status, beat.left["llm_calls"]) == ("running", 3)
    assert first.status == again.status == ended.status == ("failed" if fails else "completed")
    assert different.value.type.rpartition(":")[2] == "external-run-ended"
    assert ended.stop.reason == "No." if fails else ended.result.output == [1]
