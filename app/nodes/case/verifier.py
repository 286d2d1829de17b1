"""Verification: how far the evidence answers a case.

``verify`` is a pure function; working actions out again and comparing answers are handed in. A case
has passed if an answer exists, the evidence it rests on holds no error, every expected tool was
used, and recomputing from the evidence gives the same value; with a gold answer also equality. A
check that the case does not ask for is left out: the metric of a case without gold answer and
expected tools is a share of three.
"""

import asyncio
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, tzinfo
from decimal import Decimal
from enum import StrEnum
from typing import Any

from app.nodes.case.case import Case
from app.nodes.case.evidence import (
    RESPOND,
    Answer,
    Evidence,
    compose,
    finding,
    number_in,
    numbers_among,
)
from app.nodes.case.work import CaseWork
from app.tools.dates.reader import DateReader
from app.tools.ports import Tool, ToolContext, ToolRefusedError, ToolResult, failure

_TIME_OF_DAY = re.compile(r"\d:\d|\d{4}-?\d\d-?\d\d[T ]\d", re.ASCII)
"""An answer with a time of day means more than its date does."""

Recompute = Callable[[Evidence], ToolResult | None]
"""Returns what an action finds when it is repeated; None where that is not possible."""

Same = Callable[[str, str], bool]
"""Returns whether two answers mean the same."""


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

    checks: Mapping[Check, bool]
    failure: str
    """What is wrong, for the planner; does not reveal the gold answer."""
    pass_metric: float
    """The share of the checks that must hold."""

    @property
    def passed(self) -> bool:
        """True if there is an answer and enough checks hold, by default all of them."""
        return self.checks[Check.ANSWERED] and self.metric >= self.pass_metric

    @property
    def metric(self) -> float:
        """The share of the checks that hold, from 0 to 1."""
        return sum(self.checks.values()) / len(self.checks)


def verify(
    case: Case, evidence: Sequence[Evidence], *, recompute: Recompute, same: Same
) -> Verdict:
    """Check the evidence of a case."""
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
    return Verdict(checks=checks, failure=failure, pass_metric=case.pass_metric)


def _recomputed(
    answer: Answer, evidence: Sequence[Evidence], recompute: Recompute, same: Same
) -> bool:
    """Return whether the answer can be worked out again.

    Every action of the pass that can be repeated must find the same. A number that the pass did
    not work out but wrote down must be one that some action of the case found, if any found one.
    """
    if not all(_repeats(found, recompute, same) for found in answer.basis if not found.failed):
        return False
    written = number_in(answer.text)
    if written is None:
        return True
    numbers = {number for found in evidence for number in _numbers(found, recompute)}
    return not numbers or written in numbers


def _numbers(found: Evidence, recompute: Recompute) -> Iterable[Decimal]:
    """Return the number that an action finds when it is repeated, or found if that fails.

    If there is none, they are all numbers in its result; writing an answer down finds nothing.
    """
    if found.failed or found.refused or found.tool == RESPOND:
        return ()
    again = recompute(found)
    result = found.result if again is None or "error" in again else again
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
    if Check.ANSWERED in broken:  # then there is nothing to say about the answer
        broken = [check for check in broken if check in (Check.ANSWERED, Check.TOOLS_USED)]
    messages = {
        Check.ANSWERED: "There is no answer yet.",
        Check.NO_ERROR: "An action that the answer rests on failed.",
        Check.RECOMPUTED: "The answer is not what its actions give when they are worked out again.",
        Check.TOOLS_USED: f"These tools must be used and were not: {', '.join(missing)}.",
        Check.GOLD: "The answer is not the right one.",
    }
    last = None if checks[Check.NO_ERROR] or not evidence else evidence[-1]
    errors = [
        f"{found.tool}: {found.result['error']}"
        for found in evidence
        if last and found.failed and (found.tier, found.act_step) == (last.tier, last.act_step)
    ]
    return [messages[check] for check in broken] + errors


class Comparison:
    """Compares the answers of one case.

    Numbers are compared exactly, dates by the day they name, and any other text without regard to
    case and spacing.
    """

    def __init__(self, dates: DateReader, zone: tzinfo) -> None:
        self._dates = dates
        self._zone = zone

    def same(self, one: str, other: str) -> bool:
        """Return whether two answers mean the same."""
        numbers = number_in(one), number_in(other)
        if numbers[0] is not None and numbers[1] is not None:
            return numbers[0] == numbers[1]
        if _folded(one) == _folded(other):
            return True
        day = self._date_in(one)
        return day is not None and day == self._date_in(other)

    def _date_in(self, text: str) -> date | None:
        if _TIME_OF_DAY.search(text):
            return None
        try:
            return self._dates.read(text, self._zone)
        except ToolRefusedError:
            return None


def _folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


class DeterministicTools:
    """Tools whose results depend on their arguments alone, for repeating actions.

    They must not reach outside the process: nothing here is metered, journaled or traced.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = {tool.spec.name: tool for tool in tools}

    async def again(
        self, name: str, args: Mapping[str, Any], context: ToolContext
    ) -> ToolResult | None:
        """Run the tool once more; None if it is not one of these tools."""
        tool = self._tools.get(name)
        if tool is None:
            return None
        try:
            async with asyncio.timeout(tool.spec.timeout_seconds):
                return await tool.run(args, context)
        except Exception as error:
            return failure("The tool broke when it was asked again.", type(error).__name__)


class Verification:
    """Verifies pass after pass; an action is repeated once."""

    def __init__(
        self, work: CaseWork, recomputation: DeterministicTools, comparison: Comparison
    ) -> None:
        self._work = work
        self._recomputation = recomputation
        self._comparison = comparison
        self._again: dict[int, ToolResult | None] = {}

    async def measure(self) -> None:
        """Verify the evidence and update the state; actions that made files are not repeated."""
        state, case = self._work.state, self._work.case
        for found in state.evidence:
            if found.number in self._again or found.refused or found.failed or found.files:
                continue
            self._again[found.number] = await self._recomputation.again(
                found.tool, found.args, self._work.tool_context
            )
        verdict = verify(
            case,
            state.evidence,
            recompute=lambda found: self._again.get(found.number),
            same=self._comparison.same,
        )
        state.verified = verdict.passed
        state.failure = verdict.failure or None
        state.measure(verdict.metric, min_improvement=case.act.min_improvement)
        self._work.log.add(
            "verify",
            metric=round(verdict.metric, 4),
            passed=verdict.passed,
            checks={check.value: holds for check, holds in verdict.checks.items()},
            stalled_rounds=state.stalled_rounds,
        )
