"""Runs from the table of work and ends, on processes that fail at their writes, by a seed.

The work, the end, its time and the faults are drawn. Tools and models are those of the table in
virtual time. Some kinds of work need parts that the simulated processes lack (accounts, code
agents, threads, cases), and a deadline is a real time; the acceptance tests run these.
"""

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from typing import Any

from caseworker.models.gateway import ModelGateway, Tier
from caseworker.models.ports import ModelReply, ModelRequest, TokenUsage, ToolCall
from caseworker.models.pricing import TokenPrice, no_list_price
from caseworker.models.table import ChatModel
from caseworker.nodes.agent.execution import Agents
from caseworker.nodes.agent.node import agent_type
from caseworker.nodes.approval import approval_type
from caseworker.nodes.catalog import NodeCatalog
from caseworker.nodes.llm import llm_type
from caseworker.nodes.subgraph import map_type, subgraph_type
from caseworker.nodes.toolset import tool_type
from caseworker.platform.errors import StoreUnavailableError
from caseworker.tools.ports import Tool, ToolContext, ToolResult, failure
from caseworker.tools.registry import ToolPolicy, ToolRegistry
from tests.support.crashing_cluster import CrashingCluster
from tests.support.crashing_wire import KEY, ConnectionLostError, Fault
from tests.support.event_log import event_problems
from tests.support.fake_provider.script import Step
from tests.support.gated_tools import Breaks, Gate, Jots, OuterGate, Pays
from tests.support.graph_invariants import unlike_journal, violations
from tests.support.limits import retry_policy, tier_model, tool_dispatch
from tests.support.seeded_loop import run as run_seeded
from tests.support.work_and_ends import (
    DEAR,
    ENDED,
    ENDS,
    KEPT,
    WORK,
    body_of,
    scripts_of,
)

RUN_ID = KEY.run_id
NEEDS_MORE = {"quota wait", "question", "thread", "thread that waits", "case"}
SIMULATED_WORK = [name for name in WORK if name not in NEEDS_MORE]
SIMULATED_ENDS = [end for end in ENDS if end != "deadline"]
WRITES = 14
FLIGHT_SECONDS = 2.0
"""Seconds between a limit and the end of the calls in flight."""
UNKNOWN = "Outcome unknown"

_CLUSTERS: dict[Any, "EndingCluster"] = {}


def _cluster() -> "EndingCluster":
    return _CLUSTERS[asyncio.get_running_loop()]


@dataclass(kw_only=True)
class EndingCluster(CrashingCluster):
    """A cluster whose client ends the run instead of deciding its approvals."""

    end: str
    ends_at: float
    """Virtual time of the DELETE, or at which the gate before the step ``x`` opens."""
    replies: Mapping[str, list[Step]]
    asked_for: dict[str, Step] = field(default_factory=dict)
    """The reply of each call of a model, which repeated calls get again."""
    used: dict[str, int] = field(default_factory=dict)

    async def _decide(self) -> None:
        if self.end != "DELETE" or self.loop.time() < self.ends_at:
            return
        process = next((each for each in self.processes if not each.closed), None)
        if process is None or self.run.cancel_request is not None:
            return
        try:
            await process.answer_to(process.service.cancel(KEY, by="ops"))
        except (ConnectionLostError, StoreUnavailableError):
            return

    def is_open(self, gate: str) -> bool:
        """Return whether a gate is open; that of the work opens only after a limit."""
        if gate.endswith("-end"):
            return self.loop.time() >= self.ends_at
        after = self.loop.time() >= self.ends_at + FLIGHT_SECONDS
        return gate == RUN_ID and self.end != "DELETE" and after

    def reply_to(self, call_key: str, prompt: str) -> Step:
        """Return the next reply of the script whose marker the prompt has."""
        if call_key not in self.asked_for:
            marker = next(each for each in reversed([*self.replies]) if each in prompt)
            script, used = self.replies[marker], self.used.get(marker, 0)
            self.asked_for[call_key] = script[min(used, len(script) - 1)]
            self.used[marker] = used + 1
        return self.asked_for[call_key]


