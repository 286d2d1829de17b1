"""The last call that a limit allows an agent: an answer in it completes the agent."""

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.core.graph.facts import StepStatus
from caseworker.models.ports import ToolCall
from tests.unit.nodes.agent.world import (
    agent,
    asking,
    events,
    kinds,
    model_reply,
    result,
    scripted_agent,
    text_of,
    wants,
)


def calculate(expression: str, call_id: str = "c1") -> ToolCall:
    return wants("calculator", call_id, expression=expression)


@pytest.mark.req("cw/13.limit")
@pytest.mark.parametrize("reserve", [0, 1])
@pytest.mark.parametrize(
    "limit", ["max_llm_calls", "max_llm_calls_small", "max_api_calls", "max_turns"]
)
async def test_an_agent_that_needs_exactly_its_limit_completes(limit: str, reserve: int) -> None:
    """With a limit of two calls, an answer in the second call reaches the goal."""
    here = scripted_agent(
        model_reply("", calculate("6*7")),
        "42",
        budget=Budget(**{limit: 2}),
        wrap_up_reserve=reserve,
    )

    outcome = await here.run(asking(agent(tools=["calculator"])), default="?")

    assert outcome.steps["a"].status is StepStatus.COMPLETED
    found = result(outcome)
    assert (found["success"], found["terminate_reason"]) == (True, "goal")
    assert (found["output"], found["turn_count"]) == ("42", 2)
    assert [tool.name for tool in here.small.requests[1].tools] == ["calculator", "finish"]
    told = "last reply that a limit allows" in here.small.requests[1].messages[-1].content
    assert told is (reserve > 0)


@pytest.mark.req("cw/13.limit")
async def test_the_last_call_of_the_budget_is_told_to_the_model() -> None:
    """A tool call in the last reply is not made, and the stop names the reserved amount."""
    calls = [model_reply(f"{n} so far.", calculate(f"{n}+1")) for n in range(3)]
    here = scripted_agent(*calls, budget=Budget(max_llm_calls_small=3))

    outcome = await here.run(asking(agent(tools=["calculator"])), default="?")

    assert outcome.stop is not None
    cause = outcome.stop.cause
    assert (cause.dimension, cause.used, cause.reserved) == ("llm_calls_small", 3, 1)
    assert "3 used, of which 1 reserved for the last answer, 1 requested, limit 3" in str(cause)
    found = result(outcome)
    assert (found["success"], found["terminate_reason"]) == (False, "budget")
    assert (found["raw_content"], found["output"]) == ("2 so far.", None)
    assert text_of(events(here), 3) == "2 so far."
    assert kinds(here).count("turn_start") == kinds(here).count("turn_end") == 3
    used = here.scope.usage.to_dict()
    assert (used["llm_calls_small"], used["tool_calls"]) == (3, 2)
    assert found["messages"][-1]["role"] == "tool"
    assert "not_called" in found["messages"][-1]["content"]


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
@pytest.mark.parametrize("where", ["limits", "its own budget", "the run's budget"])
async def test_a_limit_of_turns_allows_so_many_calls(where: str, limit: int) -> None:
    """The last answer counts towards the limit, wherever the limit is set."""
    calls = [model_reply(f"{n} so far.", calculate(f"{n}+1")) for n in range(9)]
    budget = {"max_turns": limit}
    limits = {"limits": budget, "its own budget": {"budget": budget}}.get(where, {})
    here = scripted_agent(*calls, budget=Budget(**budget) if where == "the run's budget" else None)

    outcome = await here.run(asking(agent(tools=["calculator"], limits=limits)), default="?")

    found = result(outcome)
    assert (found["terminate_reason"], found["turn_count"]) == ("max_turns", limit)
    assert here.scope.usage.to_dict()["llm_calls"] == len(here.small.requests) == limit
    assert found["raw_content"] == f"{limit - 1} so far."
    assert here.scope.usage.to_dict()["tool_calls"] == max(1, limit - 1)
    reason = str(outcome.stop and outcome.stop.cause.reason)
    assert ("of which 1 reserved for the last answer" in reason) is (limit >= 2)


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("where", ["limits", "the run's budget"])
async def test_a_last_answer_without_tools_is_a_turn_of_the_limit(where: str, most: int) -> None:
    """A tool-call limit ends the first turn; the last answer needs a second turn."""
    limits = {"max_turns": most} if where == "limits" else {}
    budget = Budget(max_turns=None if limits else most, max_tool_calls=0)
    here = scripted_agent(model_reply("I compute.", calculate("1+1")), "About 2.", budget=budget)

    outcome = await here.run(asking(agent(tools=["calculator"], limits=limits)), default="?")

    found = result(outcome)
    assert len(here.small.requests) == found["turn_count"] == most
    assert here.scope.usage.to_dict()["turns"] == most
    assert (found["terminate_reason"], found["output"]) == (
        "budget",
        "About 2." if most == 2 else None,
    )


async def test_the_tool_that_ends_an_agent_may_be_called_in_the_last_call() -> None:
    """Calling `finish` is an answer; another tool called with it is not called."""
    end = model_reply("", calculate("9*9"), wants("finish", "c2", answer="Two."))
    here = scripted_agent(
        model_reply("", calculate("1+1")), end, budget=Budget(max_llm_calls_small=2)
    )

    outcome = await here.run(asking(agent(tools=["calculator"])), default="?")

    assert (result(outcome)["success"], result(outcome)["output"]) == (True, "Two.")
    assert here.scope.usage.to_dict()["tool_calls"] == 1


@pytest.mark.parametrize(("ends", "terminate_reason"), [(True, "goal"), (False, "budget")])
async def test_the_tokens_of_a_last_answer_are_kept_back(ends: bool, terminate_reason: str) -> None:
    """A turn takes 15 tokens; the third is the last, because a fourth would exceed the limit."""
    calls = [model_reply("", calculate(f"{n}+1")) for n in range(3)]
    here = scripted_agent(*calls[: 2 if ends else 3], "About 2.", budget=Budget(max_tokens=50))

    outcome = await here.run(asking(agent(tools=["calculator"])), default="?")

    found = result(outcome)
    assert (found["turn_count"], found["terminate_reason"]) == (3, terminate_reason)
    assert "last reply" in here.small.requests[2].messages[-1].content
    if not ends:
        assert outcome.stop is not None
        assert "45 used, of which 15 reserved for the last answer" in str(outcome.stop.cause)
