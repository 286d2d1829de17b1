"""What an evaluation came to, in a few lines on the terminal (seed 002, 7.5)."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from app.harness.metrics import Metrics

_FIGURES = (
    *("success@1", "escalation_rate", "p95_latency_easy", "avg_llm_small", "avg_llm_big"),
    *("avg_tool_calls", "avg_act_steps", "mean_tokens_per_case", "mean_cost_usd_per_case"),
)


def print_summary(console: Console, metrics: Metrics, folder: Path) -> None:
    """Print the figures, success by family, and where the rest is."""
    counts = metrics["counts"]
    figures = Table("figure", "value", box=None, pad_edge=False)
    for name in _FIGURES:
        figures.add_row(name, _shown(metrics[name]))
    families = Table("family", "succeeded", "of", box=None, pad_edge=False)
    for name, group in metrics["by_family"].items():
        families.add_row(name, str(group["succeeded"]), str(group["trials"]))
    console.print(figures, families, sep="\n\n")
    console.print(
        f"{counts['succeeded']} of {counts['trials']} succeeded,"
        f" {counts['falsely_verified']} verified and wrong, {counts['errors']} errors"
    )
    console.print(f"report  {folder / 'report.md'}", markup=False, soft_wrap=True)


def _shown(value: float | None) -> str:
    return "not measured" if value is None else f"{value:g}"
