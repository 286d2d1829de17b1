"""Figures as a table for people and as JSON for programs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.figures import Check, Figure, Grade, Samples
from bench.harness import Row
from bench.machine import Machine

RESULTS: Final = Path(__file__).parent / "results"

_STYLES: Final[Mapping[Grade, str]] = {
    Grade.STRETCH: "bold green",
    Grade.MUST: "green",
    Grade.MISSED: "bold red",
}


def show_machine(console: Console, machine: Machine) -> None:
    """Print the machine of the figures."""
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, {machine['python']}, caseworker {machine['caseworker']}"
    )
    if machine["load_1m"] > machine["cores"] / 2:
        console.print(
            f"The machine is busy (load {machine['load_1m']}): expect noise.", style="red"
        )


def show_row(console: Console, row: Row, figures: Sequence[Figure]) -> None:
    """Print the measurements of a row and their grades."""
    console.print()
    console.rule(Text(row.title + (f"  (peers: {', '.join(row.peers)})" if row.peers else "")))
    for figure in figures:
        console.print(_table(figure))
        for check in figure.checks:
            console.print(_verdict(check))


def write_results(machine: Machine, measured: Mapping[str, tuple[Row, Sequence[Figure]]]) -> Path:
    """Write all figures of one run to a file named by its time; return the path."""
    now = datetime.now(UTC)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{now:%Y%m%dT%H%M%SZ}.json"
    document = {
        "measured_at": now.isoformat(timespec="seconds"),
        "machine": machine,
        "rows": {
            name: {
                "title": row.title,
                "peers": list(row.peers),
                "figures": [_as_json(figure) for figure in figures],
            }
            for name, (row, figures) in measured.items()
        },
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path


def _table(figure: Figure) -> Table:
    table = Table(title=figure.title, title_justify="left", caption_justify="left")
    table.add_column("side")
    for heading in (f"median, {figure.unit}", "spread", "p99", "worst", "ours is"):
        table.add_column(heading, justify="right")
    ours = next(iter(figure.sides.values()), None)
    for name, samples in figure.sides.items():
        share = f"{ours.median / samples.median:.2f}x" if ours and samples.median else ""
        table.add_row(
            name,
            f"{samples.median:,.3g}",
            f"{samples.spread:.0%}",
            f"{samples.percentile(99):,.3g}",
            f"{max(samples.values):,.3g}",
            "" if samples is ours else share,
        )
    return table


def _verdict(check: Check) -> Text:
    target, sign = check.target, ">=" if check.target.at_least else "<="
    unit = "x" if target.unit == "x" else f" {target.unit}"
    asked = f"must {sign} {target.must:g}{unit}"
    if target.stretch is not None:
        asked += f", stretch {sign} {target.stretch:g}{unit}"
    line = Text(f"  {check.what}: {check.value:.3g}{unit} ({asked}) ")
    return line.append(check.grade.value, style=_STYLES[check.grade])


def _as_json(figure: Figure) -> dict[str, Any]:
    return {
        "title": figure.title,
        "unit": figure.unit,
        "sides": {name: _side(samples) for name, samples in figure.sides.items()},
        "checks": [{**asdict(check), "grade": check.grade.value} for check in figure.checks],
    }


def _side(samples: Samples) -> dict[str, float]:
    return {
        "median": samples.median,
        "spread": samples.spread,
        "p99": samples.percentile(99),
        "worst": max(samples.values),
        "count": len(samples.values),
    }
