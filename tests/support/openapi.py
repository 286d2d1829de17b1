"""The operations of the OpenAPI document as schemathesis reads them."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from tests.support.api import openapi_document

ROUTES = frozenset(
    {
        "POST /runs",
        "GET /runs",
        "GET /runs/{run_id}",
        "DELETE /runs/{run_id}",
        "POST /runs/{run_id}/cancel",
        "POST /runs/{run_id}/finish",
        "POST /runs/{run_id}/heartbeat",
        "GET /gateway/usage",
        "GET /runs/{run_id}/trace",
        "GET /runs/{run_id}/calls/{node_id}",
        "GET /runs/{run_id}/events",
        "GET /statistics",
        "POST /erasures",
        "POST /runs/cancel",
        "DELETE /runs/{run_id}/record",
        "GET /runs/{run_id}/artifacts",
        "GET /runs/{run_id}/artifacts/{name}",
        "HEAD /runs/{run_id}/artifacts/{name}",
        "POST /threads",
        "GET /threads",
        "GET /threads/{thread_id}",
        "DELETE /threads/{thread_id}",
        "GET /threads/{thread_id}/messages",
        "POST /threads/{thread_id}/messages",
        "POST /threads/{thread_id}/messages/{message_id}/edit",
        "POST /threads/{thread_id}/messages/{message_id}/retry",
        "POST /threads/{thread_id}/messages/{message_id}/continue",
        "POST /threads/{thread_id}/cancel",
        "GET /approvals",
        "GET /runs/{run_id}/approvals",
        "POST /runs/{run_id}/approvals/{approval_id}",
        "GET /runs/{run_id}/calls",
        "POST /runs/{run_id}/calls/{call_id}/result",
        "POST /graphs",
        "POST /graphs/validate",
        "GET /graphs",
        "GET /graphs/{name}",
        "DELETE /graphs/{name}",
        "GET /graphs/{name}/versions",
        "GET /graphs/{name}/versions/{version}",
        "DELETE /graphs/{name}/versions/{version}",
        "POST /agents",
        "GET /agents",
        "GET /agents/{name}",
        "DELETE /agents/{name}",
        "GET /agents/{name}/versions",
        "GET /agents/{name}/versions/{version}",
        "DELETE /agents/{name}/versions/{version}",
        "GET /quotas",
        "GET /quotas/{tenant}",
        "PUT /quotas/{tenant}",
        "DELETE /quotas/{tenant}",
        "GET /whoami",
        "GET /mcp-credentials",
        "PUT /mcp-credentials/{server}",
        "DELETE /mcp-credentials/{server}",
        "GET /audit",
        "GET /spend",
        "POST /keys",
        "GET /keys",
        "GET /keys/{key_id}",
        "GET /keys/{key_id}/sessions",
        "POST /keys/{key_id}/rotate",
        "DELETE /keys/{key_id}",
        "PUT /schedules/{name}",
        "GET /schedules",
        "GET /schedules/{name}",
        "DELETE /schedules/{name}",
        "POST /schedules/{name}/pause",
        "POST /schedules/{name}/resume",
        "POST /schedules/{name}/run",
        "POST /webhooks/secret",
        "POST /webhooks/test",
        "GET /webhooks/secret",
        "GET /webhooks/deliveries",
        "GET /webhooks/deliveries/{delivery_id}",
        "POST /webhooks/deliveries/{delivery_id}/redeliver",
        "GET /tools",
        "GET /models",
        "GET /node-types",
        "GET /healthz",
        "GET /readyz",
        "GET /metrics",
    }
)
"""Method and path of every operation, for parametrized tests.

Making the document takes a second, which the collection of tests should not cost.
"""
RESERVATIONS = frozenset(
    f"POST /gateway/{each}/reserve"
    for each in (
        *("openai/v1/chat/completions", "openai/v1/responses", "openai/v1/embeddings"),
        "anthropic/v1/messages",
    )
)
"""Operations of the gateway: they take its keys, and their errors have the form of its APIs."""
ROUTES |= RESERVATIONS
WITHOUT_INPUT = frozenset(
    f"GET /{each}"
    for each in (
        *("quotas", "mcp-credentials", "webhooks/secret", "tools", "models", "node-types"),
        *("healthz", "readyz", "metrics", "whoami"),
    )
)
"""Operations that take no parameters and no body."""


@cache
def documented_operations() -> Mapping[str, Any]:
    """Return every ``APIOperation`` of the document by its method and path."""
    import schemathesis  # takes half a second, and few workers run a test that needs it
    from schemathesis.core.result import Ok

    found = schemathesis.openapi.from_dict(openapi_document()).get_all_operations()
    return {each.ok().label: each.ok() for each in found if isinstance(each, Ok)}
