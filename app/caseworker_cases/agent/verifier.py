"""Verification: checks how well the evidence answers a case.

``verify`` is a pure function; recomputation and comparison are passed in. A check is True, False,
or None if it does not apply. A case passes if no check is False and a check that is *independent*
of the plan is True:

- ``gold``: the answer equals the correct answer, which the caller provided;
- ``computed_otherwise``: another method reproduces everything that the answer is based on;
- ``expected_evidence``: the answer is the finding of a tool that the caller named.

Running a tool again on the same arguments shows that it is deterministic, and confirms nothing.
These checks confirm a value. If a model planned the answer, its ``operation`` must be confirmed as
well: that the plan made the right tool calls. The gold answer, the expected evidence, the built-in
planner or a second plan can confirm it.
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

from caseworker.engine.containment import contained
from caseworker.models.table import BUILT_IN
from caseworker.platform.logs.errors import class_name
from caseworker.tools.ports import (
    CrossChecked,
    Tool,
    ToolContext,
    ToolRefusedError,
    ToolResult,
    failure,
    is_failure,
)
from caseworker.tools.results import result_of_async
from caseworker_cases.agent.case import Case
from caseworker_cases.agent.evidence import (
    RESPOND,
    CaseAnswer,
    CaseEvidence,
    Same,
    compose,
    finding,
    number_in,
    numbers_among,
    sources_of,
)
from caseworker_cases.agent.operation import OperationCheck
from caseworker_cases.agent.question import misused
from caseworker_cases.agent.work import CaseWork
from caseworker_cases.tools.dates.reader import DateReader

_TIME_OF_DAY = re.compile(r"\d:\d|\d{4}-?\d\d-?\d\d[T ]\d", re.ASCII)
"""Answers with a time of day are not compared by date alone."""

Recompute = Callable[[CaseEvidence], ToolResult | None]
"""Function that runs an action again and returns the result, or None if it cannot be repeated."""

Agrees = Callable[[CaseEvidence], bool | None]
"""Function that returns whether another method gives the same result; None if no other method
exists."""


class Check(StrEnum):
    """The checks on an answer."""

    ANSWERED = "answered"
    NO_ERROR = "no_error"
    REPEATED = "repeated"
    QUESTION_USED = "question_used"
    TOOLS_USED = "tools_used"
    GOLD = "gold"
    COMPUTED_OTHERWISE = "computed_otherwise"
    EXPECTED_EVIDENCE = "expected_evidence"
    OPERATION = "operation"


INDEPENDENT = (Check.GOLD, Check.COMPUTED_OTHERWISE, Check.EXPECTED_EVIDENCE)
"""Checks that can confirm an answer, the strongest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierVerdict:
    """The outcome of a verification."""

    checks: Mapping[Check, bool | None]
    failure: str
    """Description of the errors for the planner, without the gold answer; empty without errors."""
    pass_metric: float
    """Fraction of the applicable checks that must pass."""
    needs_operation: bool = False
    """Whether the plan's tool calls must be confirmed, because a model planned the answer."""

    @property
    def confirmed_by(self) -> Check | None:
        """The strongest independent check that passes; None if none passes or any of them fails."""
        if any(self.checks[check] is False for check in INDEPENDENT):
            return None
        return next((check for check in INDEPENDENT if self.checks[check]), None)

    @property
    def verified(self) -> bool | None:
        """Whether an independent check passes and the metric reaches ``pass_metric``.

        None means that only the confirmation of the plan's tool calls is missing.
        """
        if self.confirmed_by is None or self.metric < self.pass_metric:
            return False
        return self.checks[Check.OPERATION] if self.needs_operation else True

    @property
    def metric(self) -> float:
        """Fraction of the applicable checks that pass, from 0 to 1."""
        applying = [holds for holds in self.checks.values() if holds is not None]
        return sum(applying) / len(applying)


