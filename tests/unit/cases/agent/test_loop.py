"""The small tier's loop, from the question to the result."""

from dataclasses import replace
from decimal import Decimal

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.models.ports import ModelError, TokenUsage
from tests.unit.cases.agent.world import (
    PRICE,
    BrokenTool,
    ScriptedModel,
    calculate,
    case_run,
    decisions,
    events,
    plan,
    respond,
    result_of,
)

NOT_ESTIMATED = {"estimated": 0, "cost_usd_estimated": 0.0}
"""Token counters of a case whose providers reported all usage."""


@pytest.mark.req("002/1.1", "002/1.3", "002/6.1", "002/7.4", "002/11.2", "002/17.1")
async def test_a_verified_answer_of_the_first_pass_ends_the_case() -> None:
    """A verified first pass ends the case without a call to the big tier."""
    here = case_run([plan(calculate("6 * 7"))])

    result = result_of(await here.run())

    assert result["answer"] == "42"
    assert (result["verified"], result["finish_reason"]) == (True, "success")
    assert decisions(result) == ["continue: within_limits", "stop: passed"]
    assert here.big.requests == []


@pytest.mark.req(
    "002/7.2", "002/7.3", "002/9.2", "002/14.3", "002/20.1", "002/20.2", "002/20.3", "002/20.5"
)
async def test_the_result_counts_calls_steps_tokens_and_cost() -> None:
    """The counters in the result match the charges of the run's budget."""
    here = case_run([plan(calculate("6 * 7"))], external=True)

    result = result_of(await here.run())

    used = here.scope.usage.to_dict()
    nothing = {"input": 0, "output": 0, "cached_input": 0, "reasoning": 0, "cost_usd": 0.0}
    nothing |= NOT_ESTIMATED
    spent = nothing | {"input": 100, "output": 20, "cost_usd": 0.12}
    assert result["counters"] == {
        "llm_calls_small": used["llm_calls_small"],
        "llm_calls_big": 0,
        "tool_calls": used["tool_calls"],
        "act_steps": 1,
        "tokens": {"small": spent, "big": nothing, "total": spent},
    }
    assert (used["llm_calls_small"], used["tool_calls"], used["cost_usd"]) == (1, 1, 0.12)


async def test_every_result_names_the_models_of_both_tiers() -> None:
    """The result names both tiers' models, with the number of calls to each."""
    result = result_of(await case_run([plan(calculate("1 + 1"))]).run())

    small = {"provider": "scripted", "model": "small-1"}
    assert result["models"] == {
        "small": {**small, "used": [{**small, "calls": 1}]},
        "big": {"provider": "scripted", "model": "big-1", "used": []},
    }


@pytest.mark.req("002/5.4", "002/10.5", "002/18.5", "002/22.3")
async def test_actions_run_in_the_order_of_the_plan() -> None:
    """Actions run in plan order and become evidence in the same order."""
    here = case_run([plan(calculate("1 + 1"), calculate("2 + 2"), calculate("3 + 3"))])

    result = result_of(await here.run())

    assert [found["args"]["expression"] for found in result["evidence"]] == [
        "1 + 1",
        "2 + 2",
        "3 + 3",
    ]
    assert result["evidence"][0] == {
        "tool": "calculator",
        "args": {"expression": "1 + 1"},
        "result": {"value": "2", "expression": "1 + 1", "exact": True},
        "tier": "small",
        "act_step": 1,
    }
    assert result["answer"] == "2; 4; 6"


@pytest.mark.req("002/4.1", "002/1.2", "002/3.1")
async def test_a_failed_tool_is_evidence_and_the_next_round_mends_it() -> None:
    """A failed tool result is evidence and part of the next prompt, and the run continues."""
    here = case_run([plan(calculate("1 / 0")), plan(calculate("6 * 7"))])

    result = result_of(await here.run())

    first, second = result["evidence"]
    assert first["result"]["code"] == "division_by_zero"
    assert second["result"]["value"] == "42"
    assert (result["answer"], result["verified"]) == ("42", True)
    told = here.small.document(1)
    assert told["previous_plan"] == {
        "actions": [{"tool": "calculator", "args": {"expression": "1 / 0"}}]
    }
    assert "division by zero" in told["failure"]
    assert told["evidence"][0]["result"]["code"] == "division_by_zero"
    assert (result["counters"]["act_steps"], len(here.small.requests)) == (2, 2)
    assert here.big.requests == []


