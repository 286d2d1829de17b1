"""Verdicts on evidence that tests create without a run."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from caseworker.models.gateway import Tier
from caseworker.tools.ports import ToolResult
from caseworker_cases.agent.evidence import CaseEvidence
from caseworker_cases.agent.verifier import Comparison, VerifierVerdict, verify
from tests.support.limits import case_of

NOW = datetime(2025, 9, 8, tzinfo=UTC)
FAILED: ToolResult = {"error": "division by zero", "code": "division_by_zero"}


def evidence_of(
    tool: str, result: Mapping[str, Any], step: int = 1, number: int = 1
) -> CaseEvidence:
    """Return a piece of evidence."""
    return CaseEvidence(
        number=number, tier=Tier.SMALL, act_step=step, tool=tool, args={}, result=dict(result)
    )


def judged(
    comparison: Comparison,
    *evidence: CaseEvidence,
    again: ToolResult | None = None,
    agrees: bool | None = True,
    **case: Any,
) -> VerifierVerdict:
    """Return the verdict on a case.

    ``again`` is the result of recomputing a calculator's evidence. ``agrees`` is the result of the
    second computation for every tool.
    """
    return verify(
        case_of(question="?", timezone="UTC", now=NOW, **case),
        evidence,
        recompute=lambda item: again if item.tool == "calculator" else None,
        agrees=lambda item: agrees,
        same=comparison.same,
    )
