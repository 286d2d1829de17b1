"""The final answer, composed from the evidence (spec, section 8).

The answer comes from the last pass that brought one. If that pass used ``respond``, its answer is
the whole answer; otherwise it is what the tools of the pass found, in their order. Beside a number
or a date that answers, the words about a picture or about rows of data stay evidence.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from typing import Any

from app.nodes.case.evidence import Evidence
from app.nodes.case.numbers import number_in
from app.tools.ports import ToolResult

RESPOND = "respond"
_DESCRIBED = frozenset({"artifact", "rows"})
"""What a result holds for people to look at; its text says what that is."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and what it rests on."""

    text: str
    basis: tuple[Evidence, ...]
    """All actions that ran in the pass it comes from."""


def compose(evidence: Sequence[Evidence]) -> Answer | None:
    """Return the answer that the evidence holds, if it holds one."""
    ran = (found for found in evidence if not found.refused)
    passes = [tuple(of) for _, of in groupby(ran, lambda found: (found.tier, found.act_step))]
    for basis in reversed(passes):
        text = _answer_in(basis)
        if text is not None:
            return Answer(text, basis)
    return None


def finding(result: ToolResult) -> str | None:
    """Return what a tool found, as text: a number if it found one, else its words.

    Calendar results carry a date in words (``Monday, September 8, 2025``) as ``text`` beside the
    plain ``value``; a count of days is its own ``value``.
    """
    if "error" in result:
        return None
    value, text = result.get("value"), result.get("text")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _plain(value)
    if isinstance(value, str) and number_in(value) is not None:
        return value
    for found in (text, value, result.get("answer")):
        if found is not None:
            return found if isinstance(found, str) else json.dumps(found, sort_keys=True)
    return None


def _answer_in(basis: Sequence[Evidence]) -> str | None:
    responses = [found for found in basis if found.tool == RESPOND and not found.failed]
    if responses:
        return _text(responses[-1].result.get("answer"))
    answering = [found for found in basis if not found.failed and not _describes(found.result)]
    findings = {
        (found.tool, json.dumps(dict(found.args), sort_keys=True), text): text
        for found in (answering if _has_value(answering) else basis)
        if (text := finding(found.result)) is not None
    }  # the same action with the same finding is said once
    return "; ".join(findings.values()) or None


def _has_value(basis: Sequence[Evidence]) -> bool:
    return any(found.result.get("value") is not None for found in basis)


def _describes(result: ToolResult) -> bool:
    """Tell whether the words of a result only describe what it holds besides, such as a picture."""
    return result.get("value") is None and not _DESCRIBED.isdisjoint(result)


def _text(value: Any) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _plain(value)
    return value if isinstance(value, str) and value.strip() else None


def _plain(value: float) -> str:
    """Write a number without an exponent and without a needless ``.0``."""
    if isinstance(value, int):
        return str(value)
    digits = format(Decimal(repr(value)), "f")
    return digits.rstrip("0").rstrip(".") if "." in digits else digits