@pytest.mark.req("002/13.1")
async def test_a_tool_that_raises_is_evidence_too() -> None:
    """A tool that raises gives evidence with the exception's class, without its message."""
    here = case_run(
        [plan(("broken", {}), calculate("6 * 7")), plan(respond("42"))], more_tools=[BrokenTool()]
    )

    result = result_of(await here.run())

    broken, calculated, _ = result["evidence"]
    assert broken["result"] == {
        "error": "The tool broke (RuntimeError).",
        "code": "RuntimeError",
    }
    assert calculated["result"]["value"] == "42"
    assert result["verified"] is True
    assert "alice" not in str(result)


@pytest.mark.req("002/7.3")
@pytest.mark.parametrize(("answer", "calls"), [({}, 0), ({"answer": " "}, 1)])
async def test_arguments_that_do_not_fit_are_no_tool_call_unless_the_tool_itself_refuses_them(
    answer: dict[str, str], calls: int
) -> None:
    """Only tool calls that ran are counted, in the result as in the budget."""
    here = case_run([plan(("respond", answer)), plan(calculate("6 * 7"))])

    result = result_of(await here.run())

    assert result["evidence"][0]["result"]["code"] == "invalid_arguments"
    assert result["counters"]["tool_calls"] == calls + 1
    assert here.scope.usage.to_dict()["tool_calls"] == calls + 1


async def test_a_number_that_was_only_written_down_must_be_one_that_was_worked_out() -> None:
    """A written number that differs from the computed one fails; the next prompt explains why."""
    here = case_run(
        [plan(calculate("6 * 7"), ("broken", {})), plan(respond("41")), plan(respond("42"))],
        more_tools=[BrokenTool()],
    )

    result = result_of(await here.run())

    assert (result["answer"], result["verified"]) == ("42", True)
    assert "worked out again" in here.small.document(2)["failure"]


@pytest.mark.req("002/6.2", "002/6.4", "002/1.4", "002/11.4", "002/11.5")
async def test_rounds_without_progress_beyond_patience_escalate_with_all_evidence() -> None:
    """With a patience of one, the second stalled round escalates with all evidence."""
    here = case_run(
        [plan(calculate("1 / 0")), plan(calculate("2 / 0"))], big=[plan(calculate("6 * 7"))]
    )

    result = result_of(await here.run())

    assert decisions(result)[2] == "escalate: no_progress"
    assert events(result) == ["escalate_to_big"]
    assert [found["tier"] for found in result["evidence"]] == ["small", "small", "big"]
    assert len(here.big.document(0)["evidence"]) == 2
    assert (result["answer"], result["finish_reason"]) == ("42", "success")
    assert result["counters"]["llm_calls_big"] == 1


@pytest.mark.req("002/24.2", "002/6.3", "002/6.5")
async def test_three_act_steps_are_the_default_and_the_fourth_is_the_big_tiers() -> None:
    """Three improving rounds reach the default step limit; then the big tier takes the case."""
    better = [
        plan(calculate("1 / 0")),
        plan(calculate("7 * 7"), calculate("1 / 0")),
        plan(calculate("7 * 7")),
    ]
    here = case_run(better, big=[plan(calculate("6 * 7"))])

    result = result_of(await here.run(gold_answer="42"))

    assert decisions(result)[3] == "escalate: act_max_steps"
    assert (result["counters"]["act_steps"], result["answer"]) == (3, "42")


