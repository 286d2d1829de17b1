"""An evaluation as a page to read, compared with an earlier one, and as lines on a terminal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from app.harness.gates import Miss
from app.harness.metrics import HEADLINES, Metrics
from app.harness.results import Result
from app.observability.redaction import redact_text

_SLOWEST = 10
_MOST_CHARS = 400
_PROTOCOLS = {
    "blind": "blind, the service's verifier saw no gold answers",
    "with_gold": "with gold, the service's verifier saw the gold answers",
}
_CONDITIONS = ("service_version", "protocol", "mode", "seed", "repeat", "concurrency")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """From an earlier evaluation to a later one."""

    figures: tuple[tuple[str, float | None, float | None], ...]
    """Name, before, now."""
    broken: tuple[str, ...]
    """Cases that succeeded every time before, and do not now."""
    fixed: tuple[str, ...]
    """Cases that succeed every time now, and did not before."""
    notes: tuple[str, ...]
    """What makes the two hard to compare."""


def changes(metrics: Metrics, earlier: Metrics) -> Changes:
    """Compare two evaluations; figures that only one of them has are None in the other."""
    before, now = _steady(earlier), _steady(metrics)
    both = before.keys() & now.keys()
    return Changes(
        figures=tuple((name, earlier.get(name), metrics.get(name)) for name in HEADLINES),
        broken=tuple(sorted(name for name in both if before[name] and not now[name])),
        fixed=tuple(sorted(name for name in both if now[name] and not before[name])),
        notes=tuple(_notes(metrics["evaluation"], earlier["evaluation"])),
    )


def report_of(
    metrics: Metrics,
    results: Sequence[Result],
    misses: Sequence[Miss],
    earlier: Metrics | None = None,
) -> str:
    """Return the report in Markdown."""
    parts = [
        _heading(metrics, misses),
        _figures(metrics),
        _groups("By family", metrics["by_family"]),
        _groups("By difficulty", metrics["by_difficulty"]),
        _failures(results),
        _slowest(results),
    ]
    if earlier is not None:
        parts.append(_comparison(metrics, earlier))
    return "\n\n".join(part for part in parts if part) + "\n"


def print_summary(console: Console, metrics: Metrics, folder: Path) -> None:
    """Print the figures, success by family, and where the rest is."""
    counts = metrics["counts"]
    figures = Table("figure", "value", box=None, pad_edge=False)
    for name in HEADLINES:
        figures.add_row(name, _figure(metrics[name]))
    families = Table("family", "succeeded", "of", box=None, pad_edge=False)
    for name, group in metrics["by_family"].items():
        families.add_row(name, str(group["succeeded"]), str(group["trials"]))
    console.print(figures, families, sep="\n\n")
    console.print(
        f"{counts['succeeded']} of {counts['trials']} succeeded,"
        f" {counts['falsely_verified']} verified and wrong, {counts['errors']} errors"
        f" (protocol: {metrics['evaluation']['protocol']})"
    )
    if left_out := metrics["evaluation"]["dataset"]["left_out"]:
        console.print(_left_out(left_out))
    console.print(f"report  {folder / 'report.md'}", markup=False, soft_wrap=True)


def _heading(metrics: Metrics, misses: Sequence[Miss]) -> str:
    about = metrics["evaluation"]
    counts = metrics["counts"]
    lines = [
        f"# Evaluation {about['id']}",
        "",
        f"{counts['succeeded']} of {counts['trials']} trials of {counts['cases']} cases from"
        f" `{about['dataset']['name']}` succeeded. Protocol: {_PROTOCOLS[about['protocol']]}.",
    ]
    if left_out := about["dataset"]["left_out"]:
        lines.append(f"{_left_out(left_out)}.")
    if counts["without_gold_answer"]:
        lines.append(
            f"{counts['without_gold_answer']} of them have no gold answer: their success rests on"
            " the service's own verification."
        )
    lines += ["", _judgement(about, misses), ""]
    lines += [f"- {miss.message}" for miss in misses]
    return "\n".join(lines).rstrip()


def _left_out(number: int) -> str:
    return f"Cases left out because they need a model, which the service has not: {number}"


def _judgement(about: Mapping[str, Any], misses: Sequence[Miss]) -> str:
    if about.get("interrupted"):
        return "It was interrupted: no target is met or missed."
    return "Missed targets:" if misses else "All targets are met."


def _figures(metrics: Metrics) -> str:
    about, tokens = metrics["evaluation"], metrics["tokens"]
    latency = metrics["latency_seconds"]
    models = metrics["models"]
    rows: list[tuple[str, object]] = [(name, metrics[name]) for name in HEADLINES]
    rows += [
        (f"{side} latency, seconds (p50, p95, max)", _joined(latency[side].values()))
        for side in latency
    ]
    rows += [
        (f"{tier} tokens (input, output), USD", _joined(spent.values()))
        for tier, spent in tokens.items()
    ]
    rows += [(f"{tier} model", _joined(names) or "none") for tier, names in models.items()]
    rows += [("finish reasons", _tally(metrics["finish_reasons"]))]
    rows += [("outcomes", _tally(metrics["outcomes"]))]
    rows += [("falsely verified", metrics["counts"]["falsely_verified"])]
    rows += [("unstable over repeats", sum(not case["stable"] for case in metrics["cases"]))]
    rows += [
        (name.replace("_", " "), "as configured" if about[name] is None else about[name])
        for name in _CONDITIONS
    ]
    rows.append(("dataset sha256", about["dataset"]["sha256"]))
    return _section("Figures", _table(("figure", "value"), rows))


def _groups(title: str, groups: Mapping[str, Mapping[str, Any]]) -> str:
    header = ("", "trials", "succeeded", "success@1", "escalation rate", "p95 seconds")
    return _section(
        title, _table(header, ((name, *group.values()) for name, group in groups.items()))
    )


def _failures(results: Sequence[Result]) -> str:
    failed = [result for result in results if not result.succeeded]
    header = ("case", "outcome", "input", "expected", "got", "why", "run")
    rows = [
        (
            result.case.id,
            result.outcome.value,
            result.case.input,
            _expected(result),
            result.answer,
            result.detail,
            result.run_id,
        )
        for result in failed
    ]
    return _section("Failures", _table(header, rows)) if rows else ""


def _expected(result: Result) -> str:
    case = result.case
    if case.expect == "refused":
        return "a refusal"
    return case.gold_answer if case.gold_answer is not None else "a verified answer"


def _slowest(results: Sequence[Result]) -> str:
    slow = sorted(results, key=lambda result: result.client_seconds, reverse=True)[:_SLOWEST]
    rows = [
        (each.case.id, f"{each.client_seconds:.3f}", each.service_seconds, each.run_id)
        for each in slow
    ]
    return _section("Slowest", _table(("case", "client s", "service s", "run"), rows))


def _comparison(metrics: Metrics, earlier: Metrics) -> str:
    found = changes(metrics, earlier)
    lines = [f"- {note}" for note in found.notes]
    rows = [(name, before, now, _change(before, now)) for name, before, now in found.figures]
    table = _table(("figure", "before", "now", "change"), rows)
    lines += [
        f"- {title}: {', '.join(f'`{name}`' for name in names)}"
        for title, names in (("Fails now", found.broken), ("Succeeds now", found.fixed))
        if names
    ]
    title = f"Compared with {earlier['evaluation']['id']}"
    return _section(title, f"{table}\n\n" + "\n".join(lines) if lines else table)


def _change(before: float | None, now: float | None) -> str:
    return "" if before is None or now is None else f"{now - before:+.4g}"


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}"


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [_row(header), _row(["---"] * len(header))]
    return "\n".join([*lines, *(_row(row) for row in rows)])


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(value: object) -> str:
    """Return a value on one line that cannot break out of its cell."""
    text = "" if value is None else " ".join(str(value).split())
    shown = redact_text(text, max_chars=_MOST_CHARS)
    return shown.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _joined(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)


def _tally(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counted.items())


def _steady(metrics: Metrics) -> dict[str, bool]:
    return {case["id"]: case["succeeded"] == case["trials"] for case in metrics["cases"]}


def _notes(now: dict[str, Any], before: dict[str, Any]) -> Iterator[str]:
    for name in ("sha256", "cases"):
        if now["dataset"][name] != before["dataset"][name]:
            yield "The two did not run the same cases: figures of all cases differ for that alone."
            break
    for name in _CONDITIONS:
        if now.get(name) != before.get(name):
            yield f"{name.replace('_', ' ')}: {before.get(name)} before, {now.get(name)} now"


def _figure(value: float | None) -> str:
    return "not measured" if value is None else f"{value:g}"
