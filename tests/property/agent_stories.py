"""Random agents whose process is lost or hands over in the middle, and another one resumes.

The model's replies depend only on the path of the call and on the seed, so a run without
interruption has one course. Models stream their answers; tools have external effects.
"""

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from caseworker.core.budget.budget import Budget
from caseworker.models.gateway import ModelGateway, Tier
from caseworker.models.ports import (
    Delta,
    Incomplete,
    ModelReply,
    ModelRequest,
    TokenUsage,
    ToolCall,
)
from caseworker.models.pricing import no_list_price
from caseworker.nodes.agent.execution import Agents
from caseworker.nodes.agent.node import agent_type
from caseworker.nodes.catalog import NodeCatalog
from caseworker.runs.run import EventRecord, RunKind, RunRequest
from caseworker.runs.service import whole_events, whole_run
from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec
from caseworker.tools.registry import ToolPolicy, ToolRegistry
from tests.property.interrupted_run import InterruptedRun
from tests.support.limits import retry_policy, tier_model, tool_dispatch
from tests.support.runs import KEY
from tests.support.seeded_loop import Story, run

WORDS = ("so", "what", "we", "were", "asked", "to", "find", "came", "as", "promised")
MOST_TURNS = 5
WHY = (Incomplete.LENGTH, Incomplete.CONTENT_FILTER, Incomplete.REFUSAL, Incomplete.EMPTY)
"""Why an answer may be incomplete without a stop of the run."""


def reply_of(seed: int, call: str) -> ModelReply:
    """Return the model's reply to a call, which depends on the call's path."""
    draw = random.Random(f"{seed}/{call}")
    number = turn_of(call).rsplit("/", 1)[1]
    turn = int(number) if number.isdecimal() else MOST_TURNS
    incomplete = draw.choice(list(WHY)) if draw.random() < 0.3 else None
    usage = TokenUsage(tokens_in=10, tokens_out=5)
    if incomplete is Incomplete.EMPTY:
        return ModelReply(text="", model="m", usage=usage, incomplete=incomplete)
    text = " ".join(draw.choices(WORDS, k=draw.randint(0, 30)))
    thinking = " ".join(draw.choices(WORDS, k=draw.choice([0, 0, 5])))
    calls: list[ToolCall] = []
    if turn < MOST_TURNS and draw.random() < 0.8:
        calls = [_wanted(draw, call, n) for n in range(draw.randint(1, 3))]
    if not (text or calls or incomplete):
        text = WORDS[0]  # without one the answer would be empty
    if incomplete and calls and draw.random() < 0.7:
        calls[-1] = replace(calls[-1], arguments=calls[-1].arguments[: draw.choice([0, 3])])
    return ModelReply(
        text=text,
        model="m",
        usage=usage,
        tool_calls=tuple(calls),
        thinking=thinking,
        incomplete=incomplete,
    )


def turn_of(call: str) -> str:
    """Return the key of the turn that a model call belongs to."""
    return call.removesuffix("/empty").removesuffix("/last")


def _wanted(draw: random.Random, call: str, number: int) -> ToolCall:
    names = ["reads", "reads", "writes", "nothing", "finish" if draw.random() < 0.2 else "reads"]
    if call.count("turn") < 2:
        names.append("inner")
    name = draw.choice(names)
    about = f"{call}/{number}"
    args = {"inner": {"input": about}, "finish": {"answer": about}}.get(name, {"about": about})
    broken = draw.random() < 0.1
    return ToolCall(
        id=f"c{number}", name=name, arguments='{"about": ' if broken else json.dumps(args)
    )


