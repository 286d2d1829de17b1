"""Parts of the OpenAPI document about runs: headers, the event stream and examples."""

from collections.abc import Mapping
from typing import Any

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