class SimulatedTool:
    """A tool of the table in virtual time."""

    def __init__(self, tool: Tool) -> None:
        self.spec = tool.spec

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Behave as the tool of the same name."""
        cluster, place = _cluster(), context.artifacts
        cluster.arrived(place.call_key, self.spec.name)  # type: ignore[union-attr]
        while "gate" in self.spec.name and not cluster.is_open(args["text"]):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        if self.spec.name == "breaks":
            return failure("It broke.", "broken")
        return {"text": args["text"]}


class SimulatedModel:
    """A provider with the replies of the table."""

    name, external = "simulated", True

    async def complete(self, model: str, request: ModelRequest) -> ModelReply:
        """Return the scripted reply, after its delay."""
        assert request.origin is not None
        cluster, call_key = _cluster(), request.origin.call
        cluster.arrived(call_key, "model")
        prompt = " ".join(str(message.content) for message in request.messages)
        step = cluster.reply_to(call_key, prompt)
        await asyncio.sleep(1000 if step.hang else step.delay_seconds)
        calls = tuple(
            ToolCall(id=call["id"], name=call["name"], arguments=call["arguments"])
            for call in step.tool_calls
        )
        usage = TokenUsage(tokens_in=10, tokens_out=10)
        return ModelReply(text=step.text or "", model="m", usage=usage, tool_calls=calls)

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


@cache
def _catalog() -> NodeCatalog:
    kinds = (Gate, OuterGate, Breaks, Pays, Jots)
    tools = ToolRegistry([SimulatedTool(kind()) for kind in kinds])
    dispatch = tool_dispatch(tools, ToolPolicy(), retry_policy(initial_delay_seconds=0.05))
    agents = Agents(dispatch, timezone="UTC", wrap_up_reserve=1)
    types = [agent_type(agents, ("jots", "pays")), tool_type(dispatch, timezone="UTC")]
    return NodeCatalog([*types, approval_type(), map_type(), subgraph_type(), llm_type(agents)])


@cache
def _services() -> Mapping[type, Any]:
    price = TokenPrice(usd_per_million_in=Decimal(0), usd_per_million_out=Decimal(100))
    model = tier_model(provider=SimulatedModel(), model="m", price=price, timeout_seconds=2000.0)
    models: dict[str, ChatModel] = {**dict.fromkeys(Tier, model), DEAR["name"]: model}
    return {ModelGateway: ModelGateway(models, no_list_price, retry_policy(max_retries=0))}


@dataclass(frozen=True, kw_only=True)
class Story:
    """One run, its end, and the faults of its processes."""

    work: str
    end: str
    ends_at: float
    faults: Mapping[int, Fault]


def story_of(seed: int) -> Story:
    """Draw a story from the table."""
    chance = random.Random(f"work and ends {seed}")
    count = chance.choice([0, 1, 1, 2])
    return Story(
        work=chance.choice(SIMULATED_WORK),
        end=chance.choice(SIMULATED_ENDS),
        ends_at=chance.choice([0.0, 0.3, 1.0, 3.0, chance.uniform(0, 10)]),
        faults={chance.randrange(WRITES): chance.choice(list(Fault)) for _ in range(count)},
    )


def played(seed: int) -> EndingCluster:
    """Play the story of a seed, and require that no task is left over."""
    story = story_of(seed)
    body = body_of(story.work, story.end, RUN_ID)

    async def main() -> EndingCluster:
        cluster = EndingCluster(
            seed,
            story.faults,
            request={"graph": {}, "inputs": body["inputs"]},
            prepared=_catalog().prepare(body["graph"], graph_id=RUN_ID),
            services=_services(),
            end=story.end,
            ends_at=story.ends_at,
            replies=scripts_of(story.work, story.end, RUN_ID),
        )
        _CLUSTERS[cluster.loop] = cluster
        try:
            await cluster.play()
            return cluster
        finally:
            del _CLUSTERS[cluster.loop]

    told = run_seeded(main, seed)
    assert told.leftover == (), f"seed {seed}: {told.leftover}"
    return told.result


def problems(cluster: EndingCluster, story: Story) -> Iterator[str]:
    """Yield each broken promise of a run that has ended."""
    row, run = cluster.database.rows[KEY], cluster.run
    expected = [ENDED.get(story.end, ("halted", "budget"))]
    if story.work == "external tool" and story.faults:  # its outcome may be unknown
        expected.append(("failed", "error"))
    if (str(run.status), (run.stop or {}).get("kind")) not in expected:
        yield f"it is {run.status}: {run.stop} {run.result}"
        return
    yield from event_problems([row.events[seq] for seq in sorted(row.events)], run.status)
    yield from violations(row.snapshots[-1])
    nodes = {each.node_id: each.node for each in row.calls.values()}
    yield from unlike_journal(row.snapshots[-1], nodes)
    names = [each.name for each in cluster.arrivals]
    if "pays" in names:
        yield "it paid without an approval"
    if names.count("outer_gate") > 1:
        yield "a tool with an effect was called again"
    jotted = [
        str(each.call_key)
        for each in row.calls.values()
        if each.node["name"] == "jots" and str(each.call_key).startswith("w") and each.outcome
    ]
    stored = str(run.result)  # a message of an agent names the call that holds its text
    if WORK[story.work].keeps and jotted and jotted[0] not in stored and KEPT not in stored:
        yield f"its evidence is lost: {run.result}"
