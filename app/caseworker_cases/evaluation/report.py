"""Renders an evaluation as a Markdown report with a comparison, and as a terminal summary."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from caseworker.platform.logs.redaction import redact_text
from caseworker_cases.evaluation.gates import Miss
from caseworker_cases.evaluation.metrics import HEADLINES, Metrics
from caseworker_cases.evaluation.results import JudgedTrial

_SLOWEST = 10
_MAX_CHARS = 400
_PROTOCOLS = {
    "blind": "blind; the verifier did not receive the gold answers",
    "with_gold": "with gold; the verifier received the gold answers",
}
_CONDITIONS = ("service_version", "protocol", "mode", "seed", "repeat", "concurrency")


def report_of(
    metrics: Metrics,
    results: Sequence[JudgedTrial],
    misses: Sequence[Miss],
    earlier: Metrics | None = None,
) -> str:
    """Render the Markdown report; ``earlier`` metrics, if given, are compared with the new ones."""
    groups = (
        *("", "trials", "succeeded", "verified", "verified and wrong", "right, not verified"),
        *("success@1", "escalation rate", "p95 seconds"),
    )
    sections = [
        _heading(metrics, misses),
        _section("Figures", _table(("figure", "value"), _figures(metrics))),
        *(
            _section(
                f"By {kind}",
                _table(groups, [(name, *group.values()) for name, group in groups_of_kind.items()]),
            )
            for kind in ("family", "difficulty")
            if (groups_of_kind := metrics[f"by_{kind}"])
        ),
        *_failures(results),
        _slowest(results),
    ]
    if earlier is not None:
        sections.append(_comparison(metrics, earlier))
    return "\n\n".join(sections) + "\n"


def summary_of(metrics: Metrics, folder: Path) -> str:
    """Return the metrics, the success rates by family and the report path as terminal output."""
    counts, about = metrics["counts"], metrics["evaluation"]
    rows = [
        *(
            (name, "not measured" if metrics[name] is None else f"{metrics[name]:g}")
            for name in HEADLINES
        ),
        *(
            (f"family {name}", f"{group['succeeded']} of {group['trials']}")
            for name, group in metrics["by_family"].items()
        ),
        ("succeeded", f"{counts['succeeded']} of {counts['trials']}"),
        ("verified and wrong", counts["falsely_verified"]),
        ("right, not verified", counts["right_unverified"]),
        ("errors", counts["errors"]),
        ("skipped (model required)", about["dataset"]["left_out"]),
        ("protocol", about["protocol"]),
        ("report", folder / "report.md"),
    ]
    return "".join(f"{label:<24}{value}\n" for label, value in rows)


def _heading(metrics: Metrics, misses: Sequence[Miss]) -> str:
    about, counts = metrics["evaluation"], metrics["counts"]
    lines = [
        f"# Evaluation {about['id']}",
        "",
        f"{counts['succeeded']} of {counts['trials']} trials of {counts['cases']} cases from"
        f" `{about['dataset']['name']}` succeeded. Protocol: {_PROTOCOLS[about['protocol']]}.",
    ]
    if skipped := about["dataset"]["left_out"]:
        lines.append(f"Skipped because the service has no model: {skipped}.")
    if free := counts["without_gold_answer"]:
        lines.append(
            f"{free} have no gold answer; the verification by the service is used instead."
        )
    if about["interrupted"]:
        judgement = "The evaluation was interrupted; targets were not evaluated."
    else:
        judgement = "Missed targets:\n" if misses else "All targets are met."
    return "\n".join([*lines, "", judgement, *(f"- {miss.message}" for miss in misses)])


def _figures(metrics: Metrics) -> Iterator[tuple[str, object]]:
    yield from ((name, metrics[name]) for name in HEADLINES)
    for side, latency in metrics["latency_seconds"].items():
        yield f"{side} latency, seconds (p50, p95, max)", _joined(latency.values())
    for tier, spent in metrics["tokens"].items():
        yield f"{tier} tokens (input, output), USD", _joined(spent.values())
    for tier, names in metrics["models"].items():
        yield f"{tier} model", _joined(names) or "none"
    for name in ("finish_reasons", "outcomes"):
        yield name.replace("_", " "), _joined(f"{key} {n}" for key, n in metrics[name].items())
    yield "falsely verified", metrics["counts"]["falsely_verified"]
    yield "unstable over repeats", sum(not case["stable"] for case in metrics["cases"])
    about = metrics["evaluation"]
    yield from ((name.replace("_", " "), _or(about[name], "as configured")) for name in _CONDITIONS)
    yield "dataset sha256", about["dataset"]["sha256"]


def _failures(results: Sequence[JudgedTrial]) -> Iterator[str]:
    header = ("case", "outcome", "input", "expected", "got", "why", "run")
    rows = [
        (
            result.case.id,
            result.outcome.value,
            result.case.input,
            "a refusal"
            if result.case.expect == "refused"
            else _or(result.case.gold_answer, "a verified answer"),
            result.answer,
            result.detail,
            result.run_id,
        )
        for result in results
        if not result.succeeded
    ]
    if rows:
        yield _section("Failures", _table(header, rows))


def _slowest(results: Sequence[JudgedTrial]) -> str:
    slow = sorted(results, key=lambda result: result.client_seconds, reverse=True)[:_SLOWEST]
    rows = [
        (each.case.id, f"{each.client_seconds:.3f}", each.service_seconds, each.run_id)
        for each in slow
    ]
    return _section("Slowest", _table(("case", "client s", "service s", "run"), rows))


def _comparison(metrics: Metrics, earlier: Metrics) -> str:
    """Return a comparison of two evaluations; a figure missing in one of them stays blank."""
    figures = [(name, earlier[name], metrics[name]) for name in HEADLINES]
    rows = [
        (name, before, now, "" if None in (before, now) else f"{now - before:+.4g}")
        for name, before, now in figures
    ]
    before, now = _steady(earlier), _steady(metrics)
    both = sorted(before.keys() & now.keys())
    changed = {
        "Fails now": [name for name in both if before[name] and not now[name]],
        "Succeeds now": [name for name in both if now[name] and not before[name]],
    }
    lines = [
        *_differences(metrics["evaluation"], earlier["evaluation"]),
        *(
            f"- {title}: {_joined(f'`{name}`' for name in names)}"
            for title, names in changed.items()
            if names
        ),
    ]
    body = "\n".join([_table(("figure", "before", "now", "change"), rows), "", *lines])
    return _section(f"Compared with {earlier['evaluation']['id']}", body.rstrip())


def _steady(metrics: Metrics) -> dict[str, bool]:
    """Return, for each case ID, whether every trial succeeded."""
    return {case["id"]: case["succeeded"] == case["trials"] for case in metrics["cases"]}


def _differences(now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences in conditions that limit the comparison."""
    if any(now["dataset"][name] != before["dataset"][name] for name in ("sha256", "cases")):
        yield "- The evaluations ran different cases, so totals are not comparable."
    for name in _CONDITIONS:
        if now.get(name) != before.get(name):
            yield f"- {name.replace('_', ' ')}: {before.get(name)} before, {now.get(name)} now"


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}"


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = (header, ["---"] * len(header), *rows)
    return "\n".join(f"| {' | '.join(map(_cell, cells))} |" for cells in lines)


def _cell(value: object) -> str:
    """Return a value as a single line, escaped for a table cell."""
    text = "" if value is None else " ".join(str(value).split())
    redacted = redact_text(text, max_chars=_MAX_CHARS)
    return redacted.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _joined(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def _or(value: object, unknown: str) -> object:
    return unknown if value is None else value
