"""The data that the oracles check: the database, the provider's log, and the customers' records."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.invariants import node_violations
from caseworker.core.trace.snapshot import Snapshot
from caseworker.runs.run import EventRecord, RunKey
from tests.chaos.customers import Customers
from tests.chaos.requests import Posted
from tests.chaos.watch import Watch
from tests.chaos.weather import TOOL_MODEL
from tests.chaos.world import ChaosWorld
from tests.support.event_log import stored_events
from tests.support.fake_provider.arrivals import Arrival

_RUNS = """
SELECT run_id, status, fence, coalesce(usage, '{}'), stop, idempotency_key, ARRAY(
    SELECT node FROM journal j
    WHERE j.tenant_id = runs.tenant_id AND j.run_id = runs.run_id ORDER BY seq), ARRAY(
    SELECT node || jsonb_build_object('call_key', call_key) FROM journal j
    WHERE j.tenant_id = runs.tenant_id AND j.run_id = runs.run_id AND call_key IS NOT NULL
        AND node->>'kind' IN ('llm', 'tool') ORDER BY seq)
FROM runs WHERE request IS NOT NULL
"""
_TURN = re.compile(r"(?:a|agent)/turn/(\d+)")
_PLACE = re.compile(r"case|join|s\d|m/\d+")

Json = Mapping[str, Any]
Place = tuple[str, str]
"""The request's name and the place in it; for an agent with the turn, ``a 0``."""


class StoredRun(NamedTuple):
    """A run as stored in the database."""

    run_id: str
    status: str
    fence: int
    """The number of its owners so far."""
    usage: Json
    stop: Json | None
    key: str | None
    nodes: list[Json]
    """Its CallNodes."""
    calls: list[Json]
    """The calls of models and tools, each with its ``call_key``."""

    @property
    def unsound(self) -> list[str]:
        """The violations of invariants by its nodes."""
        return node_violations({node["node_id"]: node for node in self.nodes})

    @property
    def snapshot(self) -> Snapshot | None:
        """Its ExecutionGraph; None if the nodes do not form one."""
        if not self.nodes or self.unsound:
            return None
        return ExecutionGraph.restore(self.run_id, map(dict, self.nodes)).snapshot()


@dataclass(slots=True)
class Evidence:
    """All data, read once after the storm."""

    world: ChaosWorld
    customers: Customers
    watch: Watch
    runs: Mapping[str, StoredRun]
    events: Mapping[RunKey, tuple[str, list[EventRecord]]]
    arrivals: Sequence[Arrival]
    every: defaultdict[str, list[Arrival]] = field(default_factory=lambda: defaultdict(list))
    """All calls, by the name of the request."""
    at: defaultdict[Place, list[Arrival]] = field(default_factory=lambda: defaultdict(list))
    """All calls, by place."""

    @property
    def acknowledged(self) -> list[Posted]:
        """The requests that were acknowledged."""
        return [posted for posted in self.customers.posted if posted.run_ids]

    def asked(self, posted: Posted) -> list[Arrival]:
        """Return the model calls of a request, without its tool calls."""
        return [one for one in self.every[posted.name] if one.model != TOOL_MODEL]

    @classmethod
    async def gathered(cls, world: ChaosWorld, customers: Customers, watch: Watch) -> "Evidence":
        """Read all data."""
        runs = {row[0]: StoredRun(*row) for row in await world.database.run(_RUNS)}
        arrivals = await world.provider.arrivals()
        events = stored_events(world.database.url)
        evidence = cls(world, customers, watch, runs, events, arrivals)
        for arrival in arrivals:
            name, _, place = (arrival.marker or "? ?").partition(" ")
            evidence.every[name].append(arrival)
            evidence.at[name, place].append(arrival)
        return evidence


def step_of(call_key: str) -> str:
    """Return the place in the prompt of a model call, without its turn."""
    found = _PLACE.match(call_key)
    return found[0] if found else "a"


def place_of(node: Json) -> str | None:
    """Return the place of a call as the provider's log names it."""
    turn = _TURN.match(node["call_key"])
    if node["kind"] == "tool":
        return f"a-{int(turn[1]) - 1}" if turn and node["name"] in ("once", "again") else None
    return f"a {int(turn[1]) - 1}" if turn else f"{step_of(node['call_key'])} 0"
