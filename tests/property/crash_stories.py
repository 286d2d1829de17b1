"""One run of about fifty calls on processes that die at its writes, drawn from a seed.

The run has parallel steps, a map, an agent with a sub-agent, retries, a fallback, tools that must
not be repeated, a tool that its client executes, and two approvals. The replies of its models and
tools depend only on their input, so the run has one correct result, whatever happens to its
processes.
"""

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from typing import Any

from caseworker.models.gateway import ModelGateway, Tier
from caseworker.models.ports import Incomplete, ModelReply, ModelRequest, TokenUsage, ToolCall
from caseworker.models.pricing import TokenPrice, no_list_price
from caseworker.nodes.agent.execution import Agents
from caseworker.nodes.agent.node import agent_type
from caseworker.nodes.approval import approval_type
from caseworker.nodes.catalog import NodeCatalog
from caseworker.nodes.subgraph import map_type
from caseworker.nodes.toolset import tool_type
from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec, failure
from caseworker.tools.registry import ToolPolicy, ToolRegistry
from tests.support.crashing_cluster import CrashingCluster
from tests.support.crashing_wire import Fault
from tests.support.limits import retry_policy, tier_model, tool_dispatch
from tests.support.seeded_loop import SeededLoop
from tests.support.seeded_loop import run as run_seeded

TOKENS_IN, TOKENS_OUT = 10, 50
TURNS = {"outer": 6, "inner": 3}
INCOMPLETE = {
    (False, 1): Incomplete.LENGTH,
    (False, 3): Incomplete.EMPTY,
    (True, 3): Incomplete.REFUSAL,
}
"""Incomplete answers, by whether the inner agent gives them and in which turn.

In the first one, one of two calls has no arguments; the last one is the inner agent's result.
"""
ITEMS = 12
LOOKS: Mapping[str, Any] = {
    "name": "looks",
    "parameters": {"type": "object", "properties": {"about": {"type": "string"}}},
}
"""The tool of the client."""

WORLDS: dict[SeededLoop, CrashingCluster] = {}
"""The cluster of the story that each loop runs."""


def new_cluster() -> CrashingCluster:
    """Return the cluster of the running story."""
    loop: Any = asyncio.get_running_loop()
    return WORLDS[loop]


