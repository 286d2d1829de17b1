"""What is different between two evaluations (seed 002, 26.4)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.harness.metrics import Metrics

_FIGURES = (
    *("success@1", "escalation_rate", "p95_latency_easy", "avg_llm_small", "avg_llm_big"),
    *("avg_tool_calls", "avg_act_steps", "mean_tokens_per_case", "mean_cost_usd_per_case"),
)
_CONDITIONS = ("service_version", "mode", "seed", "repeat", "concurrency", "gold_sent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """From an earlier evaluation to a later one."""

    figures: tuple[tuple[str, float | None, float | None], ...]
    """Name, before, now."""
    broken: tuple[str, ...]
    """Cases that succeeded every time before, and do not now."""
    mended: tuple[str, ...]
    """Cases that succeed every time now, and did not before."""
    notes: tuple[str, ...]
    """What makes the two hard to compare."""


def changes(metrics: Metrics, earlier: Metrics) -> Changes:
    """Compare two evaluations; figures that only one of them has are None in the other."""
    before, now = _steady(earlier), _steady(metrics)
    both = before.keys() & now.keys()
    return Changes(
        figures=tuple((name, earlier.get(name), metrics.get(name)) for name in _FIGURES),
        broken=tuple(sorted(name for name in both if before[name] and not now[name])),
        mended=tuple(sorted(name for name in both if now[name] and not before[name])),
        notes=tuple(_notes(metrics["evaluation"], earlier["evaluation"])),
    )


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
