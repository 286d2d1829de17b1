"""What a case comes to (seed 002, 9.2)."""

from collections.abc import Iterable
from typing import Any

from app.llm.gateway import Tier
from app.nodes.case.state import CaseState, ModelName, TierUsage


def result_of(state: CaseState, answer: str | None) -> dict[str, Any]:
    """Return the result as it stands now; of a case that was cut off, what it had until then.

    ``answer`` is the state's, which takes some work to find out.
    """
    result: dict[str, Any] = {
        "verified": state.verified,
        "finish_reason": state.finish_reason.value if state.finish_reason else None,
        "logs": list(state.logs),
        "evidence": [found.to_dict() for found in state.evidence],
        "artifacts": list(state.artifacts),
        "counters": _counters(state),
        "models": {
            tier.value: {**_named(named), "used": _used(state.usage[tier])}
            for tier, named in state.models.items()
        },
    }
    return result if answer is None else {"answer": answer, **result}


def _named(model: ModelName) -> dict[str, Any]:
    return {"provider": model.provider, "model": model.model}


def _used(usage: TierUsage) -> list[dict[str, Any]]:
    """Return the models that have answered for a tier, fallbacks included."""
    return [{**_named(model), "calls": calls} for model, calls in usage.answers.items()]


def _counters(state: CaseState) -> dict[str, Any]:
    usage = state.usage
    return {
        "llm_calls_small": usage[Tier.SMALL].calls,
        "llm_calls_big": usage[Tier.BIG].calls,
        "tool_calls": state.tool_calls,
        "act_steps": state.act_steps,
        "tokens": {tier.value: _tokens([usage[tier]]) for tier in Tier}
        | {"total": _tokens(usage.values())},
    }


def _tokens(usages: Iterable[TierUsage]) -> dict[str, int | float]:
    counted = list(usages)
    return {
        "input": sum(usage.tokens_in for usage in counted),
        "output": sum(usage.tokens_out for usage in counted),
        "cached_input": sum(usage.tokens_cached for usage in counted),
        "reasoning": sum(usage.tokens_reasoning for usage in counted),
        "cost_usd": float(sum(usage.cost_usd for usage in counted)),
    }