class OutsideTool:
    """A tool with external calls."""

    def __init__(self, name: str, *, idempotent: bool = True, fails: str = "") -> None:
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
            idempotent=idempotent,
            transient=frozenset({"busy"}),
            requires_approval=name == "sends",
        )
        self._fails = fails

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Answer as the arguments say; the first call of a busy item fails."""
        place: Any = context.artifacts
        cluster, call_key = new_cluster(), place.call_key
        first = all(each.call_key != call_key for each in cluster.arrivals)
        cluster.arrived(call_key, self.spec.name)
        about = args["about"]
        await asyncio.sleep(_seconds(about))
        if self._fails == "always" or (self._fails == "first" and first and about[-1] in "05"):
            code = "broken" if self._fails == "always" else "busy"
            return failure(f"{about} failed.", code)
        return {"about": about, "items": list(range(ITEMS)) if about == "first" else []}


class ScriptedModel:
    """A provider whose answers depend on the path of the call."""

    name, external = "scripted", True

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        """Return the answer of one turn of an agent."""
        assert request.origin is not None
        call = request.origin.call
        new_cluster().arrived(call, "model")
        await asyncio.sleep(_seconds(call))
        turn = int(call.removesuffix("/empty").rsplit("/", 1)[1])
        inner = call.count("turn") > 1
        calls = _wanted(call, turn, inner) if turn < TURNS["inner" if inner else "outer"] else ()
        usage = TokenUsage(tokens_in=TOKENS_IN, tokens_out=TOKENS_OUT)
        text = f"said {call}"
        incomplete = INCOMPLETE.get((inner, turn))
        if incomplete is Incomplete.EMPTY and not call.endswith("/empty"):
            text, calls = "", ()
        elif incomplete is Incomplete.EMPTY:
            incomplete = None
        elif incomplete and calls:
            calls = (*calls[:-1], replace(calls[-1], arguments=""))
        return ModelReply(
            text=text, model="m", usage=usage, tool_calls=calls, incomplete=incomplete
        )

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


def _wanted(call: str, turn: int, inner: bool) -> tuple[ToolCall, ...]:
    wanted = [("reads", {"about": f"{call} a"}), ("reads", {"about": f"{call} b"})]
    if not inner and turn == 2:
        wanted.append(("inner", {"input": "Go."}))
    if not inner and turn == 3:
        wanted.append(("looks", {"about": f"{call} c"}))
    if not inner and turn == 4:
        wanted = [("sends", {"about": "sent"}), ("reads", {"about": f"{call} a"})]
    return tuple(
        ToolCall(id=f"c{number}", name=name, arguments=json.dumps(args))
        for number, (name, args) in enumerate(wanted)
    )


def _seconds(about: str) -> float:
    return random.Random(about).choice([0.0, 0.0, 0.01, 0.2])


def _step(name: str, tool: str, about: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "type": "tool", "data": {"tool": tool, "args": {"about": about}}, **more}


def _edge(source: str, target: str, handle: str = "default") -> dict[str, Any]:
    return {
        "source": source,
        "source_handle": handle,
        "target": target,
        "data": {"channel": "flow"},
    }


def graph() -> dict[str, Any]:
    """Return the graph of the run."""
    inner = {"name": "inner", "prompt": {}, "tools": ["reads"], "model": {"stream": False}}
    agent = {
        "name": "outer",
        "prompt": {"system": "Work."},
        "tools": ["reads", "sends", {"agent": inner}, {"client": LOOKS}],
        "model": {"stream": False},
    }
    item = {"type": "tool", "data": {"tool": "busy", "args": {"about": "item ${index}"}}}
    instead = {"type": "tool", "data": {"tool": "reads", "args": {"about": "instead"}}}
    policy = {
        "retry_count": 1,
        "retry_delay_ms": 50,
        "on_error": "fallback",
        "fallback": instead,
    }
    asks = {"message": "May it pay?", "arguments": {"amount": 5}, "timeout_seconds": 9000}
    over = {"over": "default.items", "max_parallel": 3, "step": item}
    return {
        "max_parallel": 4,
        "steps": [
            _step("first", "reads", "first"),
            {"id": "items", "type": "map", "data": over},
            {"id": "lead", "type": "agent", "data": {"agent": agent, "input": "Go."}},
            _step("shaky", "breaks", "shaky", policy=policy),
            {"id": "agree", "type": "approval", "data": asks},
            _step("pay", "pays", "paid"),
            _step("last", "reads", "last"),
        ],
        "edges": [
            _edge("first", "items"),
            _edge("first", "shaky"),
            _edge("first", "agree"),
            _edge("agree", "pay", "approved"),
            _edge("pay", "last"),
            _edge("pay", "last", "error"),
            _edge("items", "last"),
            _edge("shaky", "last"),
        ],
    }


@cache
def _prepared() -> Any:
    """Return the prepared graph; its nodes find the story by the event loop."""
    tools = ToolRegistry(
        [
            OutsideTool("reads"),
            OutsideTool("busy", fails="first"),
            OutsideTool("breaks", fails="always"),
            OutsideTool("sends", idempotent=False),
            OutsideTool("pays", idempotent=False),
        ]
    )
    dispatch = tool_dispatch(tools, ToolPolicy(), retry_policy(initial_delay_seconds=0.05))
    agents = Agents(dispatch, timezone="UTC", wrap_up_reserve=1)
    types = [
        agent_type(agents, ("reads", "sends")),
        approval_type(),
        map_type(),
        tool_type(dispatch, timezone="UTC"),
    ]
    return NodeCatalog(types).prepare(graph(), graph_id="r0")


@cache
def _services() -> Mapping[type, Any]:
    price = TokenPrice(usd_per_million_in=Decimal(1), usd_per_million_out=Decimal(2))
    model = tier_model(provider=ScriptedModel(), model="m", price=price)
    retry = retry_policy(max_retries=0)
    return {ModelGateway: ModelGateway(dict.fromkeys(Tier, model), no_list_price, retry)}


@dataclass(frozen=True, slots=True)
class PlayedCluster:
    """A story after its end."""

    cluster: CrashingCluster
    leftover: Sequence[str]


def play_cluster(seed: int, faults: Mapping[int, Fault], **variant: Any) -> PlayedCluster:
    """Play the run of a seed, with faults at some of its writes."""

    async def main() -> CrashingCluster:
        cluster = CrashingCluster(
            seed,
            faults,
            request={"graph": {}, "inputs": {}},
            prepared=_prepared(),
            services=_services(),
            **variant,
        )
        WORLDS[cluster.loop] = cluster
        try:
            return await cluster.play()
        finally:
            del WORLDS[cluster.loop]

    story = run_seeded(main, seed)
    return PlayedCluster(story.result, story.leftover)
