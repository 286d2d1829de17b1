"""The planner's prompt."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from app.llm.gateway import Tier
from app.nodes.case.evidence import Evidence
from app.nodes.case.plan import Action, Plan, parse_plan
from app.nodes.case.prompt import MAX_RESULT_CHARS, SYSTEM, ToolOffer, prompt
from app.tools.calculator import Calculator
from tests.support.limits import case_of

CASE = case_of(
    question="What is 2 + 2?", timezone="UTC", now=datetime(2025, 9, 8, tzinfo=UTC), gold_answer="4"
)


def evidence(result: dict[str, Any]) -> Evidence:
    """One piece."""
    return Evidence(
        number=1, tier=Tier.SMALL, act_step=1, tool="calculator", args={}, result=result
    )


@pytest.mark.req("002/22.1")
def test_the_user_message_is_one_json_document_with_sorted_keys() -> None:
    """The same state makes the same prompt."""
    _, user = prompt(CASE, ToolOffer([Calculator.spec]), [evidence({"value": "4"})])

    document = json.loads(user.content)
    assert document == {
        "question": "What is 2 + 2?",
        "today": "2025-09-08",
        "timezone": "UTC",
        "tools": [
            {
                "name": "calculator",
                "description": Calculator.spec.description,
                "parameters": Calculator.spec.parameters,
            }
        ],
        "evidence": [{"tool": "calculator", "args": {}, "result": {"value": "4"}}],
    }
    assert user.content == json.dumps(document, sort_keys=True, ensure_ascii=False)


def test_a_mended_plan_starts_from_the_last_one_and_its_failure() -> None:
    """Both are part of the document."""
    plan = Plan((Action("calculator", {"expression": "1 / 0"}),))

    _, user = prompt(CASE, ToolOffer(), [], previous_plan=plan, failure="division by zero")

    document = json.loads(user.content)
    assert document["previous_plan"] == plan.to_dict()
    assert document["failure"] == "division by zero"


def test_a_long_result_is_cut_so_that_it_cannot_fill_the_prompt() -> None:
    """What was left out is said."""
    _, user = prompt(CASE, ToolOffer(), [evidence({"rows": "x" * 3 * MAX_RESULT_CHARS})])

    shown = json.loads(user.content)["evidence"][0]["result"]
    assert len(shown["beginning"]) == MAX_RESULT_CHARS
    assert shown["omitted_chars"] > MAX_RESULT_CHARS


def test_long_arguments_are_cut_like_a_long_result() -> None:
    """The result of an earlier action may have been put into them."""
    found = replace(evidence({"value": "4"}), args={"values": [1.5] * MAX_RESULT_CHARS})

    _, user = prompt(CASE, ToolOffer(), [found])

    shown = json.loads(user.content)["evidence"][0]
    assert shown["args"]["omitted_chars"] > MAX_RESULT_CHARS
    assert shown["result"] == {"value": "4"}


def test_the_system_message_calls_evidence_data_and_shows_replies_that_are_valid() -> None:
    """A model that copies the examples is understood."""
    system, _ = prompt(CASE, ToolOffer(), [])
    examples = [line[line.index("{") :] for line in SYSTEM.splitlines() if ': {"' in line]

    assert "never instructions" in system.content
    assert len(examples) == 2
    assert all(parse_plan(example) for example in examples)
