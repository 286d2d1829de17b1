"""The kinds of work that a run may do when it ends, and the ends.

Each piece of work is a step ``w`` of a graph. A sibling ``g`` keeps the run executing until its
gate opens; then the step ``x`` ends the run, where that is the end. The acceptance tests run the
table with real processes, and the seeded simulation draws from it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.fake_provider.script import Step
from tests.support.graph_documents import edge

KEPT = "evidence to keep"
DEAR = {"name": "dear"}
"""The model that has a price; a quota can limit its calls."""


def _tool(name: str, text: str, step_id: str = "w", **more: Any) -> dict[str, Any]:
    return {"id": step_id, "type": "tool", "data": {"tool": name, "args": {"text": text}}, **more}


def _agent(marker: str, tools: list[Any], step_id: str = "w", **more: Any) -> dict[str, Any]:
    agent = {"name": "worker", "prompt": {"system": "Help."}, "tools": tools, **more}
    return {"id": step_id, "type": "agent", "data": {"agent": agent, "input": f"Go ({marker})"}}


def _chatting(tools: list[Any]) -> dict[str, Any]:
    agent = {"name": "chatting", "prompt": {"system": "Help."}, "tools": tools}
    return {"id": "w", "type": "agent", "data": {"agent": agent}}


def _around(kind: str, *steps: dict[str, Any], **data: Any) -> dict[str, Any]:
    return {"id": "w", "type": kind, "data": {**data, "graph": {"steps": [*steps], "edges": []}}}


def _helper(tools: list[Any]) -> dict[str, Any]:
    agent = {"name": "helper", "prompt": {"system": "Pay."}, "tools": tools}
    return {"id": "h", "type": "agent", "data": {"agent": agent}}


def dear_call(prompt: str, step_id: str = "w") -> dict[str, Any]:
    """Return a step with one call of the model that has a price."""
    data = {"prompt": prompt, "model": {**DEAR, "max_output_tokens": 1000}}
    return {"id": step_id, "type": "llm", "data": data}


def _requests(name: str, args: dict[str, str]) -> Step:
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
    waits_for_quota: bool = False
    """Whether the work waits for the calls of another run."""
    arrivals: int = 0
    """Number of model calls that arrive before the work is in progress."""
    keeps: bool = False
    """Whether a partial result has the evidence."""
    in_thread: bool = False
    """Whether the run answers a message of a thread; the message keeps the evidence, too."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    linked: Callable[[str], dict[str, Any]] | None = None
    """Returns a step that is a tool of the step; None for none."""


_JOTS = _requests("jots", args={"text": KEPT})
_PAYS = _requests("pays", args={"text": "never"})
_ASKS_HELPER = _requests("helper", args={"input": "MARKER"})
_HANGS = Step(hang=True)
_STREAMS = Step(text=f"{KEPT}, and a long rest of it" + " and more" * 9, after_events=8)
_TWO: Mapping[str, Any] = {"over": "items", "max_parallel": 2}

