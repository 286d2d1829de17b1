"""Outputs of an agent: parsed, requested a second time, or returned unparsed."""

import json

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.core.graph.facts import StepStatus
from caseworker.models.ports import ToolCall
from caseworker.nodes.agent.output import OutputInvalidError
from tests.unit.cases.agent.world import provider_down
from tests.unit.nodes.agent.world import (
    agent,
    asking,
    kinds,
    model_reply,
    result,
    scripted_agent,
    wants,
)

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.mark.req("003/FR5.1")
@pytest.mark.parametrize("tools", [[], ["calculator"]])
async def test_an_answer_that_follows_its_schema_is_typed(tools: list[str]) -> None:
    """The output is parsed from the text or from the arguments of `finish`."""
    line = model_reply("", wants("finish", city="Bern")) if tools else 'Here: {"city": "Bern"}'
    here = scripted_agent(line)

    outcome = await here.run(asking(agent(tools=tools, output={"schema": CITY})), default="?")

    assert outcome.steps["a"].outputs["default"] == {"city": "Bern"}
    assert result(outcome)["output_valid"] is True
    assert bool(here.small.requests[0].json_schema) is not bool(tools)


@pytest.mark.req("003/FR5.2")
@pytest.mark.req("003/FR5.3")
@pytest.mark.parametrize("tools", [[], ["calculator"]])
async def test_an_answer_that_does_not_is_asked_for_once_more(tools: list[str]) -> None:
    """The second request names the problem; a second invalid answer is returned with a flag."""
    bad = model_reply("", wants("finish", town="Bern")) if tools else '{"town": "Bern"}'
    here = scripted_agent(bad, '{"city": 7}')

    outcome = await here.run(asking(agent(tools=tools, output={"schema": CITY})), default="?")

    found = result(outcome)
    assert outcome.steps["a"].outputs["default"] == '{"city": 7}'
    assert (found["success"], found["output"], found["output_valid"]) == (True, None, False)
    assert (found["raw_content"], found["turn_count"]) == ('{"city": 7}', 1)
    assert "does not follow its JSON Schema" in here.small.requests[1].messages[-1].content


@pytest.mark.parametrize(
    "arguments", ["", "{}", '{"answer": ""}', '{"answer": " "}', '{"answer": null}', '{"a": "42"}']
)
async def test_a_call_that_hands_in_no_answer_is_refused(arguments: str) -> None:
    """The model gets the error and may call the tool again."""
    empty = model_reply("", ToolCall(id="c1", name="finish", arguments=arguments))
    here = scripted_agent(empty, model_reply("", wants("finish", answer="42")))

    outcome = await here.run(asking(agent(tools=["calculator"])), default="?")

    assert result(outcome)["output"] == "42"
    told = here.small.requests[1].messages[-1].content
    assert ("'answer' is missing" in told, "invalid_arguments" in told) == (True, True)


async def test_an_answer_that_is_no_object_must_be_handed_in_too() -> None:
    """Null is a value, not a missing answer."""
    here = scripted_agent(
        model_reply("", wants("finish")), model_reply("", wants("finish", output=None))
    )
    output = {"schema": {"type": ["string", "null"]}}

    outcome = await here.run(asking(agent(tools=["calculator"], output=output)), default="?")

    assert "'output' is missing" in here.small.requests[1].messages[-1].content
    assert (result(outcome)["raw_content"], result(outcome)["output_valid"]) == ("null", True)


@pytest.mark.parametrize("value", [42, ["a"], {"city": "Bern"}])
async def test_an_answer_in_another_form_than_text_is_taken_as_json(value: object) -> None:
    """Weak models write a number as a JSON number."""
    here = scripted_agent(model_reply("", wants("finish", answer=value)))

    outcome = await here.run(asking(agent(tools=["calculator"])), default="?")

    assert json.loads(result(outcome)["output"]) == value


async def test_a_second_reply_that_calls_another_tool_leaves_the_first_answer() -> None:
    """The first answer is returned, flagged as invalid, with its raw content."""
    here = scripted_agent(
        model_reply("", wants("finish", town="Bern")),
        model_reply("", wants("calculator", city="x")),
    )

    outcome = await here.run(
        asking(agent(tools=["calculator"], output={"schema": CITY})), default="?"
    )

    found = result(outcome)
    assert (found["raw_content"], found["output_valid"]) == ('{"town":"Bern"}', False)
    assert len(here.small.requests) == 2


@pytest.mark.req("003/FR5.2")
@pytest.mark.req("003/FR5.3")
@pytest.mark.parametrize("tools", [[], ["calculator"]])
@pytest.mark.parametrize("refused", ["by the budget", "by the provider"])
async def test_without_a_second_reply_the_first_answer_stays(
    tools: list[str], refused: str
) -> None:
    """The answer is flagged as invalid, and the step does not fail."""
    bad = model_reply("", wants("finish", town="Bern")) if tools else '{"town": "Bern"}'
    if refused == "by the budget":
        here = scripted_agent(bad, budget=Budget(max_llm_calls_small=1))
    else:
        here = scripted_agent(bad, provider_down())

    outcome = await here.run(asking(agent(tools=tools, output={"schema": CITY})), default="?")

    found = result(outcome)
    assert outcome.steps["a"].status is StepStatus.COMPLETED
    assert (found["output"], found["output_valid"]) == (None, False)
    assert "Bern" in found["raw_content"]


@pytest.mark.req("003/FR5.2")
async def test_a_strict_output_that_does_not_fit_fails_the_run() -> None:
    """The run fails after the second attempt at a valid output."""
    here = scripted_agent("no", "no again")

    outcome = await here.run(asking(agent(output={"schema": CITY, "strict": True})), default="?")

    assert isinstance(outcome.error, OutputInvalidError)
    assert kinds(here)[-2:] == ["error", "turn_end"]
    assert (result(outcome)["terminate_reason"], result(outcome)["output_valid"]) == (
        "error",
        False,
    )
