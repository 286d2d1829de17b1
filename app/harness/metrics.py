"""The figures of an evaluation: one JSON object, comparable from run to run.

Latencies are in seconds. Success is a share of all trials. What concerns
runs (escalation, calls, tokens, cost) is a mean over the trials that ran: input that the service
did not take has none. A trial is a case run once; without ``--repeat``, that is every case.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from app.harness.dataset import EASY
from app.harness.results import TIERS, Outcome, Result, Tokens

FORMAT = 1
"""Raised when a key changes its meaning; metrics of different formats are not compared."""

Metrics = dict[str, Any]

HEADLINES = (
    *("success@1", "escalation_rate", "p95_latency_easy", "avg_llm_small", "avg_llm_big"),
    *("avg_tool_calls", "avg_act_steps", "mean_tokens_per_case", "mean_cost_usd_per_case"),
)
"""The figures that are shown first, and compared."""


def metrics_of(results: Sequence[Result], about: Mapping[str, Any]) -> Metrics:
    """Return the figures of trials, which stand in the order of their data set."""
    ran = [result for result in results if result.ran]
    return {
        "format": FORMAT,
        "evaluation": dict(about),
        "success@1": _share(results, attrgetter("succeeded")),
        "escalation_rate": _share(ran, attrgetter("escalated")),
        "avg_llm_small": _mean(ran, attrgetter("llm_calls_small")),
        "avg_llm_big": _mean(ran, attrgetter("llm_calls_big")),
        "avg_tool_calls": _mean(ran, attrgetter("tool_calls")),
        "avg_act_steps": _mean(ran, attrgetter("act_steps")),
        "p95_latency_easy": _easy_p95(results),
        "latency_seconds": {
            "client": _latencies([result.client_seconds for result in results]),
            "service": _latencies([result.service_seconds or 0.0 for result in ran]),
        },
        **_spent(ran),
        "counts": _counts(results),
        "outcomes": _counted(result.outcome.value for result in results),
        "finish_reasons": _counted(str(result.finish_reason) for result in ran),
        "models": _models(ran),
        "by_family": _grouped(results, lambda result: result.case.family),
        "by_difficulty": _grouped(results, lambda result: result.case.difficulty),
        "cases": [_case(list(group)) for _, group in groupby(results, lambda each: each.case.id)],
    }


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return the smallest value that ``percent`` of all do not exceed (nearest rank)."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def _easy_p95(results: Sequence[Result]) -> float | None:
    """Return the 95th percentile of easy questions that have an answer, end to end."""
    easy = [
        result.client_seconds
        for result in results
        if result.case.difficulty == EASY and result.case.expect == "answer"
    ]
    return _rounded(percentile(easy, 95))


def _latencies(seconds: Sequence[float]) -> dict[str, float | None]:
    return {
        "p50": _rounded(percentile(seconds, 50)),
        "p95": _rounded(percentile(seconds, 95)),
        "max": _rounded(max(seconds, default=None)),
    }


def _spent(ran: Sequence[Result]) -> dict[str, Any]:
    tiers = {
        tier: sum((result.tokens.get(tier, Tokens()) for result in ran), Tokens()) for tier in TIERS
    }
    total = sum(tiers.values(), Tokens())
    number = len(ran) or 1
    return {
        "tokens": {
            name: {
                "input": spent.input,
                "output": spent.output,
                "cost_usd": round(spent.cost_usd, 8),
            }
            for name, spent in {**tiers, "total": total}.items()
        },
        "mean_tokens_per_case": round((total.input + total.output) / number, 2),
        "mean_cost_usd_per_case": round(total.cost_usd / number, 8),
    }


def _counts(results: Sequence[Result]) -> dict[str, int]:
    wrong = {Outcome.WRONG_ANSWER, Outcome.CLAIMED}
    return {
        "cases": len({result.case.id for result in results}),
        "trials": len(results),
        "ran": sum(result.ran for result in results),
        "succeeded": sum(result.succeeded for result in results),
        "verified": sum(result.verified for result in results),
        "falsely_verified": sum(result.outcome in wrong for result in results),
        "escalated": sum(result.escalated for result in results),
        "errors": sum(result.outcome is Outcome.ERROR for result in results),
        "without_gold_answer": sum(
            result.case.expect == "answer" and result.case.gold_answer is None for result in results
        ),
    }


def _models(ran: Sequence[Result]) -> dict[str, list[str]]:
    return {
        tier: sorted({result.models[tier] for result in ran if tier in result.models})
        for tier in TIERS
    }


def _grouped(results: Sequence[Result], key: Callable[[Result], str]) -> dict[str, Any]:
    groups = {}
    for name, group in groupby(sorted(results, key=key), key):
        members = list(group)
        ran = [result for result in members if result.ran]
        groups[name] = {
            "trials": len(members),
            "succeeded": sum(result.succeeded for result in members),
            "success@1": _share(members, attrgetter("succeeded")),
            "escalation_rate": _share(ran, attrgetter("escalated")),
            "p95_latency_seconds": _rounded(
                percentile([result.client_seconds for result in members], 95)
            ),
        }
    return groups


def _case(results: Sequence[Result]) -> dict[str, Any]:
    case = results[0].case
    endings = {(result.outcome, result.answer) for result in results}
    return {
        "id": case.id,
        "family": case.family,
        "succeeded": sum(result.succeeded for result in results),
        "trials": len(results),
        "stable": len(endings) == 1,
        "outcomes": [result.outcome.value for result in results],
        "run_ids": [result.run_id for result in results],
        "seconds": [_rounded(result.client_seconds) for result in results],
    }


def _counted(words: Any) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))


def _share(results: Sequence[Result], holds: Callable[[Result], bool]) -> float | None:
    return _mean(results, lambda result: int(holds(result)))


def _mean(results: Sequence[Result], figure: Callable[[Result], float]) -> float | None:
    return round(sum(map(figure, results)) / len(results), 6) if results else None


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