@pytest.mark.req("002/11.3", "002/17.3")
async def test_under_fail_the_act_steps_end_the_run_with_budget() -> None:
    """With escalate_when=fail, the step limit ends the case with ``budget`` and names the limit."""
    here = case_run([plan(calculate("7 * 7"))])

    outcome = await here.run(gold_answer="42", act={"max_steps": 1, "escalate_when": "fail"})

    assert outcome.stop is not None
    assert outcome.stop.cause.to_dict() == {
        "kind": "budget",
        "dimension": "act_steps",
        "scope": "answer",
        "limit": 1,
        "used": 1,
        "reason": "ACT step limit exceeded: 1 used, limit 1",
    }
    result = result_of(outcome)
    assert (result["answer"], result["verified"], result["finish_reason"]) == (
        "49",
        False,
        "budget",
    )


@pytest.mark.req("002/6.1", "002/9.1")
async def test_expected_tools_that_were_not_used_are_asked_for() -> None:
    """Until the expected tools are used, the answer is unverified and the prompt names them."""
    here = case_run([plan(respond("42")), plan(calculate("6 * 7"))])

    result = result_of(await here.run(expected_tools=["calculator"]))

    assert here.small.document(0)["expected_tools"] == ["calculator"]
    assert "were not: calculator" in here.small.document(1)["failure"]
    assert result["verified"] is True


async def test_a_failed_use_of_an_expected_tool_does_not_count() -> None:
    """A failed call of an expected tool does not count as a use."""
    wrong = plan(calculate("1 / 0"), respond("42"))
    here = case_run([wrong, wrong], big=[wrong, wrong])

    outcome = await here.run(expected_tools=["calculator"])

    assert result_of(outcome)["verified"] is False


@pytest.mark.req("002/7.2", "002/20.1", "002/20.2")
async def test_what_both_tiers_used_is_summed() -> None:
    """Token usage and cost are summed per tier and in total."""
    here = case_run([plan(calculate("1 / 0"))], big=[plan(calculate("6 * 7"))], external=True)

    result = result_of(await here.run(mode="fallback_only"))

    counters = result["counters"]
    assert (counters["llm_calls_small"], counters["llm_calls_big"]) == (1, 1)
    tokens = counters["tokens"]
    assert tokens["small"] == tokens["big"]
    assert tokens["total"] == {
        "input": 200,
        "output": 40,
        "cached_input": 0,
        "reasoning": 0,
        "cost_usd": 0.24,
        **NOT_ESTIMATED,
    }


@pytest.mark.req("002/20.2", "002/20.3", "002/20.4")
async def test_cached_input_and_reasoning_are_counted_and_priced_as_such() -> None:
    """Cached and reasoning tokens are counted separately; cached ones have their own price."""
    here = case_run([plan(calculate("6 * 7"))], external=True)
    here.small.usage = TokenUsage(
        tokens_in=100, tokens_out=20, tokens_cached=60, tokens_reasoning=15
    )
    here.price = replace(PRICE, usd_per_million_cached=Decimal(100))

    result = result_of(await here.run())

    spent = {"input": 100, "output": 20, "cached_input": 60, "reasoning": 15, "cost_usd": 0.066}
    spent |= NOT_ESTIMATED
    assert result["counters"]["tokens"]["small"] == spent
    assert result["counters"]["tokens"]["total"] == spent
    assert next(e["token_usage"] for e in result["logs"] if "token_usage" in e) == spent


async def test_a_tier_whose_model_fails_is_answered_for_by_its_fallback() -> None:
    """The result names the fallback model that replied, and the call counts once."""
    here = case_run(
        [ModelError("Down.", retryable=True)], fallback=ScriptedModel([plan(calculate("6 * 7"))])
    )

    result = result_of(await here.run())

    stand_in = {"provider": "scripted", "model": "fallback-1"}
    assert result["models"]["small"] == {**stand_in, "used": [{**stand_in, "calls": 1}]}
    assert (result["verified"], result["counters"]["llm_calls_small"]) == (True, 1)