WORK: Mapping[str, Work] = {
    "model call": Work(
        step=lambda marker: _agent(marker, ["jots"]),
        script=(_JOTS, _HANGS),
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
    "quota wait": Work(step=dear_call, waits_for_quota=True),
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
        step=lambda marker: _around("map", _tool("pays", "never", "item"), **_TWO),
        inputs={"items": [1, 2]},
        waits=True,
    ),
    "map of tools": Work(
        step=lambda marker: _around("map", _tool("gate", marker, "item"), **_TWO),
        inputs={"items": [1, 2]},
        calls=("gate", "gate"),
    ),
    "subgraph": Work(
        step=lambda marker: _around("subgraph", _agent(marker, ["jots", "pays"], "inner")),
        script=(_JOTS, _PAYS),
        waits=True,
    ),
    "subgraph with a model call": Work(
        step=lambda marker: _around("subgraph", _agent(marker, ["jots"], "inner")),
        script=(_JOTS, _HANGS),
        arrivals=2,
    ),
    "agent": Work(
        step=lambda marker: _agent(marker, ["jots", "pays"]),
        script=(_JOTS, _PAYS),
        waits=True,
        keeps=True,
    ),
    "sub-agent": Work(
        step=lambda marker: _agent(marker, ["jots"]),
        linked=lambda _: _helper(["pays"]),
        script=(_JOTS, _ASKS_HELPER, _PAYS),
        waits=True,
        keeps=True,
    ),
    "sub-agent with a model call": Work(
        step=lambda marker: _agent(marker, ["jots"]),
        linked=lambda _: _helper(["jots"]),
        script=(_JOTS, _ASKS_HELPER, _HANGS),
        arrivals=3,
        keeps=True,
    ),
    "thread": Work(
        step=lambda _: _chatting(["jots"]),
        script=(_STREAMS,),
        arrivals=1,
        keeps=True,
        in_thread=True,
    ),
    "thread that waits": Work(
        step=lambda _: _chatting(["pays"]),
        script=(replace(_PAYS, text=KEPT),),
        waits=True,
        keeps=True,
        in_thread=True,
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

_ENDS = {"system": "END MARKER"}

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
    "cost": {**dear_call("end", "x"), "sub_budget": {"max_cost_usd": 0.0}},
    "turns": _agent("go on", ["jots"], "x", prompt=_ENDS, limits={"max_turns": 1}),
    "loop": _agent("go on", ["jots"], "x", prompt=_ENDS),
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

END_SCRIPT = (_requests("jots", args={"text": "again"}),)
"""The replies of the model to the prompts of the step ``x``, which have the marker of its end."""

ENDED: Mapping[str, tuple[str, str]] = {
    "DELETE": ("cancelled", "cancelled"),
    "deadline": ("halted", "deadline"),
    "a failing sibling": ("failed", "error"),
    "loop": ("halted", "loop"),
}
"""Status and stop of a run after each end; after other ends, it is halted by its budget."""


def works_at(end: str) -> list[str]:
    """Return the names of the kinds of work that can be in progress at an end.

    A retry never sleeps past the deadline: the step fails instead.
    """
    return [name for name in WORK if (name, end) != ("retry sleep", "deadline")]


def scripts_of(name: str, end: str, run_id: str) -> Mapping[str, list[Step]]:
    """Return the replies of the model by marker; a call in flight finishes after a limit."""
    is_limit = end not in ("DELETE", "deadline")
    script = [_at_limit(step) if is_limit else step for step in WORK[name].script]
    return {run_id: [_marked(step, run_id) for step in script], f"END {run_id}": [*END_SCRIPT]}


def _at_limit(step: Step) -> Step:
    if step.hang:
        return replace(step, hang=False, delay_seconds=4, text="Done.")
    slow = step.after_events is not None
    return replace(step, after_events=None, chunk_seconds=0.5) if slow else step


def _marked(value: Any, run_id: str) -> Any:
    if isinstance(value, Step):
        return replace(value, tool_calls=_marked(value.tool_calls, run_id))
    return json.loads(json.dumps(value).replace("MARKER", run_id))


def body_of(name: str, end: str, run_id: str) -> dict[str, Any]:
    """Return the request for a run with this work, whose gate has the name of the run.

    A message of a thread gets the run in its thread; then the request has its content.
    """
    work = WORK[name]
    steps, edges = [work.step(run_id)], []
    if work.linked is not None:
        steps.append(work.linked(run_id))
        tools = {"source_handle": "tools", "target_handle": "tools"}
        edges.append({"source": "h", "target": "w", **tools, "data": {"channel": "link"}})
    if (last := ENDS[end]) is not None:
        steps += [_tool("gate", f"{run_id}-end", "g"), _marked(last, run_id)]
        edges.append(edge("g", "x", channel="flow"))
    if work.in_thread:
        steps.append({"id": "chat", "type": "chat_start", "data": {}})
        entries = ["w"] if last is None else ["w", "g"]
        edges += [edge("chat", entry, channel="flow") for entry in entries]
    graph = {"steps": steps, "edges": edges, "max_parallel": 4}
    if work.in_thread:
        return {"run_id": run_id, "graph": graph, "content": f"Go ({run_id})"}
    return {"kind": "graph", "run_id": run_id, "graph": graph, "inputs": dict(work.inputs)}
