"""The checks of the verifier, and the composition of answers."""

from dataclasses import replace
from typing import Any

import pytest

from caseworker.models.gateway import Tier
from caseworker.tools.ports import ToolContext, ToolResult
from caseworker_cases.agent.evidence import CaseEvidence, compose, finding
from caseworker_cases.agent.verifier import Check, Comparison, DeterministicTools, verify
from caseworker_cases.tools.calculator import Calculator
from tests.support.limits import case_of
from tests.unit.cases.agent.judging import FAILED, NOW, evidence_of, judged
from tests.unit.cases.agent.world import BrokenTool, calculate, case_run, plan, result_of

CONTEXT = ToolContext(run_id="r", timezone="UTC", now=NOW)


def test_an_answer_without_error_that_is_found_again_passes(comparison: Comparison) -> None:
    """An answer that is computed again without error passes all four applicable checks."""
    verdict = judged(
        comparison, evidence_of("calculator", {"value": "42"}), again={"value": "42.0"}
    )

    assert (verdict.verified, verdict.metric, verdict.failure) == (True, 1.0, "")


def test_no_evidence_is_no_answer(comparison: Comparison) -> None:
    """A case without evidence has no answer, and its metric is 0."""
    verdict = judged(comparison)

    assert (verdict.verified, verdict.metric) == (False, 0.0)
    assert verdict.failure == "There is no answer yet."


@pytest.mark.req("002/5.1")
def test_a_value_that_is_not_found_again_does_not_pass(comparison: Comparison) -> None:
    """A recomputed value that differs in the last digit fails the check."""
    verdict = judged(
        comparison,
        evidence_of("calculator", {"value": "0.3"}),
        again={"value": "0.30000000000000004"},
    )

    assert verdict.checks[Check.REPEATED] is False
    assert verdict.metric == pytest.approx(3 / 4)


def test_a_tool_that_fails_when_asked_again_does_not_pass(comparison: Comparison) -> None:
    """A tool that fails on recomputation fails the check."""
    assert not judged(comparison, evidence_of("calculator", {"value": "1"}), again=FAILED).verified


def test_an_error_in_the_pass_that_answers_does_not_pass(comparison: Comparison) -> None:
    """An error in the answering pass fails the case and is named for the planner."""
    verdict = judged(
        comparison,
        evidence_of("calculator", {"value": "1"}),
        evidence_of("plotter", FAILED, number=2),
    )

    assert verdict.checks[Check.NO_ERROR] is False
    assert "plotter: division by zero" in verdict.failure


def test_an_error_of_an_earlier_pass_does_not_matter(comparison: Comparison) -> None:
    """An error of an earlier pass does not affect the answer."""
    evidence = (
        evidence_of("calculator", FAILED),
        evidence_of("calculator", {"value": "1"}, step=2, number=2),
    )

    assert judged(comparison, *evidence).verified


def test_every_expected_tool_must_have_been_used(comparison: Comparison) -> None:
    """Each expected tool must have succeeded in some pass."""
    answered = evidence_of("respond", {"answer": "x"}, step=2, number=2)
    expected: dict[str, Any] = {"expected_tools": ("plotter",)}

    assert judged(comparison, evidence_of("plotter", {"text": "x"}), answered, **expected).verified
    assert not judged(comparison, evidence_of("plotter", FAILED), answered, **expected).verified
    assert not judged(comparison, answered, **expected).verified


def test_a_refused_action_is_neither_an_error_nor_a_use(comparison: Comparison) -> None:
    """A refused action is neither an error nor a use of its tool, because it never ran."""
    refused = CaseEvidence(
        number=2,
        tier=Tier.SMALL,
        act_step=1,
        tool="plotter",
        args={},
        result={"error": "There is no tool 'plotter'.", "code": "unknown_tool"},
        warning="unknown_tool",
    )

    assert judged(comparison, refused, evidence_of("calculator", {"value": "1"})).verified
    assert not judged(
        comparison, refused, evidence_of("calculator", {"value": "1"}), expected_tools=("plotter",)
    ).verified


