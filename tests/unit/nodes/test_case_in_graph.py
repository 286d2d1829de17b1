"""Cases as steps of larger graphs."""

import pytest

from caseworker.nodes.node_type import RunFacts
from tests.unit.cases.agent.world import NOW as CASE_NOW
from tests.unit.cases.agent.world import ScriptedModel, calculate, plan, respond, result_of
from tests.unit.cases.agent.world import case_run as case_world
from tests.unit.nodes.world import NOW, NodeRun, flow, graph, step


@pytest.mark.req("004/pipeline")
async def test_the_answer_of_one_case_is_the_question_of_the_next() -> None:
    """A flow edge passes the first case's answer to the second case."""
    of = graph(
        step("first", "case"),
        step("then", "case", {"input": "What is twice ${default}?"}),
        flow("first", "then"),
    )
    here = NodeRun(small=ScriptedModel([plan(calculate("6 * 7")), plan(calculate("42 * 2"))]))

    outcome = await here.run(of, default="What is 6 times 7?")

    questions = [here.small.document(index)["question"] for index in (0, 1)]
    assert questions == ["What is 6 times 7?", "What is twice 42?"]
    assert outcome.steps["then"].outputs["default"] == "84"
    assert outcome.steps["then"].outputs["result"]["verified"] is True


async def test_a_question_is_never_read_as_a_template() -> None:
    """The planner gets the caller's text unchanged."""
    here = NodeRun(small=ScriptedModel([plan(respond("no"))]))

    await here.run(graph(step("c", "case")), default="What is ${secret} in $${x}?", secret="s3cret")

    assert here.small.document(0)["question"] == "What is ${secret} in $${x}?"


@pytest.mark.parametrize(
    ("data", "today"),
    [
        ({}, "Tuesday, September 9, 2025"),
        ({"timezone": "UTC"}, "Monday, September 8, 2025"),
        ({"now": "2024-02-29T12:00:00Z"}, "Thursday, February 29, 2024"),
    ],
)
async def test_a_case_has_the_time_and_the_zone_of_its_run_or_its_own(
    data: dict[str, str], today: str
) -> None:
    """A case has the same time and zone whenever its run is executed again."""
    here = NodeRun(
        small=ScriptedModel([plan(respond("yes"))]),
        facts=RunFacts(now=NOW, timezone="Asia/Tokyo", seed=5),
    )

    await here.run(graph(step("c", "case", data)), default="Is it late?")

    assert here.small.document(0)["today"] == today
    assert here.small.requests[0].seed == 5


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ({"mode": "big_first"}, "mode"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"timezone": "/etc/passwd"}, "timezone"),
        ({"now": "2024-02-29T12:00:00"}, "now"),
        ({"now": "today"}, "now"),
        ({"act": {"max_steps": -1}}, "act.max_steps"),
        ({"act": {"max_steps_fallback_only": 2}}, "act.max_steps_fallback_only"),
        ({"act": {"escalate_when": "never"}}, "act.escalate_when"),
        ({"pass_metric": 1.5}, "pass_metric"),
        ({"expected_tools": "calculator"}, "expected_tools"),
        ({"input": "${"}, "input"),
        ({"question": "?"}, "question"),
    ],
)
def test_the_data_of_a_case_is_checked_with_the_graph(data: dict[str, object], place: str) -> None:
    """Each problem in the data of a case is reported at its own field."""
    assert NodeRun().places(graph(step("c", "case", data))) == [f"steps.0.data.{place}"]


async def test_what_a_step_says_of_the_loop_replaces_what_is_configured() -> None:
    """A step overrides single settings of the loop; the rest keep their configured values."""
    here = case_world(big=[plan(calculate("6 * 7"))])

    result = result_of(await here.run(act={"max_steps": 0}))

    assert (here.small.requests, result["answer"]) == ([], "42")


async def test_a_case_that_gets_no_question_fails() -> None:
    """The step fails because it has no question."""
    outcome = await case_world().run("${default}", inputs={"default": ""}, now=CASE_NOW)

    assert type(outcome.error).__name__ == "CaseDataError"
