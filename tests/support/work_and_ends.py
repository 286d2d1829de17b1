"""The kinds of work that a run may do when it ends, and the ends.

Each piece of work is a step ``w`` of a graph. A sibling ``g`` keeps the run executing until its
gate opens; then the step ``x`` ends the run, where that is the end.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.fake_provider.script import Step
from tests.support.graph_documents import edge

KEPT = "evidence to keep"


def _tool(name: str, text: str, step_id: str = "w", **more: Any) -> dict[str, Any]:
    return {"id": step_id, "type": "tool", "data": {"tool": name, "args": {"text": text}}, **more}


def _agent(marker: str, tools: list[Any], step_id: str = "w") -> dict[str, Any]:
    agent = {"name": "worker", "prompt": {"system": "Help."}, "tools": tools}
    return {"id": step_id, "type": "agent", "data": {"agent": agent, "input": f"Go ({marker})"}}


def _requests(name: str, **args: str) -> Step:
    return Step(tool_calls=[{"id": f"c-{name}", "name": name, "arguments": json.dumps(args)}])


@dataclass(frozen=True, kw_only=True)
class Work:
    """One kind of work."""

    step: Callable[[str], dict[str, Any]]
    """Returns the step for a marker, which is unique to the run."""
    script: tuple[Step, ...] = ()
    """The replies of the model to prompts with the marker."""
    calls: tuple[str, ...] = ()
    """Names of tools that write a note when the work is in progress."""
    waits: bool = False
    """Whether the work waits for a decision."""
    arrivals: int = 0
    """Number of model calls that arrive before the work is in progress."""
    keeps: bool = False
    """Whether a partial result has the evidence."""
    linked: Callable[[str], dict[str, Any]] | None = None
    """Returns a step that is a tool of the step; None for none."""


_ASKS_TO_PAY = (_requests("jots", text=KEPT), _requests("pays", text="never"))
_ITEMS = {"steps": [_tool("pays", "never", "item")], "edges": []}

WORK: Mapping[str, Work] = {
    "model call": Work(
        step=lambda marker: _agent(marker, ["jots"]),
        script=(_requests("jots", text=KEPT), Step(hang=True)),
        arrivals=2,
        keeps=True,
    ),
    "tool": Work(step=lambda marker: _tool("gate", marker), calls=("gate",)),
    "external tool": Work(step=lambda marker: _tool("outer_gate", marker), calls=("outer_gate",)),
    "retry sleep": Work(
        step=lambda marker: _tool(
            "breaks",
            marker,
            policy={"on_error": "retry", "retry_count": 3, "retry_delay_ms": 60_000},
        ),
        calls=("breaks",),
    ),
    "approval": Work(
        step=lambda marker: {"id": "w", "type": "approval", "data": {"message": marker}}, waits=True
    ),
    "tool that needs an approval": Work(step=lambda _: _tool("pays", "never"), waits=True),
    "question": Work(
        step=lambda marker: {
            "id": "w",
            "type": "agent",
            "data": {"agent": {"name": "q", "prompt": {}, "code": "questioner"}, "input": marker},
        },
        waits=True,
    ),
    "map": Work(
        step=lambda marker: {
            "id": "w",
            "type": "map",
            "data": {"over": "items", "max_parallel": 2, "graph": _ITEMS},
        },
        waits=True,
    ),
    "subgraph": Work(
        step=lambda marker: {
            "id": "w",
            "type": "subgraph",
            "data": {"graph": {"steps": [_agent(marker, ["jots", "pays"], "inner")], "edges": []}},
        },
        script=_ASKS_TO_PAY,
        waits=True,
    ),
    "agent": Work(
        step=lambda marker: _agent(marker, ["jots", "pays"]),
        script=_ASKS_TO_PAY,
        waits=True,
        keeps=True,
    ),
    "sub-agent": Work(
        step=lambda marker: _agent(marker, ["jots"]),
        linked=lambda _: {
            "id": "h",
            "type": "agent",
            "data": {"agent": {"name": "helper", "prompt": {"system": "Pay."}, "tools": ["pays"]}},
        },
        script=(
            _requests("jots", text=KEPT),
            _requests("helper", input="MARKER"),
            _requests("pays", text="never"),
        ),
        waits=True,
        keeps=True,
    ),
    "case": Work(
        step=lambda marker: {
            "id": "w",
            "type": "case",
            "data": {"input": f"({marker}) What is 6 times 7?"},
        },
        script=(Step(plan={"actions": [{"tool": "calculator", "args": {"expression": "6 * 7"}}]}),),
        waits=True,
    ),
}

ENDS: Mapping[str, dict[str, Any] | None] = {
    "DELETE": None,
    "deadline": None,
    "a failing sibling": _tool("breaks", "end", "x"),
    "tool calls": _tool("jots", "end", "x", sub_budget={"max_tool_calls": 0}),
    "steps": {
        "id": "x",
        "type": "subgraph",
        "data": {"graph": {"steps": [_tool("jots", "end", "inner")], "edges": []}},
        "sub_budget": {"max_steps": 0},
    },
    "seconds": _tool("gate", "never", "x", sub_budget={"max_seconds": 0.05}),
    **{
        name: {"id": "x", "type": "llm", "data": {"prompt": "end"}, "sub_budget": {limit: 0}}
        for name, limit in (
            ("model calls", "max_llm_calls"),
            ("API calls", "max_api_calls"),
            ("tokens", "max_tokens"),
        )
    },
}
"""The step ``x`` of each end that a sibling brings about; None if it comes from outside."""


def works_at(end: str) -> list[str]:
    """Return the names of the kinds of work that can be in progress at an end.

    A retry never sleeps past the deadline: the step fails instead.
    """
    return [name for name in WORK if (name, end) != ("retry sleep", "deadline")]


def body_of(name: str, end: str, run_id: str) -> dict[str, Any]:
    """Return the request for a run with this work, whose gate has the name of the run."""
    steps, edges = [WORK[name].step(run_id)], []
    if (linked := WORK[name].linked) is not None:
        steps.append(linked(run_id))
        tools = {"source_handle": "tools", "target_handle": "tools"}
        edges.append({"source": "h", "target": "w", **tools, "data": {"channel": "link"}})
    if (last := ENDS[end]) is not None:
        steps += [_tool("gate", f"{run_id}-end", "g"), last]
        edges.append(edge("g", "x", channel="flow"))
    graph = {"steps": steps, "edges": edges, "max_parallel": 4}
    inputs = {"items": [1, 2]} if name == "map" else {}
    return {"kind": "graph", "run_id": run_id, "graph": graph, "inputs": inputs}