def test_a_written_number_must_be_one_that_was_found(comparison: Comparison) -> None:
    """If a result can be recomputed, a written number must equal it."""
    calculated = evidence_of("calculator", {"value": "1234.5"})

    def answer(text: str) -> bool:
        written = evidence_of("respond", {"answer": text}, step=2, number=2)
        return judged(comparison, calculated, written, again={"value": "1234.5"}).verified is True

    assert answer("1,234.50")
    assert not answer("1234")


def test_a_number_that_was_written_down_does_not_vouch_for_itself(comparison: Comparison) -> None:
    """Recomputing ``respond`` does not confirm its own number."""
    evidence = (
        evidence_of("calculator", {"value": "42"}),
        evidence_of("respond", {"answer": "41"}, step=2),
    )

    def repeated(action: CaseEvidence) -> ToolResult:
        return action.result

    case = case_of(question="?", timezone="UTC", now=NOW)
    verdict = verify(
        case, evidence, recompute=repeated, agrees=lambda item: True, same=comparison.same
    )

    assert verdict.checks[Check.REPEATED] is False


@pytest.mark.parametrize(
    ("answer", "vouched"),
    [
        ("189.98", True),  # in a row
        ("700", True),  # in the summary
        ("1,234.5", True),  # in words
        ("2012", False),  # a part of a date
        ("16", False),  # a part of a time
        ("2", False),  # a key is a name
        ("190", False),
    ],
)
def test_a_number_read_off_what_a_tool_found_is_vouched_for(
    comparison: Comparison, answer: str, vouched: bool
) -> None:
    """A number from a tool's rows, summary or text counts, even if the tool cannot be run again."""
    fetched = evidence_of(
        "data_fetch_stock",
        {
            "rows": [["2012-01-03", 189.98]],
            "summary": {"max": 7e2, "2": None, "adjusted": True},
            "text": "At 16:00 IBM closed at: 1,234.5.",
        },
    )
    written = evidence_of("respond", {"answer": answer}, step=2, number=2)

    assert judged(comparison, fetched, written).checks[Check.REPEATED] is vouched


def test_a_number_is_held_against_what_was_found_if_that_cannot_be_found_again(
    comparison: Comparison,
) -> None:
    """If recomputation fails, numbers count as found in the evidence, not in the error message."""
    calculated = evidence_of("calculator", {"value": "42"})

    def answer(text: str, again: ToolResult) -> bool:
        written = evidence_of("respond", {"answer": text}, step=2, number=2)
        return judged(comparison, calculated, written, again=again).verified is True

    assert answer("42", FAILED)
    assert not answer("41", FAILED)
    assert not answer("10", {"error": "No answer within 10 seconds.", "code": "timeout"})


def test_the_pass_metric_is_the_share_that_must_hold(comparison: Comparison) -> None:
    """A lower pass metric still requires an answer and an independent confirmation."""
    evidence = evidence_of("broken", FAILED), evidence_of("calculator", {"value": "1"}, number=2)

    assert not judged(comparison, *evidence).verified
    assert judged(comparison, *evidence, pass_metric=0.6).verified
    assert not judged(comparison, *evidence, pass_metric=0.0, gold_answer="2").verified
    assert not judged(comparison, *evidence, pass_metric=0.0, agrees=None).verified
    assert not judged(comparison, pass_metric=0.0).verified