class Outside:
    """A tool with an external effect that records every call."""

    def __init__(self, name: str, agent_run: "AgentRun", *, parallel_safe: bool) -> None:
        self.spec = ToolSpec(
            name=name,
            description="Works outside.",
            parameters={
                "type": "object",
                "additionalProperties": False,
                "properties": {"about": {"type": "string"}},
                "required": ["about"],
            },
            external=True,
            parallel_safe=parallel_safe,
        )
        self._agent_run = agent_run

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        self._agent_run.record_call(f"tool {args['about']}")
        await asyncio.sleep(random.Random(args["about"]).choice([0, 0.01, 0.5]))
        return {"about": args["about"]}


class Model:
    """A streaming provider."""

    name, external = "scripted", True

    def __init__(self, agent_run: "AgentRun") -> None:
        self._agent_run = agent_run

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        assert request.origin is not None
        call = request.origin.call
        self._agent_run.record_call(f"model {call}")
        reply = reply_of(self._agent_run.seed, call)
        draw = random.Random(call)
        if request.on_delta is not None:
            for kind, text in (("thinking", reply.thinking), ("content", reply.text)):
                for at in range(0, len(text), 9):
                    await asyncio.sleep(draw.choice([0, 0.004, 0.03]))
                    request.on_delta(Delta(kind, text[at : at + 9]))  # type: ignore[arg-type]
        await asyncio.sleep(draw.choice([0, 0.1]))
        return reply

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


@dataclass
class AgentRun(InterruptedRun):
    """One run of one agent, executed by as many processes as necessary."""

    events: Sequence[EventRecord] = ()
    """The events of the run as a client reads them."""

    @property
    def budget(self) -> Budget:
        """Return the budget of the run."""
        return Budget(max_llm_calls_small=random.Random(-self.seed).choice([None, None, 4]))

    def record_call(self, call: str) -> None:
        """Record an external call."""
        self.external_calls.append((call, len(self.processes)))

    async def play(self) -> None:
        """Play the run to its end."""
        request = RunRequest(
            kind=RunKind.GRAPH, graph=self._graph(), inputs={"default": "Go."}, budget=self.budget
        )
        found = await self.execute_run(request, lambda: random.Random(self.seed).uniform(0, 1))
        self.ended, self.final = True, await whole_run(self.store, found)
        await asyncio.sleep(200)
        stored = self.store.rows[KEY].events
        self.events = await whole_events(self.store, KEY, [stored[seq] for seq in sorted(stored)])

    def _graph(self) -> dict[str, Any]:
        draw = random.Random(self.seed)
        inner = {"name": "inner", "prompt": {}, "tools": ["reads", "writes"]}
        agent = {
            "name": "outer",
            "prompt": {"system": "Work."},
            "tools": ["reads", "writes", {"agent": inner}],
            "model": {"stream": draw.random() < 0.8},
            "limits": {"max_turns": draw.choice([3, 20])},
        }
        step = {"id": "a", "type": "agent", "data": {"agent": agent}}
        return {"steps": [step], "edges": []}

    def nodes(self) -> dict[str, Any]:
        """Return the nodes, tools and model of a process."""
        tools = ToolRegistry(
            [
                Outside("reads", self, parallel_safe=True),
                Outside("writes", self, parallel_safe=False),
            ]
        )
        agents = Agents(tool_dispatch(tools, ToolPolicy()), timezone="UTC", wrap_up_reserve=1)
        model = tier_model(provider=Model(self), model="m")
        gateway = ModelGateway(
            dict.fromkeys(Tier, model), no_list_price, retry_policy(max_retries=0)
        )
        catalog = NodeCatalog([agent_type(agents, ("reads", "writes"))])
        return {"catalog": catalog, "services": {ModelGateway: gateway}}


def play_agent_run(
    seed: int, *, before_step: int | None = None, losses: int = 1
) -> tuple[AgentRun, Story[None]]:
    """Play the run of a seed, interrupted before the given step of the loop."""
    agent_run = AgentRun(seed, losses)
    strike = None if before_step is None else agent_run.strike
    return agent_run, run(agent_run.play, seed, interrupt=strike, before_step=before_step or 0)
