"""What an evaluation must reach, and how much worse than an earlier one it may be.

A figure that could not be measured, such as the latency of easy cases where there are none, misses
no target.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import structlog

from app.harness.metrics import FORMAT, Metrics

log = structlog.get_logger(__name__)

_LEAST_GROWTH_SECONDS = 0.1
"""Latencies that differ by less do not differ: they are noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Limits that count as kept when they are reached exactly; None asks for nothing."""

    min_success: float = 0.95
    max_escalation_rate: float = 0.15
    max_p95_latency_easy_seconds: float = 2.0
    max_mean_cost_usd: float | None = None
    """Mean cost of a case."""
    max_mean_tokens: float | None = None
    """Mean tokens of a case, input and output."""
    max_falsely_verified: int = 0
    """Wrong answers that the service passed off as verified, and claims of one where it should have
    refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """How much worse than an earlier evaluation this one may be."""

    max_success_drop: float = 0.02
    """As a difference of shares."""
    max_latency_growth: float = 1.5
    """As a factor, of the 95th percentile of easy cases."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A target that was missed."""

    target: str
    """The name of the figure in metrics.json."""
    value: float
    limit: float
    message: str


class IncomparableError(Exception):
    """The earlier metrics cannot be compared with these."""


def missed(metrics: Metrics, targets: Targets) -> list[Miss]:
    """Return every target that the metrics miss."""
    found = [
        _above(metrics, "escalation_rate", targets.max_escalation_rate),
        _above(metrics, "p95_latency_easy", targets.max_p95_latency_easy_seconds, " seconds"),
        _above(metrics, "mean_cost_usd_per_case", targets.max_mean_cost_usd, " USD"),
        _above(metrics, "mean_tokens_per_case", targets.max_mean_tokens, " tokens"),
    ]
    success = metrics["success@1"]
    if success < targets.min_success:
        message = f"success@1 is {success:.4f}, below the target of {targets.min_success:g}"
        found.insert(0, Miss("success@1", success, targets.min_success, message))
    wrong = metrics["counts"]["falsely_verified"]
    if wrong > targets.max_falsely_verified:
        message = (
            f"falsely_verified is {wrong}, above the target of {targets.max_falsely_verified}:"
            " wrong answers passed off as verified"
        )
        found.append(Miss("falsely_verified", wrong, targets.max_falsely_verified, message))
    return [miss for miss in found if miss is not None]


def regressions(metrics: Metrics, earlier: Metrics, allowance: Allowance) -> list[Miss]:
    """Return what has become worse by more than is allowed."""
    return [*_dropped(metrics, earlier, allowance), *_slowed(metrics, earlier, allowance)]


def require_comparable(earlier: object) -> Metrics:
    """Return earlier metrics, if they are metrics of today's format.

    Raises:
        IncomparableError: they are not.
    """
    if not isinstance(earlier, dict) or earlier.get("format") != FORMAT:
        raise IncomparableError(f"these are no metrics of format {FORMAT}")
    missing = {"success@1", "p95_latency_easy", "evaluation", "cases", "counts"} - earlier.keys()
    if missing:
        raise IncomparableError(f"these metrics lack {', '.join(sorted(missing))}")
    if earlier["evaluation"].get("interrupted"):
        raise IncomparableError("these are metrics of an evaluation that was interrupted")
    return earlier


def log_warnings(misses: Sequence[Miss], evaluation_id: str) -> None:
    """Log a performance warning for each missed target."""
    for miss in misses:
        detail = f"{miss.message} ({evaluation_id})"
        log.warning("performance.target_missed", metric=miss.target, detail=detail)


def _above(metrics: Metrics, name: str, limit: float | None, unit: str = "") -> Miss | None:
    value = metrics[name]
    if value is None or limit is None or value <= limit:
        return None
    return Miss(name, value, limit, f"{name} is {value:g}{unit}, above the target of {limit:g}")


def _dropped(metrics: Metrics, earlier: Metrics, allowance: Allowance) -> Iterator[Miss]:
    before, now = earlier["success@1"], metrics["success@1"]
    lowest = before - allowance.max_success_drop
    if now < lowest - 1e-9:
        message = (
            f"success@1 fell from {before:.4f} to {now:.4f}, by more than the"
            f" {allowance.max_success_drop:g} allowed"
        )
        yield Miss("success@1", now, round(lowest, 6), message)


def _slowed(metrics: Metrics, earlier: Metrics, allowance: Allowance) -> Iterator[Miss]:
    before, now = earlier["p95_latency_easy"], metrics["p95_latency_easy"]
    if before is None or now is None or now - before < _LEAST_GROWTH_SECONDS:
        return
    limit = before * allowance.max_latency_growth
    if now > limit:
        message = (
            f"p95_latency_easy grew from {before:g} to {now:g} seconds, by more than the factor"
            f" {allowance.max_latency_growth:g} allowed"
        )
        yield Miss("p95_latency_easy", now, round(limit, 6), message)
