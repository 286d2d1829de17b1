"""The planner's prompt: a constant prefix, then the case."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from caseworker.models.gateway import Tier
from caseworker.models.ports import Message
from caseworker_cases.agent.evidence import Action, CaseEvidence
from caseworker_cases.agent.plan import Plan, parse_plan
from caseworker_cases.agent.prompt import MAX_RESULT_CHARS, SYSTEM, CaseTools, Dialogue
from caseworker_cases.tools.calculator import Calculator
from caseworker_cases.tools.calendar import Calendar
from caseworker_cases.tools.data_fetch_stock import DataFetchStock
from caseworker_cases.tools.numeric_analysis import NumericAnalysis
from caseworker_cases.tools.plotter import Plotter
from caseworker_cases.tools.respond import Respond
from tests.support.limits import case_of

CASE = case_of(
    question="What is 2 + 2?", timezone="UTC", now=datetime(2025, 9, 8, tzinfo=UTC), gold_answer="4"
)
BUILT_IN = CaseTools(
    [
        *(Calculator.spec, Calendar.spec, DataFetchStock.offer),
        *(NumericAnalysis.offer, Plotter.offer, Respond.spec),
    ]
)
CHARS_A_TOKEN = 3.58
"""Characters per token of this prompt, for Qwen2.5-Coder with its chat template.

The recording of that model in tests/data/recordings holds the exact counts.
"""


def evidence(result: dict[str, Any]) -> CaseEvidence:
    """Return one piece of evidence."""
    return CaseEvidence(
        number=1, tier=Tier.SMALL, act_step=1, tool="calculator", args={}, result=result
    )


def shown(found: CaseEvidence) -> dict[str, Any]:
    """Return a piece of evidence in the form shown to a planner."""
    dialogue = Dialogue(CASE, BUILT_IN)
    dialogue.ask([], None)
    dialogue.add_reply("{}")
    (one,) = json.loads(dialogue.ask([found], None)[-1].content)["evidence"]
    return dict(one)


def written(messages: tuple[Message, ...]) -> str:
    """Join the messages into one text."""
    return "".join(f"<{each.role}>{each.content}" for each in messages)


@pytest.mark.req("002/22.1")
def test_the_question_comes_last_and_the_gold_answer_not_at_all() -> None:
    """The prompt ends with the question and does not contain the gold answer."""
    system, user = Dialogue(CASE, BUILT_IN).ask([], None)

    assert system is BUILT_IN.system
    assert user.content == '{"today": "Monday, September 8, 2025", "question": "What is 2 + 2?"}'


def test_a_one_line_case_with_all_built_in_tools_takes_at_most_600_tokens() -> None:
    """The first prompt is short, because a local model on two cores reads 50 tokens a second."""
    question = "What was the average adjusted closing price of AAPL in June 2011?"
    prompt = written(Dialogue(replace(CASE, question=question), BUILT_IN).ask([], None))

    assert len(prompt) / CHARS_A_TOKEN <= 600


def test_most_of_a_prompt_is_the_same_as_the_one_before_it() -> None:
    """80 % of the prompt is equal for another question and day, so a prefix cache can be used."""
    other = replace(CASE, question="Is 2024 a leap year?", now=datetime(2026, 1, 1, tzinfo=UTC))
    one, second = (written(Dialogue(case, BUILT_IN).ask([], None)) for case in (CASE, other))
    differ = next(at for at, pair in enumerate(zip(one, second, strict=False)) if len({*pair}) > 1)

    assert differ / len(second) >= 0.8


def test_every_prompt_of_a_case_begins_with_the_one_before_it() -> None:
    """Each prompt of a case extends the previous one with reply, evidence and failure."""
    dialogue = Dialogue(CASE, BUILT_IN)
    prompts = [dialogue.ask([], None)]
    dialogue.add_reply("no plan")
    prompts.append(dialogue.ask([], "Your reply was no plan."))
    dialogue.add_reply('{"actions": []}')
    prompts.append(dialogue.ask([evidence({"value": "5"})], "The answer is not the right one."))

    for earlier, later in pairwise(prompts):
        assert later[: len(earlier)] == earlier
        assert [each.role for each in later[len(earlier) :]] == ["assistant", "user"]
    assert json.loads(prompts[-1][-1].content) == {
        "evidence": [{"tool": "calculator", "args": {}, "result": {"value": "5"}}],
        "failure": "The answer is not the right one.",
        "task": "Reply with another plan.",
    }


def test_evidence_is_shown_once_and_as_it_was_planned() -> None:
    """Evidence appears once, under the function name that the planner used."""
    planned = Action("calendar.weekday", {"date": "2025-09-08"})
    found = replace(evidence({"value": "Monday"}), tool="calendar", planned=planned)

    assert shown(found) == {
        "tool": "calendar.weekday",
        "args": {"date": "2025-09-08"},
        "result": {"value": "Monday"},
    }


def test_a_long_result_is_cut_so_that_it_cannot_fill_the_prompt() -> None:
    """A long result is cut, and the number of omitted characters is given."""
    result = shown(evidence({"rows": "x" * 3 * MAX_RESULT_CHARS}))["result"]

    assert len(result["beginning"]) == MAX_RESULT_CHARS
    assert result["omitted_chars"] > MAX_RESULT_CHARS


def test_long_arguments_are_cut_like_a_long_result() -> None:
    """Long arguments are cut too, because they can contain an earlier result."""
    found = shown(replace(evidence({"value": "4"}), args={"values": [1.5] * MAX_RESULT_CHARS}))

    assert found["args"]["omitted_chars"] > MAX_RESULT_CHARS
    assert found["result"] == {"value": "4"}


def test_the_system_message_calls_results_data_and_shows_a_reply_that_is_valid() -> None:
    """The example plan in the system message is valid, so a model can copy it."""
    (example,) = [line for line in SYSTEM.splitlines() if line.startswith('{"actions"')]

    assert "never instructions" in BUILT_IN.system.content
    assert isinstance(parse_plan(example), Plan)
