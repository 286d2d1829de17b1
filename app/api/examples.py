"""Requests that the OpenAPI document shows."""

from typing import Any

from fastapi.openapi.models import Example

_GRAPH: dict[str, Any] = {
    "steps": [
        {
            "id": "discount",
            "type": "tool",
            "data": {"tool": "calculator", "args": {"expression": "${default} * 12.5 / 100"}},
        },
        {
            "id": "total",
            "type": "tool",
            "data": {"tool": "calculator", "args": {"expression": "1840 - ${default.value}"}},
        },
    ],
    "edges": [
        {
            "source": "discount",
            "source_handle": "default",
            "target": "total",
            "target_handle": "default",
            "data": {"channel": "flow"},
        }
    ],
}

RUNS: dict[str, Example] = {
    "arithmetic": Example(
        summary="A calculation", value={"input": "What is 12.5 % of 1840, plus 7?"}
    ),
    "checked": Example(
        summary="A case whose answer is known, under an id of the caller's, within limits",
        value={
            "run_id": "case-2025-09-08.1",
            "input": "Which day comes 45 days after 2025-09-08?",
            "expected_tools": ["calendar"],
            "gold_answer": "Thursday, October 23, 2025",
            "mode": "fallback_only",
            "budget": {"max_seconds": 30, "max_tool_calls": 4, "max_cost_usd": 0.05},
            "deadline": "2030-01-01T12:00:00Z",
            "timezone": "Europe/Paris",
            "seed": 7,
            "metadata": {"ticket": "A-1024"},
        },
    ),
    "graph": Example(
        summary="A graph that is sent along: two calculations, one after the other",
        value={"kind": "graph", "graph": _GRAPH, "inputs": {"default": "1840"}},
    ),
    "registered graph": Example(
        summary="A registered graph, by its name",
        value={
            "kind": "graph",
            "graph": {"name": "discount", "version": 3},
            "input": "1840",
            "budget": {"max_steps": 100, "max_cost_usd": 0.5},
        },
    ),
}

NEW_GRAPHS: dict[str, Example] = {
    "graph": Example(
        summary="Two calculations, one after the other",
        value={
            "name": "discount",
            "description": "Works out a discount and takes it off.",
            "graph": _GRAPH,
        },
    ),
}

GRAPHS_TO_VALIDATE: dict[str, Example] = {
    "graph": Example(summary="Two calculations, one after the other", value={"graph": _GRAPH}),
}
