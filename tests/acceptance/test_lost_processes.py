"""``kill -9``, freezing and SIGTERM: an acknowledged run survives them."""

import asyncio

import pytest

from caseworker.engine.events import LIFECYCLE, STEP_COMPLETED, STEP_RESUMED, STEP_STARTED
from caseworker.runs.run import RunKey
from tests.support.event_log import stored_events
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.graph_invariants import violations
from tests.support.service import ServiceProcess, finished, model_settings, two_services

pytestmark = pytest.mark.usefixtures("sound_events")

PLAN = {"actions": [{"tool": "calculator", "args": {"expression": "6 * 6"}}]}
QUESTION = {
    "run_id": "survivor",
    "input": "What is 6 times 7?",
    "gold_answer": "42",
}
"""A case whose first plan is wrong, so that a second call follows."""


async def _in_second_call(service: ServiceProcess, provider: FakeProvider) -> None:
    """Post a run; return once its first call is in the journal and its second one in flight."""
    await provider.script("6 times 7", [Step(plan=PLAN), Step(hang=True)])
    async with service.client() as client:
        await client.post_run(QUESTION)
    await provider.wait_for_arrivals(2, "6 times 7")


async def _answer_from_now_on(provider: FakeProvider) -> None:
    plan = {"actions": [{"tool": "calculator", "args": {"expression": "6 * 7"}}]}
    await provider.script("6 times 7", [Step(plan=plan)], repeat_last=True)


def _page(number: int) -> Step:
    """Return a model reply that calls the tool for a page."""
    arguments = f'{{"page": {number}}}'
    return Step(tool_calls=[{"id": f"c{number}", "name": "archive", "arguments": arguments}])


def _told_of_steps(database_url: str) -> list[str]:
    _, events = stored_events(database_url)[RunKey("default", "survivor")]
    return [event.type for event in events if event.type in LIFECYCLE]


@pytest.mark.req("card/executor", "card/persist", "004/lifecycle")
@pytest.mark.guarantee(1, 9, 10)
async def test_a_run_whose_process_was_killed_is_finished_by_another(
    database_url: str, provider: FakeProvider
) -> None:
    """The journaled call is not repeated; the one in flight is, and it stays charged."""
    settings = model_settings(provider.openai_url)
    async with two_services(database_url, settings) as (first, _, client):
        await _in_second_call(first, provider)
        await _answer_from_now_on(provider)
        first.child.kill()

        run = await finished(client, "survivor")
        snapshot = (await client.trace("survivor"))["snapshot"]
        calls = [n for n in snapshot["nodes"].values() if n["kind"] == "llm"]
        assert run["status"] == "completed", run
        assert run["attempts"] == 2
        assert [n["status"] for n in calls][:3] == ["success", "halt", "success"]
        assert calls[1]["stop_reason"] == "worker_lost"
        assert calls[1]["tokens_in"] or run["usage"]["tokens"] > 0
        assert len(await provider.arrivals("6 times 7")) == 3
        assert (run["usage"]["llm_calls_small"], run["usage"]["api_calls"]) == (2, 3)
        assert violations(snapshot) == []
    assert _told_of_steps(database_url) == [STEP_STARTED, STEP_RESUMED, STEP_COMPLETED]


async def test_a_run_whose_processes_are_killed_is_never_failed_for_it(
    database_url: str, provider: FakeProvider
) -> None:
    """``kill -9`` counts against no run, however often it is repeated."""
    await provider.script("Poison?", [Step(hang=True), Step(hang=True), Step(text="No.")])
    agent = {"name": "one", "prompt": {"system": "Answer."}}
    body = {"run_id": "poison", "kind": "agent", "agent": agent, "input": "Poison?"}
    settings = {**model_settings(provider.openai_url), "WORKER_MAX_ATTEMPTS": "1"}
    async with ServiceProcess(database_url, settings=settings) as service:
        async with service.client() as client:
            await client.post_run(body)
        for killed in (1, 2):
            await provider.wait_for_arrivals(killed, "Poison")
            service.child.kill()
            await service.start()

        async with service.client() as client:
            run = await finished(client, "poison")
        assert (run["status"], run["attempts"]) == ("completed", 3), run


