"""An answer is confirmed by a check that does not depend on its plan."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.tools.arguments import object_of, text
from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec
from caseworker_cases.agent.evidence import compose
from caseworker_cases.agent.verifier import Check, Comparison, verify
from tests.support.limits import case_of
from tests.unit.cases.agent.judging import NOW, evidence_of, judged
from tests.unit.cases.agent.world import case_run, plan, result_of


@pytest.mark.req("002/6.1")
def test_nothing_is_verified_that_nothing_independent_confirms(comparison: Comparison) -> None:
    """Recomputing a deterministic tool gives the same result and does not confirm the answer."""
    evidence = evidence_of("weather", {"value": "12"})

    verdict = judged(comparison, evidence, again={"value": "12"}, agrees=None)

    assert (verdict.verified, verdict.metric, verdict.confirmed_by) == (False, 1.0, None)
    assert verdict.failure.startswith("Nothing confirms the answer")
    assert verdict.checks[Check.GOLD] is None


@pytest.mark.parametrize(
    ("agrees", "case", "confirmed_by"),
    [
        (True, {}, Check.COMPUTED_OTHERWISE),
        (True, {"gold_answer": "1"}, Check.GOLD),
        (None, {"expected_tools": ("calculator",)}, Check.EXPECTED_EVIDENCE),
        (None, {"expected_tools": ("respond",)}, None),
        (False, {"expected_tools": ("calculator",)}, None),
        (True, {"gold_answer": "2"}, None),
    ],
)
def test_the_check_that_confirms_an_answer_is_named(
    comparison: Comparison, agrees: bool | None, case: dict[str, Any], confirmed_by: Check | None
) -> None:
    """The strongest check confirms the answer; a single failed check prevents that."""
    verdict = judged(comparison, evidence_of("calculator", {"value": "1"}), agrees=agrees, **case)

    assert verdict.confirmed_by is confirmed_by
    assert verdict.verified is (confirmed_by is not None)


def test_what_a_planner_says_in_its_own_words_is_not_confirmed(comparison: Comparison) -> None:
    """A written answer needs a tool with the same result, or the expected tool's numbers."""
    calculated = evidence_of("calculator", {"value": "1234.5"})

    def confirmed(text: str, **case: Any) -> Check | None:
        written = evidence_of("respond", {"answer": text}, step=2, number=2)
        return judged(comparison, calculated, written, **case).confirmed_by

    expected: dict[str, Any] = {"expected_tools": ("calculator",)}
    assert confirmed("1,234.50") is Check.COMPUTED_OTHERWISE
    assert confirmed("It is 1,234.5.") is None
    assert confirmed("It is 1,234.5.", **expected) is Check.EXPECTED_EVIDENCE
    assert confirmed("It is 1234.", **expected) is None
    assert confirmed("It is much.", **expected) is None


def test_what_an_answer_was_made_of_must_be_confirmed_too(comparison: Comparison) -> None:
    """Every result that the answer was computed from must be confirmed, not only the last one."""
    days = replace(evidence_of("calendar", {"value": "7"}), used=True)
    product = evidence_of("calculator", {"value": "343"}, number=2)

    def confirmed(ways: Mapping[str, bool | None]) -> Check | None:
        case = case_of(question="?", timezone="UTC", now=NOW)
        return verify(
            case,
            (days, product),
            recompute=lambda item: None,
            agrees=lambda item: ways[item.tool],
            same=comparison.same,
        ).confirmed_by

    answer = compose((days, product))
    assert answer is not None
    assert answer.text == "343"
    assert confirmed({"calendar": True, "calculator": True}) is Check.COMPUTED_OTHERWISE
    assert confirmed({"calendar": None, "calculator": True}) is None


@pytest.mark.req("002/6.1")
async def test_a_tool_that_answers_another_question_verifies_nothing() -> None:
    """A tool whose arguments do not match the question confirms nothing, even if it is expected."""

    class Weather:
        spec = ToolSpec(
            name="weather",
            description="Tells the weather.",
            parameters=object_of("city", city=text(40)),
            deterministic=True,
        )

        async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
            return {"value": "12", "text": "12 degrees"}

    replies = [plan(("weather", {"city": "Paris"}))] * 3
    cases: list[dict[str, Any]] = [{}, {"expected_tools": ["weather"]}]
    for case in cases:
        here = case_run(
            replies,
            more_tools=[Weather()],
            recomputed=[Weather()],
            budget=Budget(max_llm_calls_big=0),
        )
        result = result_of(await here.run("What is 12*5?", **case))

        assert (result["answer"], result["verified"]) == ("12", False)
        assert result["verification"]["checks"]["question_used"] is False
