"""The agent loop: turns, tools, limits and output."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.ledger import Scope
from caseworker.core.budget.stops import StopKind, Suspended
from caseworker.core.graph.facts import StepStatus
from caseworker.engine.call import CallFailedError
from caseworker.models.ports import ModelError, ModelFault, ModelReply, ModelRequest, ToolCall
from caseworker.nodes.agent.definition import AgentInputError
from caseworker.tools.ports import ToolContext, ToolResult
from tests.unit.cases.agent.world import provider_down
from tests.unit.nodes.agent.world import (
    Gate,
    agent,
    asking,
    calculate,
    kinds,
    model_reply,
    result,
    scripted_agent,
    wants,
)
from tests.unit.nodes.world import settle_down


@pytest.mark.req("003/FR2.5")
async def test_an_agent_asks_calls_and_answers() -> None:
    """The messages hold the question, the tool call, its result and the answer."""
    here = scripted_agent(model_reply("Let me see.", calculate("6*7")), "It is 42.")

    outcome = await here.run(asking(agent(tools=["calculator"])), default="6 times 7?")

    assert outcome.steps["a"].outputs["default"] == "It is 42."
    found = result(outcome)
    assert (found["success"], found["terminate_reason"], found["turn_count"]) == (True, "goal", 2)
    assert [one["role"] for one in found["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    answer, tool_result = here.small.requests[1].messages[2:]
    assert (answer.tool_calls[0].name, '"42"' in tool_result.content) == ("calculator", True)
    assert found["messages"][2:] == [
        {"role": "assistant", "reply_of": "a/turn/1"},
        {
            "role": "tool",
            "tool_call_id": "c1",
            "tool_name": "calculator",
            "result_of": "a/turn/1/tool/1",
        },
        {"role": "assistant", "reply_of": "a/turn/2"},
    ]
    assert [len(request.messages) for request in here.small.requests] == [2, 4]
    assert [tool.name for tool in here.small.requests[0].tools] == ["calculator", "finish"]
    assert here.scope.usage.to_dict()["turns"] == 2


@pytest.mark.req("003/FR1.3")
async def test_a_missing_variable_fails_the_step_before_anything_is_asked() -> None:
    """Inputs arrive on their handles and are substituted once."""
    definition = agent(prompt={"system": "On ${topic}."}, inputs={"topic": {"type": "string"}})
    here = scripted_agent("Yes.")

    assert isinstance(await here.failure(asking(definition), default="?"), AgentInputError)
    await here.run(asking(definition), default="?", inputs={"topic": "${x}"})

    assert here.small.requests[0].messages[0].content == "On ${x}."


@pytest.mark.parametrize("asked", ["", " \n", None])
async def test_an_agent_that_is_asked_nothing_fails_before_anything_is_asked(
    asked: str | None,
) -> None:
    """The step fails for any empty input, and for a blank user message in the prompt."""
    here = scripted_agent("Yes.")
    prompt = {"system": "Help.", "messages": [{"role": "user", "content": "${topic}"}]}
    blank = agent(prompt=prompt, inputs={"topic": {"type": "string", "default": " "}})

    assert isinstance(await here.failure(asking(agent()), default=asked), AgentInputError)
    assert isinstance(await here.failure(asking(blank), default=asked), AgentInputError)
    assert here.small.requests == []


@pytest.mark.req("003/FR2.1")
@pytest.mark.parametrize("where", ["limits", "budget"])
async def test_a_limit_of_turns_allows_exactly_so_many(where: str) -> None:
    """The model is warned in the last turn, and the agent halts if it calls a tool there."""
    limits = {"max_turns": 2} if where == "limits" else {"budget": {"max_turns": 2}}
    calls = [model_reply("", calculate(f"{n}+1")) for n in range(2)]
    here = scripted_agent(*calls)

    outcome = await here.run(asking(agent(tools=["calculator"], limits=limits)), default="?")

    assert outcome.steps["a"].status is StepStatus.HALTED
    assert outcome.stop is not None
    assert (outcome.stop.cause.kind, outcome.stop.cause.dimension) == (StopKind.BUDGET, "turns")
    assert (outcome.stop.cause.limit, outcome.stop.cause.used) == (2, 2)
    found = result(outcome)
    assert (found["terminate_reason"], found["turn_count"]) == ("max_turns", 2)
    assert (found["success"], found["output"]) == (False, None)
    assert [bool(request.tools) for request in here.small.requests] == [True, True]
    told = [request.messages[-1].content for request in here.small.requests]
    assert ["last reply" in one for one in told] == [False, True]


@pytest.mark.req("003/FR2.1")
async def test_an_answer_in_the_last_turn_is_a_success() -> None:
    """An answer in the last allowed turn does not exceed the limit."""
    here = scripted_agent(model_reply("", calculate("1+1")), "2")

    outcome = await here.run(
        asking(agent(tools=["calculator"], limits={"max_turns": 2})), default="?"
    )

    assert result(outcome)["terminate_reason"] == "goal"
    assert len(here.small.requests) == 2


@pytest.mark.req("003/FR2.1")
async def test_no_turns_means_no_calls() -> None:
    """A limit of zero allows no turn, not even a last answer."""
    here = scripted_agent()

    outcome = await here.run(asking(agent(limits={"max_turns": 0})), default="?")

    assert result(outcome)["terminate_reason"] == "max_turns"
    assert here.small.requests == []


async def test_a_reply_that_cannot_be_read_is_asked_for_once_more() -> None:
    """The request lists the available tools and belongs to the same turn."""
    unreadable = ModelError("m: ?", retryable=False, fault=ModelFault.UNREADABLE_REPLY)
    here = scripted_agent(unreadable, "Two.", unreadable, unreadable)

    once = await here.run(asking(agent(tools=["calculator"])), default="?")

    assert once.steps["a"].outputs["default"] == "Two."
    assert result(once)["turn_count"] == 1
    assert "The tools are: calculator, finish." in here.small.requests[1].messages[-1].content
    assert here.scope.usage.to_dict()["turns"] == 1

    twice = await here.run(asking(agent(tools=["calculator"])), default="?")

    assert isinstance(twice.error, CallFailedError)
    assert twice.error.error_class == "ModelReplyUnreadable"


async def test_a_tool_that_a_limit_refuses_halts_the_agent_with_what_it_has() -> None:
    """The other calls of the same reply that fit the limit finish."""
    calls = model_reply("", *(calculate(f"{n}+1", f"c{n}") for n in range(3)))
    here = scripted_agent(calls, "1 and 2.", budget=Budget(max_tool_calls=2))

    outcome = await here.run(asking(agent(tools=["calculator"])), default="?")

    assert outcome.stop is not None
    assert outcome.stop.cause.dimension == "tool_calls"
    roles = [one["role"] for one in result(outcome)["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user", "assistant"]
    assert kinds(here).count("tool_call_start") == kinds(here).count("tool_call_end") == 3
    assert result(outcome)["output"] == "1 and 2."


@pytest.mark.req("003/FR2.2")
@pytest.mark.parametrize("inside", ["model", "tool"])
async def test_the_time_of_an_agent_ends_what_is_in_flight(inside: str) -> None:
    """The timeout cancels the call in flight; the partial result stays."""
    gate = Gate()
    hang = asyncio.Event()

    async def never(_: Any) -> Any:
        await hang.wait()

    first = model_reply("So far.", wants("gate", n=1)) if inside == "tool" else never
    here = scripted_agent(first, more_tools=[gate])

    outcome = await here.run(
        asking(agent(tools=["gate"], limits={"timeout_ms": 1500})), default="?"
    )

    assert outcome.steps["a"].status is StepStatus.HALTED
    assert outcome.stop is not None
    assert outcome.stop.cause.dimension == "seconds"
    assert result(outcome)["terminate_reason"] == "timeout"
    assert gate.cancelled == ([1] if inside == "tool" else [])
    assert result(outcome)["raw_content"] == ("So far." if inside == "tool" else "")


@pytest.mark.req("003/FR2.2")
async def test_a_tool_that_does_not_end_at_its_time_is_followed_by_nothing() -> None:
    """A result that arrives after the timeout is discarded."""

    class Deaf(Gate):
        async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
            try:
                return await super().run(args, context)
            except asyncio.CancelledError:
                return {"n": 1}

    here = scripted_agent(model_reply("", wants("gate", n=1)), "Went on.", more_tools=[Deaf()])

    outcome = await here.run(
        asking(agent(tools=["gate"], limits={"timeout_ms": 1500})), default="?"
    )

    assert result(outcome)["terminate_reason"] == "timeout"
    assert outcome.steps["a"].status is StepStatus.HALTED
    assert len(here.small.requests) == 1


@pytest.mark.req("003/FR2.2")
@pytest.mark.parametrize("second", ["second try", "last answer"])
async def test_an_agent_out_of_time_halts_before_its_second_answer(second: str) -> None:
    """If a model or tool ignores the cancellation, its first answer is discarded."""
    stop = Scope("run", Budget(max_seconds=1)).time_limit_error()

    class Deaf(Gate):
        async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
            here.token.trip(stop)
            return {"n": 1}

    async def deaf(_: ModelRequest) -> ModelReply:
        here.token.trip(stop)
        return model_reply('{"town": "Bern"}')

    more: dict[str, Any] = {"output": {"schema": {"type": "string"}}}
    if second == "last answer":
        here = scripted_agent(
            model_reply("So far.", wants("gate", n=1)), "never", more_tools=[Deaf()]
        )
        more = {"tools": ["gate"], "limits": {"max_turns": 1}}
    else:
        here = scripted_agent(deaf, "never")
    outcome = await here.run(asking(agent(**more)), default="?")

    found = result(outcome)
    assert outcome.stop is stop
    assert outcome.steps["a"].status is StepStatus.HALTED
    assert (found["success"], found["terminate_reason"]) == (False, "timeout")
    assert len(here.small.requests) == 1


@pytest.mark.req("003/FR2.3")
async def test_an_abort_reaches_the_tools_in_flight() -> None:
    """All tools in flight are cancelled, and no further call is made."""
    gate = Gate()
    here = scripted_agent(
        model_reply("", wants("gate", n=1), wants("gate", n=2)), more_tools=[gate]
    )
    running = asyncio.create_task(here.run(asking(agent(tools=["gate"])), default="?"))
    await settle_down()
    assert len(gate.began) == 2

    here.token.cancel("Enough.")
    running.cancel()
    outcome = await running

    assert sorted(gate.cancelled) == [1, 2]
    assert result(outcome)["terminate_reason"] == "aborted"
    assert kinds(here)[-3:] == ["tool_call_end", "tool_call_end", "turn_end"]


@pytest.mark.req("003/FR2.4")
@pytest.mark.req("003/NFR1.2")
async def test_tools_that_allow_it_work_side_by_side_and_results_keep_the_order() -> None:
    """The results keep the order of the calls, whichever tool finishes first."""
    gate = Gate()
    here = scripted_agent(
        model_reply("", *(wants("gate", f"c{n}", n=n) for n in (1, 2, 3))),
        "Done.",
        more_tools=[gate],
    )
    running = asyncio.create_task(here.run(asking(agent(tools=["gate"])), default="?"))
    await settle_down()
    assert len(gate.began) == 3
    for number in (3, 1, 2):
        gate.let(number)
        await settle_down()
    outcome = await running

    assert gate.ended == [3, 1, 2]
    tools = [one for one in result(outcome)["messages"] if one["role"] == "tool"]
    assert [one["tool_call_id"] for one in tools] == ["c1", "c2", "c3"]


@pytest.mark.req("003/FR2.4")
async def test_tools_that_do_not_allow_it_work_one_after_the_other() -> None:
    """The second tool starts when the first has finished."""
    gate = Gate(parallel_safe=False)
    here = scripted_agent(
        model_reply("", wants("gate", n=1), wants("gate", n=2)), "Done.", more_tools=[gate]
    )
    running = asyncio.create_task(here.run(asking(agent(tools=["gate"])), default="?"))
    await settle_down()
    assert gate.began == [1]
    gate.let(1)
    gate.let(2)
    await running

    assert gate.began == gate.ended == [1, 2]


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (wants("nothing"), "unknown_tool"),
        (ToolCall(id="c", name="calculator", arguments='{"expression": '), "invalid_arguments"),
        (ToolCall(id="c", name="calculator", arguments="[1]"), "invalid_arguments"),
        (wants("calculator", expression=7), "invalid_arguments"),
        (wants("echo", say="fail"), "unsaid"),
    ],
)
async def test_what_is_wrong_with_a_call_is_read_by_the_model(call: ToolCall, code: str) -> None:
    """The error goes to the model and does not fail the agent."""
    here = scripted_agent(model_reply("", call), "I see.")

    outcome = await here.run(asking(agent(tools=["calculator", "echo"])), default="?")

    assert outcome.steps["a"].outputs["default"] == "I see."
    assert f'"code":"{code}"' in here.small.requests[1].messages[-1].content


async def test_a_tool_that_the_agent_does_not_name_is_not_there() -> None:
    """Tools of the process that the agent does not list are unavailable."""
    here = scripted_agent(model_reply("", wants("echo", say="hi")), "Ok.")

    await here.run(asking(agent(tools=["calculator"])), default="?")

    assert "unknown_tool" in here.small.requests[1].messages[-1].content
    assert here.echo.contexts == []


async def test_the_same_calls_with_the_same_results_three_times_are_a_loop() -> None:
    """A different result in between resets the count."""
    same, other = model_reply("", calculate("1+1")), model_reply("", calculate("1+2"))
    here = scripted_agent(same, same, other, same, same, same, "never")

    outcome = await here.run(asking(agent(tools=["calculator"])), default="?")

    assert outcome.stop is not None
    assert outcome.stop.cause.kind is StopKind.LOOP
    assert outcome.steps["a"].status is StepStatus.HALTED
    assert (result(outcome)["terminate_reason"], result(outcome)["turn_count"]) == ("budget", 6)
    asked = [request.messages[-1].content for request in here.small.requests]
    assert [n for n, text in enumerate(asked) if "made these calls before" in text] == [2, 5]


@pytest.mark.req("003/FR2.6")
async def test_an_agent_says_that_it_is_done_by_a_tool() -> None:
    """The arguments of the call hold the answer."""
    here = scripted_agent(model_reply("", calculate("1+1"), wants("finish", "c2", answer="Two.")))

    outcome = await here.run(asking(agent(tools=["calculator"])), default="?")

    assert outcome.steps["a"].outputs["default"] == "Two."
    assert result(outcome)["success"] is True


@pytest.mark.req("cw/9.error", "003/NFR2.1")
async def test_a_model_that_fails_fails_the_agent_with_what_it_has() -> None:
    """An error event is written as well."""
    here = scripted_agent(model_reply("First.", calculate("1+1")), provider_down())

    outcome = await here.run(asking(agent(tools=["calculator"])), default="?")

    assert isinstance(outcome.error, CallFailedError)
    found = result(outcome)
    assert (found["terminate_reason"], found["raw_content"]) == ("error", "First.")
    message = "The provider refused."
    assert found["error"] == {"class": "ModelRequestRefused", "message": message}
    assert kinds(here)[-3:] == ["turn_start", "error", "turn_end"]


async def test_an_agent_that_waits_for_a_person_is_suspended_and_not_ended() -> None:
    """The log has `agent.suspended`, and no terminate reason is set."""
    gate = Gate()
    here = scripted_agent(model_reply("", wants("gate", n=1)), more_tools=[gate])
    running = asyncio.create_task(here.run(asking(agent(tools=["gate"])), default="?"))
    await settle_down()

    with capture_logs() as lines:
        here.token.trip(Suspended(frozenset({"q"})))
        running.cancel()
        outcome = await running

    assert [line["event"] for line in lines if line["event"].startswith("agent.")] == [
        "agent.suspended"
    ]
    assert "terminate_reason" not in lines[0]
    assert result(outcome)["terminate_reason"] is None
