"""The requests of the chaos customers: runs of each kind, with unique names.

Every prompt contains the run's name and the place that asks, and the provider's log repeats both.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from tests.support.graph_documents import edge

Json = dict[str, Any]
AGENT = {"name": "worker", "prompt": {"system": "Work."}, "tools": ["once", "again"]}
LIMITS = {"max_llm_calls_small": 3, "max_api_calls": 4, "max_cost_usd": 0.0006, "max_tokens": 600}
KINDS = {"case": 3, "parallel": 3, "map": 5, "agent": 7, "thread": 2, "long": 4}
"""The relative frequency of each kind."""


@dataclass(slots=True, kw_only=True)
class Posted:
    """One request of a customer, with the customer's records of it."""

    name: str
    kind: str
    body: Json
    key: str | None = None
    """Its idempotency key."""
    lanes: int = 1
    """The number of calls that it may make in parallel."""
    path: str = "/runs"
    run_ids: set[str] = field(default_factory=set)
    """The run IDs in the answers; a request has one run, however often it is repeated."""
    cancelled_at: float | None = None
    """When the cancel receipt arrived; None without one, or if the run had ended before."""
    cancelled_first: bool = False
    """Whether the cancellation came before the run was posted."""
    followed: list[int] | None = None
    """The event numbers in the order in which a follower received them; None without a follower."""

    @property
    def run_id(self) -> str:
        """The ID of the acknowledged run."""
        return min(self.run_ids)


def some_request(name: str, chance: random.Random) -> Posted:
    """Return a random request."""
    kind, lanes = chance.choices(list(KINDS), list(KINDS.values()))[0], 1
    match kind:
        case "case":
            body: Json = {"input": f"What is 6 times 7? ({name} <case>)", "gold_answer": "42"}
        case "parallel":
            body, lanes = _parallel(name), 3
        case "map":
            lanes, limits = (
                chance.randint(1, 4),
                chance.sample(sorted(LIMITS), chance.randint(0, 2)),
            )
            body = _map(name, chance.randint(2, 8), lanes, **{key: LIMITS[key] for key in limits})
        case "long":
            lanes = chance.randint(1, 2)
            body = _map(f"{name} slowly", 14, lanes)
        case "thread":
            return Posted(
                name=name,
                kind=kind,
                body={"content": _asks_for_tools(name, chance)},
                key=f"key-{name}",
                path=f"/threads/{name}/messages",
            )
        case _:
            step = {"id": "a", "type": "agent", "data": {"agent": AGENT, "inputs": {}}}
            body = _graph([step], _asks_for_tools(name, chance))
    posted = Posted(name=name, kind=kind, body=body, lanes=lanes)
    chosen = chance.choice(("id", "key", "both"))
    if chosen != "key":
        body["run_id"] = name
    if chosen != "id":
        posted.key = f"key-{name}"
    return posted


def limited_map(name: str, limit: str) -> Posted:
    """Return a map with more items than its limit allows."""
    body = {**_map(name, 8, 2, **{limit: LIMITS[limit]}), "run_id": name}
    return Posted(name=name, kind="map", body=body, lanes=2)


def going_on_from(old: Posted, name: str) -> Posted:
    """Return the request to fork a finished map under another name."""
    body = {
        "run_id": name,
        "from": {"run_id": old.run_id},
        "inputs": {"default": [name] * len(old.body["inputs"]["default"])},
        "budget": dict.fromkeys(LIMITS),
    }
    return Posted(name=name, kind="from", body=body, lanes=old.lanes)


def _parallel(name: str) -> Json:
    sources = [f"s{number}" for number in range(4)]
    steps = [_asks(source, f"${{default}} <{source}>") for source in sources]
    for step in steps[:2]:
        step["policy"] = {
            "retry_count": 1,
            "retry_delay_ms": 20,
            "on_error": "fallback",
            "fallback": {"type": "llm", "data": dict(step["data"])},
        }
    steps[2]["policy"] = {"on_error": "skip", "fallback_value": name}
    steps.append(_asks("join", " ".join(f"${{{source}}}" for source in sources) + " <join>"))
    edges = [
        {**edge(source, "join", channel="flow"), "target_handle": source} for source in sources
    ]
    return _graph(steps, name, edges=edges, max_parallel=3)


def _map(item: str, items: int, lanes: int, **budget: float) -> Json:
    inner = {"type": "llm", "data": {"prompt": "${default} <m/${index}>"}}
    step = {"id": "m", "type": "map", "data": {"step": inner, "max_parallel": lanes}}
    return {**_graph([step], [item] * items), "budget": budget}


def _asks_for_tools(name: str, chance: random.Random) -> str:
    tools = chance.choices(("once", "again"), (2, 1), k=chance.randint(2, 6))
    return f"{name}{chance.choice(('', ' slowly'))} <a> tools={','.join(tools)};"


def _asks(step_id: str, prompt: str) -> Json:
    return {"id": step_id, "type": "llm", "data": {"prompt": prompt}}


def _graph(steps: list[Json], default: object, **members: object) -> Json:
    graph = {"steps": steps, "edges": [], **members}
    return {"kind": "graph", "graph": graph, "inputs": {"default": default}}
