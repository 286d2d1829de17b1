"""The metrics of an evaluation: one JSON object, comparable between evaluations.

A trial is one run of a case; without ``--repeat``, each case has exactly one. Latencies are in
seconds. Success is a fraction of all trials. Run metrics (escalation, calls, tokens, cost) are
means over the trials that ran, because rejected input has no run.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from caseworker_cases.evaluation.dataset import EASY
from caseworker_cases.evaluation.results import JudgedTrial, Outcome, Tokens

FORMAT = 1
"""Version of the metrics format, incremented when a key changes its meaning. Metrics of different
versions are not compared."""

Metrics = dict[str, Any]

HEADLINES = (
    *("success@1", "escalation_rate", "p95_latency_easy", "avg_llm_small", "avg_llm_big"),
    *("avg_tool_calls", "avg_act_steps", "mean_tokens_per_case", "mean_cost_usd_per_case"),
)
"""Names of the metrics that reports show first and compare."""

_TIERS = ("small", "big")
_FALSE = frozenset({Outcome.WRONG_ANSWER, Outcome.CLAIMED})


def metrics_of(results: Sequence[JudgedTrial], about: Mapping[str, Any]) -> Metrics:
    """Compute the metrics from judged trials, which must be in data set order."""
    ran = [result for result in results if result.ran]
    used = [result.counters for result in ran]
    return {
        "format": FORMAT,
        "evaluation": dict(about),
        **_shares(results),
        "avg_llm_small": _mean(each.llm_calls_small for each in used),
        "avg_llm_big": _mean(each.llm_calls_big for each in used),
        "avg_tool_calls": _mean(each.tool_calls for each in used),
        "avg_act_steps": _mean(each.act_steps for each in used),
        "p95_latency_easy": percentile(
            [
                result.client_seconds
                for result in results
                if result.case.difficulty == EASY and result.case.expect == "answer"
            ],
            95,
        ),
        "latency_seconds": {
            "client": _latencies([result.client_seconds for result in results]),
            "service": _latencies([result.service_seconds or 0.0 for result in ran]),
        },
        **_spent(ran),
        "counts": _counts(results),
        "outcomes": _counted(result.outcome.value for result in results),
        "finish_reasons": _counted(str(result.finish_reason) for result in ran),
        "models": {
            tier: sorted({each.models[tier] for each in ran if tier in each.models})
            for tier in _TIERS
        },
        "by_family": _grouped(results, lambda result: result.case.family),
        "by_difficulty": _grouped(results, lambda result: result.case.difficulty),
        "cases": [_case(list(group)) for _, group in groupby(results, lambda each: each.case.id)],
    }


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return the nearest-rank percentile, rounded to four decimals; None without values."""
    if not values:
        return None
    return round(sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)], 4)


def _latencies(seconds: Sequence[float]) -> dict[str, float | None]:
    return {
        name: percentile(seconds, percent)
        for name, percent in (("p50", 50), ("p95", 95), ("max", 100))
    }


def _spent(ran: Sequence[JudgedTrial]) -> dict[str, Any]:
    tokens: dict[str, dict[str, Any]] = {}
    for name in (*_TIERS, "total"):
        spent = [result.counters.tokens.get(name, Tokens()) for result in ran]
        tokens[name] = {
            "input": sum(each.input for each in spent),
            "output": sum(each.output for each in spent),
            "cost_usd": _cost(each.cost_usd for each in spent),
        }
    total, number = tokens["total"], len(ran) or 1
    cost = total["cost_usd"]
    return {
        "tokens": tokens,
        "mean_tokens_per_case": round((total["input"] + total["output"]) / number, 2),
        "mean_cost_usd_per_case": None if cost is None else round(cost / number, 8),
    }


def _cost(costs: Iterable[float | None]) -> float | None:
    """Return the sum of costs, or None if any of them is unknown."""
    amounts = list(costs)
    return None if None in amounts else round(sum(cost for cost in amounts if cost is not None), 8)


def _counts(results: Sequence[JudgedTrial]) -> dict[str, int]:
    return {
        "cases": len({result.case.id for result in results}),
        **_judged(results),
        "ran": sum(result.ran for result in results),
        "escalated": sum(result.escalated for result in results),
        "errors": sum(result.outcome is Outcome.ERROR for result in results),
        "without_gold_answer": sum(
            result.case.expect == "answer" and result.case.gold_answer is None for result in results
        ),
    }


def _judged(results: Sequence[JudgedTrial]) -> dict[str, int]:
    return {
        "trials": len(results),
        "succeeded": sum(result.succeeded for result in results),
        "verified": sum(result.verified for result in results),
        "falsely_verified": sum(result.outcome in _FALSE for result in results),
        "right_unverified": sum(result.right and not result.verified for result in results),
    }


def _shares(results: Sequence[JudgedTrial]) -> dict[str, float | None]:
    return {
        "success@1": _mean(result.succeeded for result in results),
        "escalation_rate": _mean(result.escalated for result in results if result.ran),
    }


def _grouped(results: Sequence[JudgedTrial], key: Callable[[JudgedTrial], str]) -> dict[str, Any]:
    groups = {name: list(group) for name, group in groupby(sorted(results, key=key), key)}
    return {
        name: {
            **_judged(group),
            **_shares(group),
            "p95_latency_seconds": percentile([each.client_seconds for each in group], 95),
        }
        for name, group in groups.items()
    }


def _case(results: Sequence[JudgedTrial]) -> dict[str, Any]:
    case = results[0].case
    return {
        "id": case.id,
        "family": case.family,
        "succeeded": sum(result.succeeded for result in results),
        "trials": len(results),
        "stable": len({(result.outcome, result.answer) for result in results}) == 1,
        "outcomes": [result.outcome.value for result in results],
        "run_ids": [result.run_id for result in results],
        "seconds": [round(result.client_seconds, 4) for result in results],
    }


def _counted(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))


def _mean(figures: Iterable[float]) -> float | None:
    values = list(figures)
    return round(fmean(values), 6) if values else None
