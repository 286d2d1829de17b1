"""Parts of the OpenAPI document about runs: headers, the event stream and examples."""

from collections.abc import Mapping
from typing import Any

from fastapi.openapi.models import Example

RUN_HEADERS = {
    "Location": {"description": "URL of the run.", "schema": {"type": "string"}},
    "Preference-Applied": {
        "description": "The wait time that was applied, if the request had a Prefer header.",
        "schema": {"type": "string"},
    },
    "RateLimit": {
        "description": "Remaining runs of a rate-limited tenant (r), and the seconds until more "
        "are available (t).",
        "schema": {"type": "string", "examples": ['"runs";r=59;t=1']},
    },
    "RateLimit-Policy": {
        "description": "Rate limit of the tenant: runs (q) per window in seconds (w).",
        "schema": {"type": "string", "examples": ['"runs";q=60;w=60']},
    },
}
"""OpenAPI description of the headers in a response to POST /runs."""

SERVER_SENT_EVENT_SCHEMA: Mapping[str, Any] = {
    "title": "ServerSentEvent",
    "type": "object",
    "description": "A server-sent event with the fields `id`, `event` and `data`.",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string", "description": "Sequence number of the event (`seq`)."},
        "event": {"type": "string", "description": "Type of the event, such as `step.started`."},
        "data": {
            "type": "string",
            "description": "The event as JSON.",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/EventView"},
        },
    },
}

EVENT_STREAM: Mapping[str, Any] = {
    "schema": {
        "type": "string",
        "description": "Events until the run ends. Comments between events keep the connection "
        "open.",
        "contentMediaType": "text/event-stream",
        "contentSchema": {
            "type": "array",
            "items": {"$ref": "#/components/schemas/ServerSentEvent"},
        },
    }
}
"""OpenAPI description of a stream of server-sent events."""

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
            "target": "total",
            "data": {"channel": "flow"},
        }
    ],
}

RUNS: dict[str, Example] = {
    "graph": Example(
        summary="An inline graph with two sequential calculations",
        value={"kind": "graph", "graph": _GRAPH, "inputs": {"default": "1840"}},
    ),
    "registered graph": Example(
        summary="A registered graph, referenced by name",
        value={
            "kind": "graph",
            "graph": {"name": "discount", "version": 3},
            "input": "1840",
            "budget": {"max_steps": 100, "max_cost_usd": 0.5},
        },
    ),
    "going on": Example(
        summary="Resume an ended run from a node with a higher limit",
        value={
            "from": {"run_id": "case-2025-09-08.1", "until": "n000004"},
            "budget": {"max_tool_calls": 8},
        },
    ),
}

_AGENT: dict[str, Any] = {
    "name": "cashier",
    "description": "Calculates the cost of an order.",
    "prompt": {"system": "You are the cashier of ${shop}. Calculate with tools, never by heart."},
    "inputs": {"shop": {"type": "string", "description": "The name of the shop."}},
    "tools": ["calculator"],
    "limits": {"max_turns": 6, "timeout_ms": 60_000, "budget": {"max_cost_usd": 0.05}},
}

RUNS["agent"] = Example(
    summary="An inline agent",
    value={
        "kind": "agent",
        "agent": _AGENT,
        "input": "What do 3 at 4.20 and 2 at 11.50 cost together?",
        "inputs": {"shop": "Corner Books"},
    },
)
RUNS["registered agent"] = Example(
    summary="A registered agent, referenced by name, with conversation history",
    value={
        "kind": "agent",
        "agent": {"name": "cashier", "version": 2},
        "messages": [
            {"role": "user", "content": "What do 3 at 4.20 cost?"},
            {"role": "assistant", "content": "12.60"},
            {"role": "user", "content": "And 2 more?"},
        ],
        "inputs": {"shop": "Corner Books"},
    },
)

NEW_AGENTS: dict[str, Example] = {
    "agent": Example(summary="An agent with a tool and a variable", value={"agent": _AGENT})
}

NEW_GRAPHS: dict[str, Example] = {
    "graph": Example(
        summary="Two sequential calculations",
        value={
            "name": "discount",
            "description": "Calculates a discount and subtracts it.",
            "graph": _GRAPH,
        },
    ),
}

GRAPHS_TO_VALIDATE: dict[str, Example] = {
    "graph": Example(summary="Two sequential calculations", value={"graph": _GRAPH}),
}
