"""Targets for an evaluation, and the regression allowed against an earlier one.

A metric that was not measured misses no target. An example is the latency of easy cases in a data
set without easy cases.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from caseworker_cases.evaluation.dataset import DatasetError
from caseworker_cases.evaluation.metrics import FORMAT, HEADLINES, Metrics

log = structlog.get_logger(__name__)

_MIN_GROWTH_SECONDS = 0.1
"""Latency differences below this are treated as noise."""
_CLAIMED = ": wrong answers reported as verified"


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Inclusive limits for the metrics; None disables a limit."""

    min_success: float = 0.95
    max_escalation_rate: float = 0.15
    max_p95_latency_easy_seconds: float = 2.0
    max_mean_cost_usd: float | None = None
    """Maximum mean cost of a case in US dollars."""
    max_mean_tokens: float | None = None
    """Maximum mean number of input and output tokens of a case."""
    max_falsely_verified: int = 0
    """Maximum number of wrong answers that are reported as verified. Verified answers to inputs
    that should have been refused count as well."""
    max_success_drop: float = 0.02
    """Maximum drop of the success rate from the earlier evaluation, as a difference of
    fractions."""
    max_latency_growth: float = 1.5
    """Maximum ratio of the new to the earlier 95th percentile latency of easy cases."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A target that an evaluation missed."""

    target: str
    """Name of the metric in ``metrics.json``."""
    message: str


def missed(metrics: Metrics, targets: Targets, earlier: Metrics | None = None) -> list[Miss]:
    """Return all missed targets, including regressions from the earlier metrics."""
    misses = [*_misses_above_limits(metrics, targets)]
    success, target = metrics["success@1"], targets.min_success
    if success < target:
        message = f"success@1 is {success:.4f}, below the target of {target:g}"
        misses.insert(0, Miss("success@1", message))
    return misses if earlier is None else [*misses, *_worse(metrics, earlier, targets)]


def read_metrics(path: Path) -> Metrics:
    """Load the metrics of an earlier evaluation from its file.

    Raises:
        DatasetError: the file is missing, has another format, lacks a metric, or is from an
            interrupted evaluation.
    """
    try:
        metrics = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: {error}") from None
    needed = {*HEADLINES, "evaluation", "cases", "counts"}
    if not isinstance(metrics, dict) or metrics.get("format") != FORMAT or needed - metrics.keys():
        raise DatasetError(f"{path}: not a metrics file of format {FORMAT}")
    if metrics["evaluation"].get("interrupted"):
        raise DatasetError(f"{path}: the metrics are from an interrupted evaluation")
    return metrics


def log_warnings(misses: Sequence[Miss], evaluation_id: str) -> None:
    """Log a performance warning for each missed target."""
    for miss in misses:
        detail = f"{miss.message} ({evaluation_id})"
        log.warning("performance.target_missed", metric=miss.target, detail=detail)


def _misses_above_limits(metrics: Metrics, targets: Targets) -> Iterator[Miss]:
    figures = {**metrics, "falsely_verified": metrics["counts"]["falsely_verified"]}
    for name, limit, unit, note in (
        ("escalation_rate", targets.max_escalation_rate, "", ""),
        ("p95_latency_easy", targets.max_p95_latency_easy_seconds, " seconds", ""),
        ("mean_cost_usd_per_case", targets.max_mean_cost_usd, " USD", ""),
        ("mean_tokens_per_case", targets.max_mean_tokens, " tokens", ""),
        ("falsely_verified", targets.max_falsely_verified, "", _CLAIMED),
    ):
        value = figures[name]
        if value is not None and limit is not None and value > limit:
            message = f"{name} is {value:g}{unit}, above the target of {limit:g}{note}"
            yield Miss(name, message)


def _worse(metrics: Metrics, earlier: Metrics, targets: Targets) -> Iterator[Miss]:
    before, now, drop = earlier["success@1"], metrics["success@1"], targets.max_success_drop
    if now < before - drop - 1e-9:
        fell = f"success@1 fell from {before:.4f} to {now:.4f}, more than the allowed {drop:g}"
        yield Miss("success@1", fell)
    before, now = earlier["p95_latency_easy"], metrics["p95_latency_easy"]
    if before is None or now is None or now - before < _MIN_GROWTH_SECONDS:
        return
    if now > before * targets.max_latency_growth:
        grew = (
            f"p95_latency_easy grew from {before:g} to {now:g} seconds, more than the allowed "
            f"factor {targets.max_latency_growth:g}"
        )
        yield Miss("p95_latency_easy", grew)
