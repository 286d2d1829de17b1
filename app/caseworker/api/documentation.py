"""Add errors, headers and examples that routes do not declare to the OpenAPI document."""

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.models import Example
from fastapi.routing import APIRoute

from caseworker.api.problems import (
    ANONYMOUS_REFUSED,
    BODY_TOO_LARGE,
    CREDENTIAL_REFUSED,
    CREDENTIAL_REQUIRED,
    HEAD_TOO_LARGE,
    HOST_REFUSED,
    INTERNAL,
    INVALID_REQUEST,
    MALFORMED_BODY,
    MALFORMED_REQUEST,
    MEDIA_TYPE,
    REQUEST_TIMEOUT,
    SCOPE_MISSING,
    TOO_MANY_BODIES,
    TOO_MANY_CONNECTIONS,
    UNAVAILABLE,
    UNSUPPORTED_MEDIA_TYPE,
    ProblemType,
)

Responses = dict[int | str, dict[str, Any]]

PROBLEM_SCHEMA: Mapping[str, Any] = {
    "title": "Problem",
    "type": "object",
    "description": "An error (RFC 9457).",
    "required": ["type", "title", "status", "detail", "request_id"],
    "properties": {
        "type": {
            "type": "string",
            "description": "Stable identifier of the error type.",
        },
        "title": {"type": "string"},
        "status": {"type": "integer", "description": "HTTP status code."},
        "detail": {"type": "string", "description": "How to resolve the error."},
        "request_id": {"type": "string", "description": "ID of the request in the logs."},
        "errors": {
            "type": "array",
            "description": "The invalid fields.",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {
                    "field": {"type": "string", "examples": ["budget.max_tokens"]},
                    "message": {"type": "string", "examples": ["This must be at least 0."]},
                },
            },
        },
        "quota": {
            "type": "object",
            "description": "Usage and limit of the exceeded quota.",
            "required": ["dimension", "used", "reserved", "requested", "limit"],
            "properties": {
                "dimension": {"type": "string", "examples": ["runs_per_minute"]},
                **{name: {"type": "number"} for name in ("used", "reserved", "requested", "limit")},
            },
        },
        "parts": {
            "type": "object",
            "description": "Readiness of each component of a service that is not ready.",
            "additionalProperties": {"type": "string"},
        },
    },
}

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

_NOT_DESCRIBED = "Successful Response"
"""The framework's placeholder for a response without a description."""

_REQUEST_ID_HEADER = {
    "X-Request-ID": {
        "description": "The request ID sent by the caller if valid, otherwise a generated one.",
        "schema": {"type": "string"},
    }
}
_CHALLENGE_HEADER = {
    "WWW-Authenticate": {
        "description": "Authentication challenge (RFC 6750).",
        "schema": {"type": "string"},
    }
}
SCOPE = "x-required-scope"
"""OpenAPI extension key that holds the scope required by an operation."""
_BEARER = {
    "type": "http",
    "scheme": "bearer",
    "description": "An API key (`cwk_...`) or a JSON Web Token from the configured issuer. The "
    "scopes `run` and `approve` include `read`; `admin` includes all scopes.",
}
_RETRY_HEADER = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}

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

EVERY_CALLER = (
    CREDENTIAL_REQUIRED,
    CREDENTIAL_REFUSED,
    ANONYMOUS_REFUSED,
    SCOPE_MISSING,
    UNAVAILABLE,
)
"""Problem types that every authenticated route may return."""

EVERY_RUN_ROUTE = (*EVERY_CALLER, INVALID_REQUEST)
"""Problem types that every authenticated route with validated parameters may return."""

_EVERY_ROUTE = (MALFORMED_REQUEST, HOST_REFUSED, HEAD_TOO_LARGE, INTERNAL, TOO_MANY_CONNECTIONS)

EVERY_BODY = (
    MALFORMED_BODY,
    REQUEST_TIMEOUT,
    BODY_TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE,
    TOO_MANY_BODIES,
)
"""Problem types that every route with a request body may return."""


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
    "arithmetic": Example(
        summary="A calculation", value={"input": "What is 12.5 % of 1840, plus 7?"}
    ),
    "checked": Example(
        summary="A case with a known answer, a caller-supplied run ID and limits",
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


def answers(*kinds: ProblemType) -> Responses:
    """Return the OpenAPI response entries for the problem types that a route may return."""
    documented: Responses = {}
    for kind in sorted((*kinds, *_EVERY_ROUTE), key=lambda kind: kind.status):
        response = documented.setdefault(
            kind.status,
            {
                "description": kind.title,
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        )
        if kind.title not in response["description"]:
            response["description"] += f"; {kind.title}"
        if kind.retry_after_seconds is not None:
            response["headers"] = _RETRY_HEADER
        if kind.challenge is not None:
            response["headers"] = _CHALLENGE_HEADER
    return documented


def operation_id(route: APIRoute) -> str:
    """Return the OpenAPI operation ID for a route.

    Generated clients derive method names from it.
    """
    return route.name


def describe(app: FastAPI, problems: Iterable[ProblemType]) -> None:
    """Make the application add the parts that all routes share to its OpenAPI document.

    ``problems`` are the types of all problems. The document is generated on the first request for
    it, which takes half a second.
    """
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(generate(), problems)
        return generate()

    app.openapi = openapi  # type: ignore[method-assign] # how FastAPI wants it extended


def _complete(document: dict[str, Any], problems: Iterable[ProblemType]) -> None:
    schemas = document["components"]["schemas"]
    document["components"]["securitySchemes"] = {"bearer": _BEARER}
    types = [kind.uri for kind in sorted(problems, key=lambda kind: (kind.status, kind.slug))]
    properties = PROBLEM_SCHEMA["properties"]
    listed = {**properties, "type": {**properties["type"], "enum": types}}
    schemas["Problem"] = {**PROBLEM_SCHEMA, "properties": listed}
    schemas["ServerSentEvent"] = dict(SERVER_SENT_EVENT_SCHEMA)
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["summary"] = operation["description"].partition("\n")[0].rstrip(".")
            _optional_body(operation)
            _scoped(operation)
            for response in operation["responses"].values():
                response["headers"] = _REQUEST_ID_HEADER | response.get("headers", {})
                if response["description"] == _NOT_DESCRIBED:
                    response["description"] = _of_its_schema(response, schemas)


def _scoped(operation: dict[str, Any]) -> None:
    """Document the required scope of an operation, if any."""
    if SCOPE in operation:
        operation["security"] = [{"bearer": []}]
        operation["description"] += f"\n\nRequires the scope `{operation[SCOPE]}`."


def _optional_body(operation: dict[str, Any]) -> None:
    """Remove the default of an optional body: next to a ``$ref`` it would be ignored."""
    for media in operation.get("requestBody", {}).get("content", {}).values():
        media["schema"].pop("default", None)


def _of_its_schema(response: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """Return the description of a response's schema."""
    [media] = response["content"].values()
    described: str = schemas[media["schema"]["$ref"].rpartition("/")[2]]["description"]
    return described