async def test_a_run_that_gets_on_between_losses_is_begun_as_often_as_it_takes(
    database_url: str, provider: FakeProvider
) -> None:
    """Each process finishes one more call, more often than a run may be lost without progress."""
    losses = 5
    steps = [Step(text="All read.")]
    for number in range(2 * losses, 0, -2):
        steps[:0] = _page(number - 1), _page(number), Step(hang=True)
    await provider.script("Read on", steps)
    settings = {
        **model_settings(provider.openai_url),
        "TOOLS_PLUGINS": '["tests.support.archive_tool:ArchiveTool"]',
        "WORKER_MAX_ATTEMPTS": "2",
    }
    agent = {
        "name": "reader",
        "prompt": {"system": "Read."},
        "tools": ["archive"],
        "limits": {"max_turns": 100},
    }
    async with ServiceProcess(database_url, settings=settings) as service:
        async with service.client() as client:
            body = {"run_id": "steady", "kind": "agent", "agent": agent, "input": "Read on."}
            await client.post_run(body)
        for loss in range(1, losses + 1):
            await provider.wait_for_arrivals(3 * loss, "Read on")
            service.child.kill()
            await service.start()

        async with service.client() as client:
            run = await finished(client, "steady")
        assert (run["status"], run["attempts"]) == ("completed", losses + 1), run
        assert len(await provider.arrivals("Read on")) == 3 * losses + 1


async def test_a_cancelled_run_whose_process_was_killed_is_not_executed_again(
    database_url: str, provider: FakeProvider
) -> None:
    """The cancel request wins over the recovery."""
    settings = model_settings(provider.openai_url)
    async with two_services(database_url, settings) as (first, _, client):
        await _in_second_call(first, provider)
        first.child.kill()
        await client.cancel_run("survivor")

        run = await finished(client, "survivor")
        snapshot = (await client.trace("survivor"))["snapshot"]
        assert run["status"] == "cancelled"
        assert len(await provider.arrivals("6 times 7")) == 2
        assert violations(snapshot) == []


async def test_a_replica_without_a_worker_leaves_its_runs_to_workers(
    database_url: str, provider: FakeProvider
) -> None:
    """The run waits in the queue until a worker claims it."""
    settings = model_settings(provider.openai_url)
    async with (
        ServiceProcess(database_url, "--no-worker", settings=settings) as service,
        service.client() as client,
    ):
        posted = await client.post_run({"input": "Anybody out there?", "gold_answer": "42"})
        assert posted["status"] == "queued"
        async with ServiceProcess(database_url, command="worker", settings=settings):
            run = await finished(client, posted["run_id"])
        assert run["status"] == "completed"


@pytest.mark.guarantee(11)
async def test_sigterm_hands_a_run_over_without_counting_the_attempt(
    database_url: str, provider: FakeProvider
) -> None:
    """The process ends in time, and another process resumes the run."""
    settings = model_settings(provider.openai_url)
    async with two_services(database_url, settings) as (first, _, client):
        await _in_second_call(first, provider)
        await _answer_from_now_on(provider)

        assert await first.child.terminate() == 0
        run = await finished(client, "survivor")
        assert run["status"] == "completed", run
        assert run["attempts"] == 1
        assert len(await provider.arrivals("6 times 7")) == 3


async def test_a_frozen_process_that_thaws_changes_nothing(
    database_url: str, provider: FakeProvider
) -> None:
    """Another process recovered the run, and the fence rejects late writes of the frozen one."""
    settings = model_settings(provider.openai_url)
    async with two_services(database_url, settings) as (first, _, client):
        await _in_second_call(first, provider)
        await _answer_from_now_on(provider)
        first.child.freeze()
        run = await finished(client, "survivor")
        await provider.release()
        first.child.thaw()

        async with first.client() as thawed:
            await thawed.post_run({"run_id": "after", "input": "Alive again?"}, wait_seconds=10)
        await asyncio.sleep(0)
        assert run["status"] == "completed"
        assert await client.get_run("survivor") == run
        assert violations((await client.trace("survivor"))["snapshot"]) == []
