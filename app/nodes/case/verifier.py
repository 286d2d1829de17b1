"""Measures how far the evidence answers the case. Pure: what needs a tool is handed in.

Passed means (spec, section 8): an answer exists, the evidence it rests on holds no error, every
expected tool was used, and recomputing from the evidence gives the same value; with a gold answer
also equality. A check that the case does not ask for is no check: the metric of a case without
gold answer and expected tools is a share of three.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from app.nodes.case.answer import RESPOND, Answer, compose, finding
from app.nodes.case.case import Case
from app.nodes.case.evidence import Evidence
from app.nodes.case.numbers import number_in, numbers_among
from app.tools.ports import ToolResult

Recompute = Callable[[Evidence], ToolResult | None]
"""Works an action out again; None where that is not possible."""

Same = Callable[[str, str], bool]
"""Tells whether two answers say the same."""


class Check(StrEnum):
    """What must hold for a case to pass."""

    ANSWERED = "answered"
    NO_ERROR = "no_error"
    RECOMPUTED = "recomputed"
    TOOLS_USED = "tools_used"
    GOLD = "gold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the verifier found."""

    answer: str | None
    checks: Mapping[Check, bool]
    failure: str
    """What is wrong, for the planner; says nothing of the gold answer's value."""
    pass_metric: float
    """The share of the checks that must hold."""

    @property
    def passed(self) -> bool:
        """True if there is an answer and enough checks hold; unless configured so, all of them."""
        return self.checks[Check.ANSWERED] and self.metric >= self.pass_metric

    @property
    def metric(self) -> float:
        """The share of the checks that hold, from 0 to 1."""
        return sum(self.checks.values()) / len(self.checks)


def verify(
    case: Case, evidence: Sequence[Evidence], *, recompute: Recompute, same: Same
) -> Verdict:
    """Judge the evidence of a case."""
    answer = compose(evidence)
    used = {found.tool for found in evidence if not found.failed and not found.refused}
    missing = [tool for tool in case.expected_tools if tool not in used]
    checks = {
        Check.ANSWERED: answer is not None,
        Check.NO_ERROR: answer is not None and not any(found.failed for found in answer.basis),
        Check.RECOMPUTED: answer is not None and _recomputed(answer, evidence, recompute, same),
    }
    if case.expected_tools:
        checks[Check.TOOLS_USED] = not missing
    if case.gold_answer is not None:
        checks[Check.GOLD] = answer is not None and same(answer.text, case.gold_answer)
    failure = " ".join(_complaints(checks, evidence, missing))
    return Verdict(
        answer=answer.text if answer else None,
        checks=checks,
        failure=failure,
        pass_metric=case.pass_metric,
    )


def _recomputed(
    answer: Answer, evidence: Sequence[Evidence], recompute: Recompute, same: Same
) -> bool:
    """Tell whether working the answer out again leads to it.

    Every action of the pass that can be repeated must find the same. A number that the pass did
    not work out but wrote down must be one that some action of the case found, if any found one.
    """
    if not all(_repeats(found, recompute, same) for found in answer.basis if not found.failed):
        return False
    written = number_in(answer.text)
    if written is None:
        return True
    worked = [found for found in evidence if _worked(found)]
    numbers = {number for found in worked for number in _found(_latest(found, recompute))}
    return not numbers or written in numbers


def _worked(found: Evidence) -> bool:
    """Tell whether an action found something; to write an answer down is to find nothing."""
    return not found.failed and not found.refused and found.tool != RESPOND


def _latest(found: Evidence, recompute: Recompute) -> ToolResult:
    """Return what an action finds when it is worked out again, or found if that fails."""
    again = recompute(found)
    return found.result if again is None or "error" in again else again


def _found(result: ToolResult) -> Iterable[Decimal]:
    """Return the number that a tool found; of one that found none, all that it names."""
    number = number_in(finding(result) or "")
    return numbers_among(result) if number is None else (number,)


def _repeats(found: Evidence, recompute: Recompute, same: Same) -> bool:
    again = recompute(found)
    if again is None:
        return True
    first, second = finding(found.result), finding(again)
    if first is None or second is None:
        return first == second and ("error" in again) == found.failed
    return same(first, second)


def _complaints(
    checks: Mapping[Check, bool], evidence: Sequence[Evidence], missing: Sequence[str]
) -> list[str]:
    broken = [check for check, holds in checks.items() if not holds]
    if Check.ANSWERED in broken:  # then nothing else can be said of the answer
        broken = [check for check in broken if check in (Check.ANSWERED, Check.TOOLS_USED)]
    said = {
        Check.ANSWERED: "There is no answer yet.",
        Check.NO_ERROR: "An action that the answer rests on failed.",
        Check.RECOMPUTED: "The answer is not what its actions give when they are worked out again.",
        Check.TOOLS_USED: f"These tools must be used and were not: {', '.join(missing)}.",
        Check.GOLD: "The answer is not the right one.",
    }
    errors = [] if checks[Check.NO_ERROR] else _errors(evidence)
    return [said[check] for check in broken] + errors


def _errors(evidence: Sequence[Evidence]) -> list[str]:
    """Name the errors of the last pass."""
    if not evidence:
        return []
    last = (evidence[-1].tier, evidence[-1].act_step)
    return [
        f"{found.tool}: {found.result['error']}"
        for found in evidence
        if found.failed and (found.tier, found.act_step) == last
    ]
