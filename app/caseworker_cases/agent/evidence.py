"""The results of a case's actions (tool calls), and the answer that is composed from them.

The answer comes from the last pass that produced one. If that pass used ``respond``, its text is
the whole answer. Otherwise the answer joins the findings of the pass in order. A finding is the
number or text that an action found; findings that a later action of the pass used are left out. If
there is a number or a date, texts that describe a picture or rows of data are left out as well.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import groupby
from typing import Any

from caseworker.models.gateway import Tier
from caseworker.tools.ports import ToolResult, is_failure

UNKNOWN_TOOL = "unknown_tool"
RESPOND = "respond"

_DESCRIBED = frozenset({"artifact", "rows"})
"""Keys of results meant for viewing; the ``text`` of such a result only describes them."""
_NUMBER = re.compile(
    r"[+-]?(\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))(\.\d+)?(?:[eE][+-]?\d{1,4})?", re.ASCII
)
_MAX_NUMBER_CHARS = 4000
_SEPARATORS = re.compile(r"[^\w.,:+-]+", re.ASCII)
"""Separators between numbers and words; parts of a date, a time or a name are not numbers."""

Same = Callable[[str, str], bool]
"""Function that returns whether two answers are equivalent."""


@dataclass(frozen=True, slots=True)
class Action:
    """A tool call that is planned or has been made."""

    tool: str
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseEvidence:
    """An action with its result, or with the reason why it was rejected."""

    number: int
    """One-based position in the evidence of the case."""
    tier: Tier
    act_step: int
    """One-based number of the pass in its tier."""
    tool: str
    args: Mapping[str, Any]
    result: ToolResult
    """Result of the tool. A failure is a dict with ``error``."""
    warning: str | None = None
    """Reason why the action was rejected and never run; None if it ran."""
    files: tuple[str, ...] = ()
    """Names of the files that the action created."""
    planned: Action | None = None
    """The function call that the planner wrote, if it differs from the tool call; otherwise
    None."""
    planner: str = ""
    """Name of the provider whose model planned the action."""
    used: bool = False
    """Whether a later action of the plan uses the result. The result is then not part of the
    answer."""

    @property
    def refused(self) -> bool:
        """Whether the action was rejected and never run."""
        return self.warning is not None

    @property
    def failed(self) -> bool:
        """Whether the result is an error."""
        return is_failure(self.result)

    def to_dict(self) -> dict[str, Any]:
        """Return the evidence as JSON in the format of the case's result."""
        fields = {
            "tool": self.tool,
            "args": dict(self.args),
            "result": dict(self.result),
            "tier": self.tier.value,
            "act_step": self.act_step,
        }
        return fields if self.warning is None else {**fields, "warning": self.warning}


@dataclass(frozen=True, slots=True)
class CaseAnswer:
    """An answer to a case, with the evidence for it."""

    text: str
    basis: tuple[CaseEvidence, ...]
    """All actions that ran in the pass that produced the answer."""


def compose(evidence: Sequence[CaseEvidence]) -> CaseAnswer | None:
    """Compose the answer from the evidence; None if the evidence contains no answer."""
    ran = (piece for piece in evidence if not piece.refused)
    passes = [tuple(of) for _, of in groupby(ran, lambda piece: (piece.tier, piece.act_step))]
    for basis in reversed(passes):
        text = _answer_in(basis)
        if text is not None:
            return CaseAnswer(text, basis)
    return None


def sources_of(
    answer: CaseAnswer, evidence: Sequence[CaseEvidence], same: Same
) -> list[CaseEvidence]:
    """Return the findings on which an answer is based.

    A written answer is based on the latest equivalent finding, if any, and on the results that this
    finding used.
    """
    written = any(piece.tool == RESPOND for piece in answer.basis)
    findings = [piece for piece in evidence if piece.tool != RESPOND and not piece.refused]
    if not written:
        return [piece for piece in answer.basis if not piece.failed]
    for source in reversed(findings):
        text = finding(source.result)
        if text is not None and same(text, answer.text):
            place = source.tier, source.act_step
            made_of = [f for f in findings if f.used and (f.tier, f.act_step) == place]
            return [*(f for f in made_of if f.number < source.number), source]
    return []


def finding(result: ToolResult) -> str | None:
    """Return a tool's finding as text: its number if it has one, otherwise its ``text``.

    A calendar result has the date in words (``Monday, September 8, 2025``) as ``text`` and the ISO
    date as ``value``. A number of days is a ``value``.
    """
    if is_failure(result):
        return None
    value, text = result.get("value"), result.get("text")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _without_exponent(value)
    if isinstance(value, str) and number_in(value) is not None:
        return value
    for candidate in (text, value, result.get("answer")):
        if candidate is not None:
            return (
                candidate if isinstance(candidate, str) else json.dumps(candidate, sort_keys=True)
            )
    return None


def number_in(text: str) -> Decimal | None:
    """Parse a text that is a single number, with or without thousands separators; else None."""
    text = text.strip()
    if len(text) > _MAX_NUMBER_CHARS or not _NUMBER.fullmatch(text):
        return None
    try:
        return Decimal(text.replace(",", ""))
    except InvalidOperation:
        return None


def numbers_among(value: object) -> Iterator[Decimal]:
    """Yield the numbers in a JSON value, including those inside strings, but not in keys."""
    if isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from numbers_among(inner)
    elif isinstance(value, int | float | str) and not isinstance(value, bool):
        for word in _SEPARATORS.split(value) if isinstance(value, str) else [str(value)]:
            if (number := number_in(word.rstrip(".,:"))) is not None:
                yield number


def _answer_in(basis: Sequence[CaseEvidence]) -> str | None:
    succeeded = [piece for piece in basis if not (piece.failed or piece.used)]
    responses = [piece.result.get("answer") for piece in succeeded if piece.tool == RESPOND]
    if responses:
        return _answer_text(responses[-1])
    answering = [  # without results whose text describes a picture or rows
        piece
        for piece in succeeded
        if piece.result.get("value") is not None or _DESCRIBED.isdisjoint(piece.result)
    ]
    has_value = any(piece.result.get("value") is not None for piece in answering)
    findings = {
        (piece.tool, json.dumps(dict(piece.args), sort_keys=True), text): text
        for piece in (answering if has_value else succeeded)
        if (text := finding(piece.result)) is not None
    }  # equal actions with equal findings appear once
    return "; ".join(findings.values()) or None


def _answer_text(value: Any) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _without_exponent(value)
    return value if isinstance(value, str) and value.strip() else None


def _without_exponent(value: float) -> str:
    """Format a number without an exponent and without a trailing ``.0``."""
    if isinstance(value, int):
        return str(value)
    digits = format(Decimal(repr(value)), "f")
    return digits.rstrip("0").rstrip(".") if "." in digits else digits
