"""Random agents under random limits: a limit of N allows N, with any reserve for a last answer."""

import asyncio
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.core.budget.budget import Budget
from caseworker.core.graph.facts import StepStatus
from caseworker.engine.report import GraphOutcome
from caseworker.models.ports import ModelReply, ModelRequest, TokenUsage
from tests.unit.nodes.agent.world import agent, asking, result, wants
from tests.unit.nodes.world import NodeRun

_LIMITS = {
    "llm_calls": 1,
    "llm_calls_small": 1,
    "api_calls": 1,
    "turns": 1,
    "tool_calls": 0,
    "tokens": 5,
}
"""The limited dimensions, with the lowest limit that is drawn."""


@dataclass
class Plan:
    """The needs of an agent: tool calls in every turn but the last, and growing answers."""

    tools: list[int]
    """Tool calls in each turn; the turn after them answers."""
    growth: list[int]
    """The increase in tokens from each model call to the next."""

    @property
    def tokens(self) -> list[int]:
        """Return the tokens of each model call."""
        return list(accumulate(self.growth[: len(self.tools) + 1], initial=5))[1:]

    @property
    def needed(self) -> dict[str, int]:
        """Return the agent's usage without limits."""
        calls = len(self.tools) + 1
        return {
            "llm_calls": calls,
            "llm_calls_small": calls,
            "api_calls": calls,
            "turns": calls,
            "tool_calls": sum(self.tools),
            "tokens": sum(self.tokens),
        }


@dataclass
class Model:
    """A provider that follows a plan and ignores warnings about limits."""

    plan: Plan
    name: str = "scripted"
    external: bool = False
    asked: list[ModelRequest] = field(default_factory=list)

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        turn = len(self.asked)
        self.asked.append(request)
        if not request.tools:
            return ModelReply(text="Partly.", model=model, usage=None)
        usage = TokenUsage(tokens_in=self.plan.tokens[turn], tokens_out=0)
        if turn == len(self.plan.tools):
            return ModelReply(text="Done.", model=model, usage=usage)
        calls = tuple(
            wants("calculator", f"c{turn}-{n}", expression=f"{turn}+{n}")
            for n in range(self.plan.tools[turn])
        )
        return ModelReply(text="", model=model, usage=usage, tool_calls=calls)

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


_PLANS = st.builds(
    Plan,
    tools=st.lists(st.integers(1, 3), max_size=5),
    growth=st.lists(st.integers(0, 9), min_size=6, max_size=6),
)


def _played(plan: Plan, budget: Budget, reserve: int) -> tuple[NodeRun, GraphOutcome]:
    here = NodeRun(small=Model(plan), budget=budget, wrap_up_reserve=reserve)  # type: ignore[arg-type]

    async def play() -> GraphOutcome:
        limits = {"max_turns": None}
        definition = agent(tools=["calculator"], limits=limits, model={"stream": False})
        return await here.run(asking(definition), default="?")

    return here, asyncio.run(play())


@pytest.mark.req("cw/13.limit", "003/FR2.1")
@given(plan=_PLANS, data=st.data(), reserve=st.integers(0, 1))
def test_an_agent_within_its_limits_completes(
    plan: Plan, data: st.DataObject, reserve: int
) -> None:
    """Limits equal to or above the needed usage change nothing."""
    spare = {name: data.draw(st.sampled_from([None, 0, 0, 1, 2]), name) for name in _LIMITS}
    limits: dict[str, Any] = {
        f"max_{name}": plan.needed[name] + more for name, more in spare.items() if more is not None
    }

    here, outcome = _played(plan, Budget(**limits), reserve)

    assert outcome.steps["a"].status is StepStatus.COMPLETED, outcome.stop
    found = result(outcome)
    assert (found["success"], found["output"]) == (True, "Done.")
    assert found["turn_count"] == len(plan.tools) + 1
    used = here.scope.usage.to_dict()
    assert {name: used.get(name, 0) for name in _LIMITS} == plan.needed


@pytest.mark.req("cw/13.limit", "003/FR2.1")
@given(plan=_PLANS, data=st.data(), reserve=st.integers(0, 1))
def test_a_limit_that_is_too_low_halts_at_exactly_the_limit(
    plan: Plan, data: st.DataObject, reserve: int
) -> None:
    """All calls that the limit allows are made, none beyond, and the stop names the limit."""
    possible = [name for name in _LIMITS if plan.needed[name] > _LIMITS[name] and name != "tokens"]
    if not possible:
        return
    name = data.draw(st.sampled_from(possible))
    limit = data.draw(st.integers(_LIMITS[name], plan.needed[name] - 1), "limit")

    here, outcome = _played(plan, Budget(**{f"max_{name}": limit}), reserve)

    assert outcome.stop is not None
    assert (outcome.stop.cause.dimension, outcome.stop.cause.limit) == (name, limit)
    assert result(outcome)["success"] is False
    assert here.scope.usage.to_dict().get(name, 0) == limit
    is_of_calls = name in ("llm_calls", "llm_calls_small", "api_calls", "turns")
    assert name == "tool_calls" or here.scope.usage.to_dict()["llm_calls"] == limit
    assert f"limit {limit}" in str(outcome.stop.cause.reason)
    reserved = outcome.stop.cause.reserved
    assert (reserved or 0) == (1 if is_of_calls and reserve and limit >= 2 else 0)
