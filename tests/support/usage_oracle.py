"""Compares the usage of a run with the counts of its model provider."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import combinations
from typing import Any

from caseworker.core.trace.node import estimated_of
from tests.support.fake_provider.arrivals import Arrival

PRICES = {"in": Decimal(1), "out": Decimal(2), "cached": Decimal("0.1")}
"""US dollars per million tokens, for every model of the test."""
_NOTHING = {"tokens_in": 0, "tokens_out": 0, "tokens_cached": 0}


def settings_of_prices(prefix: str) -> dict[str, str]:
    """Return the settings that give a model the prices in ``PRICES``."""
    return {f"{prefix}_PRICE_PER_MILLION_{kind.upper()}_USD": str(p) for kind, p in PRICES.items()}


@dataclass
class _Call:
    """One logical call of a model, with all its attempts in all processes."""

    nodes: list[Mapping[str, Any]] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)


def differences(
    run: Mapping[str, Any],
    snapshot: Mapping[str, Any],
    arrivals: Sequence[Arrival],
    *,
    step_of: Callable[[str], str] = lambda call_key: call_key.partition("/answer")[0],
) -> Iterator[str]:
    """Yield the contradictions between a run's usage, its trace and the provider's log.

    The prompt of every question contains ``<name of its step>``, as in ``<m/3>``; ``step_of``
    returns that name for the key of a call.
    """
    calls = defaultdict[tuple[str, str], _Call](_Call)
    for node in snapshot["nodes"].values():
        if node["kind"] == "llm":
            step = step_of(node["metadata"]["call_key"])
            calls[step, node["model"]].nodes.append(node)
    for arrival in arrivals:
        step = arrival.prompt.partition("<")[2].partition(">")[0]
        calls[step, arrival.model].arrivals.append(arrival)
    yield from _wrong_sums(run["usage"], [node for call in calls.values() for node in call.nodes])
    for (step, model), call in calls.items():
        for problem in _wrong_call(call):
            yield f"{step} asked {model}: {problem}"


def _wrong_sums(usage: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    tokens = sum((node["tokens_in"] or 0) + (node["tokens_out"] or 0) for node in nodes)
    if usage["tokens"] != tokens:
        yield f"the run used {usage['tokens']} tokens, its trace says {tokens}"
    estimated = [estimated_of(node) for node in nodes]
    if usage["tokens_estimated"] != sum(tokens for tokens, _ in estimated):
        yield f"the run estimates {usage['tokens_estimated']} tokens, its trace {estimated}"
    cost = sum((Decimal(str(node["cost_usd"])) for node in nodes), Decimal(0))
    if abs(Decimal(str(usage["cost_usd"])) - cost) > Decimal("1e-9"):
        yield f"the run cost {usage['cost_usd']}, its trace says {cost}"


def _wrong_call(call: _Call) -> Iterator[str]:
    """Compare one call; the estimates may include answers that were lost on the way."""
    marked = [estimated_of(node) for node in call.nodes]
    estimated = sum(tokens for tokens, _ in marked)
    charged = sum((n["tokens_in"] or 0) + (n["tokens_out"] or 0) for n in call.nodes) - estimated
    counted = [arrival for arrival in call.arrivals if arrival.charged is not None]
    lost = [a for a in call.arrivals if a.charged is None and not a.refused]
    if lost and not estimated:
        yield f"{len(lost)} attempts were not answered, and nothing is estimated"
    unheard = range(len(counted) + 1) if estimated else (0,)
    heard = [
        some
        for missing in unheard
        for some in combinations(counted, len(counted) - missing)
        if sum(map(tokens_of, some)) == charged
    ]
    if not heard:
        yield f"charged {charged}, counted {[tokens_of(a) for a in counted]}, estimated {estimated}"
        return
    cost = sum((Decimal(str(n["cost_usd"])) for n in call.nodes), Decimal(0))
    cost -= sum((Decimal(str(usd)) for _, usd in marked), Decimal(0))
    if not any(abs(cost - sum(map(cost_of, some))) < Decimal("1e-9") for some in heard):
        yield f"charged ${cost}, counted {[cost_of(a) for a in counted]}"


def tokens_of(arrival: Arrival) -> int:
    """Return the tokens that the provider counted for a request; 0 for one without a reply."""
    counted = arrival.charged or _NOTHING
    return counted["tokens_in"] + counted["tokens_out"]


def cost_of(arrival: Arrival) -> Decimal:
    """Return the US dollars of the tokens that the provider counted for a request."""
    counted = arrival.charged or _NOTHING
    fresh = counted["tokens_in"] - counted["tokens_cached"]
    cost = fresh * PRICES["in"] + counted["tokens_cached"] * PRICES["cached"]
    return (cost + counted["tokens_out"] * PRICES["out"]) / 1_000_000
