"""Cases that are stopped while running, and cases that are executed again."""

import asyncio
from datetime import UTC, datetime

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.stops import DeadlineExceededError, Stop
from caseworker.engine.report import GraphOutcome
from tests.unit.cases.agent.world import (
    CaseRun,
    WaitingTool,
    calculate,
    case_run,
    plan,
    provider_down,
    result_of,
)

WRONG = plan(calculate("1 / 0"))


async def stopped_while_the_second_action_waits(stop: Stop | None) -> tuple[CaseRun, GraphOutcome]:
    """Stop a run after its first action, during its second one."""
    tool = WaitingTool()
    here = case_run([plan(calculate("6 * 7"), ("waiting", {}))], more_tools=[tool])
    running = asyncio.create_task(here.run())
    await tool.called.wait()
    if stop is None:
        here.token.cancel("enough", requested_by="alice")
    else:
        here.token.trip(stop)
    running.cancel()
    return here, await running


async def test_a_cancelled_case_keeps_its_evidence_and_has_no_finish_reason() -> None:
    """A cancelled case returns its evidence and answer so far, without a finish reason."""
    here, outcome = await stopped_while_the_second_action_waits(None)

    result = result_of(outcome)
    assert [found["result"].get("value") for found in result["evidence"]] == ["42"]
    assert (result["answer"], result["verified"], result["finish_reason"]) == ("42", False, None)
    assert result["counters"]["tool_calls"] == here.scope.usage.to_dict()["tool_calls"] == 2


async def test_a_case_cut_off_by_its_deadline_ends_with_budget() -> None:
    """A case that its deadline cuts off has the finish reason ``budget``."""
    deadline = DeadlineExceededError(datetime(2025, 9, 8, tzinfo=UTC))

    _, outcome = await stopped_while_the_second_action_waits(deadline)

    assert outcome.stop is deadline
    assert result_of(outcome)["finish_reason"] == "budget"


async def test_a_call_that_is_cut_off_counts() -> None:
    """A call that was cut off counts, because it was charged."""
    asked = asyncio.Event()

    async def think() -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    here = case_run([think])
    running = asyncio.create_task(here.run())
    await asked.wait()
    here.token.cancel()
    running.cancel()

    result = result_of(await running)

    assert result["counters"]["llm_calls_small"] == 1
    assert (result["evidence"], result["finish_reason"]) == ([], None)


async def test_a_limit_of_calls_of_all_models_stops_a_case_before_the_big_one() -> None:
    """A limit on calls of all models stops the case before the first big call."""
    here = case_run([WRONG, WRONG], big=[plan(calculate("6 * 7"))], budget=Budget(max_llm_calls=2))

    outcome = await here.run()

    assert outcome.stop is not None
    assert outcome.stop.cause.dimension == "llm_calls"
    assert result_of(outcome)["finish_reason"] == "budget"
    assert (len(here.small.requests), len(here.big.requests)) == (2, 0)


async def test_a_call_that_was_refused_does_not_count() -> None:
    """A refused call does not count, because it was never made."""
    outcome = await case_run([WRONG], budget=Budget(max_api_calls=0)).run()

    assert outcome.stop is not None
    assert outcome.stop.cause.dimension == "api_calls"
    assert result_of(outcome)["counters"]["llm_calls_small"] == 0


@pytest.mark.parametrize("calls", [2, None])
async def test_a_run_that_lost_its_worker_goes_on_where_it_was(calls: int | None) -> None:
    """Finished calls are replayed even at an exhausted limit; the interrupted one runs again."""
    tool = WaitingTool()
    here = case_run(
        [WRONG, plan(("waiting", {}))],
        budget=Budget(max_llm_calls_small=calls),
        more_tools=[tool],
    )
    running = asyncio.create_task(here.run(gold_answer="at last"))
    await tool.called.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    here.more_tools = [_Answering()]
    result = result_of(await here.run_again(gold_answer="at last"))

    assert len(here.small.requests) == 2
    assert result["counters"]["llm_calls_small"] == 2
    assert (result["answer"], result["verified"]) == ("at last", True)


@pytest.mark.req("002/22.4")
async def test_a_run_that_lost_its_worker_at_the_very_end_comes_to_the_same_result() -> None:
    """A run recovered at its very end replays to the same result, even with exhausted limits."""
    limits = Budget(
        max_llm_calls_small=2,
        max_llm_calls_big=1,
        max_tool_calls=2,
        max_api_calls=3,
        max_tokens=360,
    )
    here = case_run(["no plan", WRONG], big=[plan(calculate("6 * 7"))], budget=limits)

    results = [result_of(await here.run()), result_of(await here.run_again())]

    for result in results:
        for entry in result["logs"]:
            del entry["ts"]
    assert results[0] == results[1]
    assert results[0]["verified"] is True
    assert (len(here.small.requests), len(here.big.requests)) == (2, 1)


async def test_a_recorded_failure_of_a_provider_is_replayed_and_counted() -> None:
    """A recorded provider failure is replayed and counted without a new call."""
    here = case_run([provider_down()], big=[plan(calculate("6 * 7"))])

    counters = [result_of(await run())["counters"] for run in (here.run, here.run_again)]

    assert counters[0] == counters[1]
    assert (counters[0]["llm_calls_small"], len(here.small.requests)) == (1, 1)


class _Answering(WaitingTool):
    """The waiting tool, which now returns an answer."""

    async def run(self, args: object, context: object) -> dict[str, object]:
        return {"text": "at last"}