def verify(
    case: Case,
    evidence: Sequence[CaseEvidence],
    *,
    recompute: Recompute,
    agrees: Agrees,
    same: Same,
    operation: bool | None = None,
) -> VerifierVerdict:
    """Verify how well the evidence answers the case.

    ``recompute`` repeats the actions, and ``agrees`` cross-checks those on which the answer is
    based. ``same`` compares answers. ``operation`` is whether the plan's tool calls are confirmed
    without a gold answer; None if that is not known.
    """
    answer = compose(evidence)
    used = {piece.tool for piece in evidence if not piece.failed and not piece.refused}
    missing = [tool for tool in case.expected_tools if tool not in used]
    compares_question = answer is not None and case.gold_answer is None
    strange = misused(case.question, evidence) if compares_question else None
    checks: dict[Check, bool | None] = dict.fromkeys(Check)
    checks[Check.ANSWERED] = answer is not None
    checks[Check.TOOLS_USED] = not missing if case.expected_tools else None
    checks[Check.QUESTION_USED] = None if strange is None else not strange
    if answer is not None:
        sources = sources_of(answer, evidence, same)
        checks[Check.NO_ERROR] = not any(piece.failed for piece in answer.basis)
        checks[Check.REPEATED] = _recomputed(answer, evidence, recompute, same)
        checks[Check.COMPUTED_OTHERWISE] = _confirmed([agrees(piece) for piece in sources])
        checks[Check.EXPECTED_EVIDENCE] = _expected(case, answer, evidence, sources)
        if case.gold_answer is not None:
            checks[Check.GOLD] = same(answer.text, case.gold_answer)
    by_model = answer is not None and any(piece.planner != BUILT_IN for piece in answer.basis)
    needs_operation = by_model and case.second_plan == "auto"
    if needs_operation:
        checks[Check.OPERATION] = checks[Check.GOLD] or operation
    return VerifierVerdict(
        checks=checks,
        failure=" ".join(_complaints(checks, evidence, missing, strange or ())),
        pass_metric=case.pass_metric,
        needs_operation=needs_operation,
    )


def _confirmed(ways: Sequence[bool | None]) -> bool | None:
    """Return whether other methods give the same results; None if a result has no other method."""
    if False in ways:
        return False
    return None if None in ways or not ways else True


def _expected(
    case: Case,
    answer: CaseAnswer,
    evidence: Sequence[CaseEvidence],
    sources: Sequence[CaseEvidence],
) -> bool | None:
    """Return True if the answer is the finding of expected tools, else None.

    In a written answer, all numbers must come from their results.
    """
    expected = {*case.expected_tools} - {RESPOND}
    tools = {piece.tool for piece in sources if not piece.used}
    if tools:
        return True if tools <= expected else None
    theirs = {
        number
        for piece in evidence
        if piece.tool in expected and not piece.failed
        for number in numbers_among(piece.result)
    }
    answer_numbers = set(numbers_among(answer.text))
    return True if answer_numbers and answer_numbers <= theirs else None


def _recomputed(
    answer: CaseAnswer, evidence: Sequence[CaseEvidence], recompute: Recompute, same: Same
) -> bool | None:
    """Return whether repeated actions reproduce the answer; None if none can be repeated.

    Every repeatable action of the pass must give the same finding. A number that the pass wrote
    down without computing it must be one that an action of the case found, if any action found a
    number.
    """
    repeated = [piece for piece in answer.basis if not piece.failed and recompute(piece)]
    if not all(_recomputes_to_same_result(piece, recompute, same) for piece in repeated):
        return False
    numbers = {number for piece in evidence for number in _numbers(piece, recompute)}
    written = number_in(answer.text)
    if written is not None and numbers:
        return written in numbers
    return True if repeated else None


def _numbers(evidence: CaseEvidence, recompute: Recompute) -> Iterable[Decimal]:
    """Return the number that a repeated action finds, else its original one.

    Without such a number, return all numbers in its result; empty for failures and ``respond``.
    """
    if evidence.failed or evidence.refused or evidence.tool == RESPOND:
        return ()
    repeated = recompute(evidence)
    result = evidence.result if repeated is None or is_failure(repeated) else repeated
    number = number_in(finding(result) or "")
    return numbers_among(result) if number is None else (number,)


def _recomputes_to_same_result(evidence: CaseEvidence, recompute: Recompute, same: Same) -> bool:
    repeated = recompute(evidence) or {}
    first, second = finding(evidence.result), finding(repeated)
    if first is None or second is None:
        return first == second and is_failure(repeated) == evidence.failed
    return same(first, second)


_COMPLAINTS: Mapping[Check, str] = {
    Check.ANSWERED: "There is no answer yet.",
    Check.NO_ERROR: "An action that the answer rests on failed.",
    Check.REPEATED: "The answer is not what its actions give when they are worked out again.",
    Check.GOLD: "The answer is not the right one.",
    Check.COMPUTED_OTHERWISE: "Another way of working it out gives another answer.",
    Check.OPERATION: "Another reading of the question leads to other calls: read it once more.",
}
MAX_NAMED = 5
"""Maximum number of values that an error message for the planner names."""

_UNCONFIRMED = "Nothing confirms the answer: let a tool work it out, with the question's numbers."