@pytest.mark.req("002/5.1", "002/5.2")
@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [
        ("42", "42.00", True),
        ("1234567.5", "1,234,567.50", True),
        ("1e3", "1000", True),
        ("-0", "0", True),
        (".5", "0.5", True),
        ("0.1", "0.10000000000000001", False),
        ("42", "42 apples", False),
        ("12,34", "1234", False),
        ("9" * 3000, "9" * 3000 + ".0", True),
        ("Monday, September 8, 2025", "2025-09-08", True),
        ("Monday, September 8, 2025", "8 September 2025", True),
        ("Monday, September 8, 2025", "Tuesday, September 8, 2025", False),
        ("2025-04-03", "03/04/2025", False),
        ("2025-09-08", "2025-09-09", False),
        ("2025-09-08T10:00:00Z", "2025-09-08T11:00:00Z", False),
        ("2025-09-08T10", "2025-09-08", False),
        ("  Straße\tEins ", "STRASSE eins", True),
        ("caf\u00e9", "cafe\u0301", True),
        ("yes", "no", False),
    ],
)
def test_answers_are_compared_by_what_they_say(
    comparison: Comparison, answer: str, gold: str, same: bool
) -> None:
    """Numbers compare exactly, dates by day, and texts without case and spacing."""
    assert comparison.same(answer, gold) is same
    assert comparison.same(gold, answer) is same


@pytest.mark.req("002/25.2")
@pytest.mark.parametrize(
    ("result", "answer"),
    [
        ({"value": "2025-09-08", "text": "Monday, September 8, 2025"}, "Monday, September 8, 2025"),
        ({"value": "42", "text": "42 days"}, "42"),
        ({"value": 42, "text": "42 days"}, "42"),
        ({"value": 0.5}, "0.5"),
        ({"value": 4.0}, "4"),
        ({"value": 1e21}, "1000000000000000000000"),
        ({"value": "yes", "text": "yes"}, "yes"),
        ({"value": [1, 2]}, "[1, 2]"),
        ({"uri": "plot.png"}, None),
        (FAILED, None),
    ],
)
def test_a_number_is_shown_as_it_is_and_a_date_in_words(
    result: ToolResult, answer: str | None
) -> None:
    """The answer to a numeric result is the number, and to a date its text."""
    assert finding(result) == answer


def test_what_several_tools_found_is_one_answer() -> None:
    """Results of several tools form one answer in plan order."""
    answer = compose(
        [evidence_of("calculator", {"value": "2"}), evidence_of("calendar", {"text": "Monday"})]
    )

    assert answer is not None
    assert answer.text == "2; Monday"


def test_the_answer_of_respond_is_the_whole_answer() -> None:
    """The text of ``respond`` replaces all other results as the answer."""
    answer = compose(
        [evidence_of("respond", {"answer": "two"}), evidence_of("calculator", {"value": "2"})]
    )

    assert answer is not None
    assert answer.text == "two"


def test_a_pass_that_finds_nothing_leaves_the_earlier_answer() -> None:
    """A pass without a value keeps the earlier answer; a plot adds none."""
    answer = compose(
        [evidence_of("calculator", {"value": "2"}), evidence_of("plotter", {"uri": "x"}, step=2)]
    )

    assert answer is not None
    assert answer.text == "2"


async def test_a_deterministic_tool_is_asked_again_and_no_other() -> None:
    """Only deterministic tools are recomputed; other tools give None."""
    tools = DeterministicTools([Calculator()])

    again = await tools.repeat("calculator", {"expression": "6 * 7"}, CONTEXT)

    assert again is not None
    assert again["value"] == "42"
    assert await tools.repeat("respond", {"answer": "42"}, CONTEXT) is None


async def test_a_tool_that_breaks_when_asked_again_is_an_error_dict() -> None:
    """A tool that raises on recomputation gives an error result, which equals no value."""
    tool = BrokenTool()
    tool.spec = replace(BrokenTool.spec, deterministic=True)
    again = await DeterministicTools([tool]).repeat("broken", {}, CONTEXT)

    assert again == {
        "error": "The tool broke when it was asked again.",
        "code": "RuntimeError",
    }


async def test_working_an_answer_out_again_is_no_tool_call() -> None:
    """A recomputation is neither charged nor traced."""
    here = case_run([plan(calculate("6 * 7"))])

    result = result_of(await here.run())

    assert result["verified"] is True
    assert here.scope.usage.to_dict()["tool_calls"] == 1
    assert here.trace.snapshot()["aggregates"]["total_tool_calls"] == 1
