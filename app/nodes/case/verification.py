"""Lets the verifier judge the evidence after a pass, and takes in what it found."""

from app.nodes.case.comparison import Comparison
from app.nodes.case.ports import Recomputation
from app.nodes.case.verifier import Verdict, verify
from app.nodes.case.work import CaseWork
from app.tools.ports import ToolResult


class Verification:
    """Judges pass after pass; an action is worked out again once."""

    def __init__(
        self, work: CaseWork, recomputation: Recomputation, comparison: Comparison
    ) -> None:
        self._work = work
        self._recomputation = recomputation
        self._comparison = comparison
        self._again: dict[int, ToolResult | None] = {}

    async def measure(self) -> None:
        """Judge the evidence and bring the state up to date."""
        await self._work_out_again()
        state, case = self._work.state, self._work.case
        verdict = verify(
            case,
            state.evidence,
            recompute=lambda found: self._again.get(found.number),
            same=self._comparison.same,
        )
        state.verified = verdict.passed
        state.failure = verdict.failure or None
        state.measure(verdict.metric, min_improvement=case.act.min_improvement)
        self._log(verdict)

    async def _work_out_again(self) -> None:
        """Work out what was not yet; files are not made a second time."""
        for found in self._work.state.evidence:
            if found.number in self._again or found.refused or found.failed or found.files:
                continue
            self._again[found.number] = await self._recomputation.again(
                found.tool, found.args, self._work.tool_context
            )

    def _log(self, verdict: Verdict) -> None:
        self._work.log.add(
            "verify",
            metric=round(verdict.metric, 4),
            passed=verdict.passed,
            checks={check.value: holds for check, holds in verdict.checks.items()},
            stalled_rounds=self._work.state.stalled_rounds,
        )