def _complaints(
    checks: Mapping[Check, bool | None],
    evidence: Sequence[CaseEvidence],
    missing: Sequence[str],
    strange: Sequence[str],
) -> list[str]:
    messages = [words for check, words in _COMPLAINTS.items() if checks[check] is False]
    if strange:
        names = ", ".join(strange[:MAX_NAMED])
        messages.append(f"The question and the args do not agree on {names}: use another tool.")
    if missing:
        messages.append(f"These tools must be used and were not: {', '.join(missing)}.")
    if not messages and not any(checks[check] for check in INDEPENDENT):
        messages.append(_UNCONFIRMED)
    last = evidence[-1] if evidence and not checks[Check.NO_ERROR] else None
    errors = [
        f"{piece.tool}: {piece.result['error']}"
        for piece in evidence
        if last and piece.failed and (piece.tier, piece.act_step) == (last.tier, last.act_step)
    ]
    return messages + errors


class Comparison:
    """Compares answers to one case.

    Numbers are compared exactly, dates by day, and other text ignoring case and spacing.
    """

    def __init__(self, dates: DateReader, zone: tzinfo) -> None:
        self._dates = dates
        self._zone = zone

    def same(self, one: str, other: str) -> bool:
        """Return whether two answers are equivalent."""
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
    """Repeats and cross-checks actions of local tools.

    The tools must not make external calls, because nothing here is metered, journaled or traced.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = {tool.spec.name: tool for tool in tools if not tool.spec.external}

    async def repeat(
        self, name: str, args: Mapping[str, Any], context: ToolContext
    ) -> ToolResult | None:
        """Run a tool again; None if it is external or not deterministic."""
        tool = self._tools.get(name)
        if tool is None or not tool.spec.deterministic:
            return None
        try:
            async with asyncio.timeout(tool.spec.timeout_seconds):
                result = await contained(tool.run(args, context))
                return await result_of_async(
                    result, threads=context.threads, max_bytes=context.max_result_bytes
                )
        except Exception as error:
            return failure("The tool broke when it was asked again.", class_name(error))

    async def agrees(self, evidence: CaseEvidence, context: ToolContext) -> bool | None:
        """Return whether another method gives the same result; None if no other method exists."""
        tool = self._tools.get(evidence.tool)
        if not isinstance(tool, CrossChecked):
            return None
        try:
            async with asyncio.timeout(tool.spec.timeout_seconds):
                return await contained(tool.agrees(evidence.args, evidence.result, context))
        except Exception:
            return None  # a failed cross-check proves nothing


class Verification:
    """Verifies the evidence after each pass; repeats and cross-checks every action only once."""

    def __init__(
        self,
        work: CaseWork,
        recomputation: DeterministicTools,
        same: Same,
        operation: OperationCheck,
    ) -> None:
        self._work = work
        self._recomputation = recomputation
        self._same = same
        self._operation = operation
        self._repeated: dict[int, ToolResult | None] = {}
        self._agrees: dict[int, bool | None] = {}

    async def measure(self) -> None:
        """Verify the evidence and update the state; actions that created files are not repeated."""
        state, case = self._work.state, self._work.case
        for piece in state.evidence:
            if piece.number not in self._agrees and not piece.refused and not piece.failed:
                await self._recompute(piece)
        verdict = self._verdict()
        if verdict.verified is None:
            expected = verdict.checks[Check.EXPECTED_EVIDENCE] is True
            verdict = self._verdict(await self._operation.holds(expected=expected))
        checks = {check.value: holds for check, holds in verdict.checks.items()}
        state.verified, state.checks = verdict.verified, checks
        state.confirmed_by = verdict.confirmed_by.value if verdict.confirmed_by else None
        state.failure = verdict.failure or None
        state.measure(verdict.metric, min_improvement=case.act.min_improvement)
        self._work.log.add(
            "verify",
            metric=round(verdict.metric, 4),
            passed=verdict.verified,
            checks=checks,
            stalled_rounds=state.stalled_rounds,
        )

    def _verdict(self, operation: bool | None = None) -> VerifierVerdict:
        return verify(
            self._work.case,
            self._work.state.evidence,
            recompute=lambda piece: self._repeated.get(piece.number),
            agrees=lambda piece: self._agrees.get(piece.number),
            same=self._same,
            operation=operation,
        )

    async def _recompute(self, evidence: CaseEvidence) -> None:
        context = self._work.tool_context
        self._agrees[evidence.number] = await self._recomputation.agrees(evidence, context)
        if not evidence.files:
            repeated = await self._recomputation.repeat(evidence.tool, evidence.args, context)
            self._repeated[evidence.number] = repeated