@pytest.mark.req("002/2.3", "002/17.1")
async def test_a_limit_of_tool_calls_stops_the_run_and_keeps_what_was_found() -> None:
    """The tool call limit stops the run without escalation and keeps the evidence."""
    here = case_run(
        [plan(calculate("1 / 0"), calculate("2 / 0"), calculate("6 * 7"))],
        budget=Budget(max_tool_calls=2),
    )

    outcome = await here.run()

    assert outcome.stop is not None
    assert (outcome.stop.cause.dimension, outcome.stop.cause.limit) == ("tool_calls", 2)
    result = result_of(outcome)
    assert (len(result["evidence"]), result["finish_reason"]) == (2, "budget")
    assert result["counters"]["tool_calls"] == 2


@pytest.mark.req("002/2.3", "002/2.5")
async def test_used_up_tool_calls_end_the_run_before_another_plan_is_paid_for() -> None:
    """With no tool calls left, the run ends before it requests another plan."""
    here = case_run([plan(calculate("1 / 0"))], budget=Budget(max_tool_calls=1))

    outcome = await here.run()

    assert outcome.stop is not None
    assert outcome.stop.cause.to_dict() | {"reason": ""} == {
        "kind": "budget",
        "dimension": "tool_calls",
        "scope": "run",
        "limit": 1,
        "used": 1,
        "reason": "",
    }
    assert len(here.small.requests) == 1


@pytest.mark.parametrize(("inner", "outer", "named"), [(5, 1, "around"), (1, 5, "around/run")])
async def test_a_stop_names_the_scope_whose_limit_is_the_tightest(
    inner: int, outer: int, named: str
) -> None:
    """The stop names the scope with the tightest limit, whether the run's or an outer one."""
    here = case_run(
        [plan(calculate("1 / 0"))],
        budget=Budget(max_tool_calls=inner),
        view=Budget(max_tool_calls=outer),
    )

    outcome = await here.run()

    assert outcome.stop is not None
    assert (outcome.stop.cause.scope, outcome.stop.cause.limit) == (named, 1)
    assert len(here.small.requests) == 1


async def test_the_last_allowed_tool_call_may_be_the_one_that_answers() -> None:
    """A case that is verified by the last allowed calls completes successfully."""
    here = case_run(
        [plan(calculate("6 * 7"))], budget=Budget(max_tool_calls=1, max_llm_calls_small=1)
    )

    outcome = await here.run()

    assert outcome.stop is None
    assert result_of(outcome)["finish_reason"] == "success"


async def test_tokens_stop_the_run_after_the_round_that_used_them_up() -> None:
    """The token limit stops the run after the current round, whose evidence is kept."""
    here = case_run([plan(calculate("1 / 0"))], budget=Budget(max_tokens=120))

    outcome = await here.run()

    assert outcome.stop is not None
    assert outcome.stop.cause.dimension == "tokens"
    assert len(result_of(outcome)["evidence"]) == 1


async def test_a_limit_of_cost_does_not_trouble_models_that_are_free() -> None:
    """A cost limit of zero does not stop models that cost nothing."""
    here = case_run(
        [plan(calculate("1 / 0")), plan(calculate("6 * 7"))],
        budget=Budget(max_cost_dollars=Decimal(0)),
    )

    assert result_of(await here.run())["verified"] is True


@pytest.mark.req("002/22.4")
async def test_the_same_case_makes_the_same_prompts_calls_and_result() -> None:
    """Two executions of one case differ only in the timestamps of their logs."""
    lines = [plan(calculate("1 / 0")), plan(calculate("6 * 7"))]
    worlds = [case_run(lines), case_run(lines)]

    results = [result_of(await here.run(seed=7)) for here in worlds]

    for result in results:
        for entry in result["logs"]:
            del entry["ts"]
    assert results[0] == results[1]
    assert worlds[0].small.requests == worlds[1].small.requests
    assert {request.seed for request in worlds[0].small.requests} == {7}
