"""What the customers of the chaos ask for: runs of each kind, with names that tell them apart.

Every prompt holds the run's name and the place that asks, which the provider's log repeats.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from tests.support.graph_documents import edge

Json = dict[str, Any]
AGENT = {"name": "worker", "prompt": {"system": "Work."}, "tools": ["once", "again"]}
LIMITS = {"max_llm_calls_small": 3, "max_api_calls": 4, "max_cost_usd": 0.02, "max_tokens": 9_000}


@dataclass(slots=True, kw_only=True)
class Posted:
    """One thing that a customer asked for, and what it knows of it."""

    name: str
    kind: str
    body: Json
    key: str | None = None
    """Its idempotency key."""
    lanes: int = 1
    """How many calls it may make side by side."""
    path: str = "/runs"
    run_ids: set[str] = field(default_factory=set)
    """Which runs the answers named: one, however often it was asked."""
    acknowledged_at: float | None = None
    cancelled_at: float | None = None
    """When the receipt was there; None without one, or if the run had ended before."""
    cancelled_first: bool = False
    """Whether that was before the run was posted."""
    followed: list[int] | None = None
    """The numbers of its events in the order in which a follower got them, once it got all."""

    @property
    def run_id(self) -> str:
        """The run that was acknowledged."""
        return min(self.run_ids)


def some_request(name: str, chance: random.Random) -> Posted:
    """Return something to ask for."""
    kinds = {"case": 3, "parallel": 3, "map": 4, "agent": 4, "thread": 2}
    kind = chance.choices(list(kinds), list(kinds.values()))[0]
    match kind:
        case "case":
            body: Json = {"input": f"What is 6 times 7? ({name} <case>)", "gold_answer": "42"}
            posted = Posted(name=name, kind=kind, body=body)
        case "parallel":
            posted = Posted(name=name, kind=kind, body=_parallel(name), lanes=3)
        case "map":
            lanes = chance.randint(1, 4)
            posted = Posted(name=name, kind=kind, body=_map(name, chance, lanes), lanes=lanes)
        case _:
            posted = Posted(name=name, kind=kind, body=_agent(name, chance))
    if kind == "thread":
        content = posted.body["inputs"]["default"]
        return Posted(
            name=name,
            kind=kind,
            body={"content": content},
            key=f"key-{name}",
            path=f"/threads/{name}/messages",
        )
    chosen = chance.choice(("id", "key", "both"))
    if chosen != "key":
        posted.body["run_id"] = name
    if chosen != "id":
        posted.key = f"key-{name}"
    return posted


def limited_map(name: str, chance: random.Random) -> Posted:
    """Return a map with more items than it may ask a model for."""
    body = {**_map(name, chance, 2), "run_id": name, "budget": {"max_llm_calls_small": 3}}
    body["inputs"] = {"default": [name] * 6}
    return Posted(name=name, kind="map", body=body, lanes=2)


def going_on_from(old: Posted, name: str) -> Posted:
    """Return the request to go on from a map that has ended, under another name."""
    items = len(old.body["inputs"]["default"])
    body = {
        "run_id": name,
        "from": {"run_id": old.run_id},
        "inputs": {"default": [name] * items},
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
    graph = {"steps": steps, "edges": edges, "max_parallel": 3}
    return {"kind": "graph", "graph": graph, "inputs": {"default": name}}


def _map(name: str, chance: random.Random, lanes: int) -> Json:
    inner = {"type": "llm", "data": {"prompt": "${default} <m/${index}>"}}
    data = {"step": inner, "max_parallel": lanes}
    graph = {"steps": [{"id": "m", "type": "map", "data": data}], "edges": []}
    chosen = chance.sample(sorted(LIMITS), chance.randint(0, 2))
    return {
        "kind": "graph",
        "graph": graph,
        "inputs": {"default": [name] * chance.randint(2, 8)},
        "budget": {limit: LIMITS[limit] for limit in chosen},
    }


def _agent(name: str, chance: random.Random) -> Json:
    tools = ",".join(chance.choices(("once", "again"), k=chance.randint(1, 3)))
    step = {"id": "a", "type": "agent", "data": {"agent": AGENT, "inputs": {}}}
    return {
        "kind": "graph",
        "graph": {"steps": [step], "edges": []},
        "inputs": {"default": f"{name} <a> tools={tools};"},
    }


def _asks(step_id: str, prompt: str) -> Json:
    return {"id": step_id, "type": "llm", "data": {"prompt": prompt}}
