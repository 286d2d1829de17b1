"""What the analysis of prices or numbers returns."""

from collections.abc import Sequence

from app.tools.analysis.observations import Finding, Observations
from app.tools.analysis.subjects import Subject
from app.tools.ports import ToolResult


def found_in(
    words: str, subjects: Sequence[Subject], observed: Observations, finding: Finding
) -> ToolResult:
    """Return a finding with everything that a reader needs to judge it, for ``worded``."""
    result: ToolResult = {
        "value": finding.value,
        "unit": finding.unit,
        "of": " and ".join(subject.observations.name for subject in subjects),
        "words": words,
        "formula": finding.formula,
        **finding.details,
    }
    return with_origin(result, subjects, observed)


def with_origin(
    result: ToolResult, subjects: Sequence[Subject], observed: Observations
) -> ToolResult:
    """Return a result with the stocks, the days and the source that it rests on."""
    symbols = [subject.symbol for subject in subjects if subject.symbol is not None]
    origin: ToolResult = {"observations": len(observed)}
    if symbols:
        origin |= {"symbols": symbols} if len(symbols) > 1 else {"symbol": symbols[0]}
    if observed.days is not None:
        origin |= {"start": observed.days[0].isoformat(), "end": observed.days[-1].isoformat()}
    notes = [result.get("note"), *(subject.note for subject in subjects)]
    if told := " ".join(note for note in notes if note):
        origin |= {"note": told}
    return {**result, **origin, "source": subjects[0].source}


def worded(result: ToolResult) -> ToolResult:
    """Put the main finding into a sentence, after rounding."""
    words, of, unit = result.pop("words"), result["of"], result["unit"]
    period = f" from {result['start']} to {result['end']}" if "start" in result else ""
    value = f"{result['value']:,}".removesuffix(".0")
    on = f" on {result['date']}" if "date" in result else ""
    return {**result, "text": f"{words} of {of}{period}: {value} {unit}{on}"}
