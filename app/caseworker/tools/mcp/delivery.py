"""The delivery of one request to an MCP server, as its transport records it."""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class DeliveryState:
    """How far a request to a server got, and why its response is missing."""

    may_have_executed: bool = False
    """Whether the server may have received the whole request and executed it."""
    session_lost: bool = False
    """Whether the server refused the request because it does not know the session."""
    refusal_status: int = 0
    """HTTP status of a refusal that may be due to an unknown session; 0 if there is none."""
    is_broken: bool = False
    """Whether the connection failed or broke off, here or behind a proxy."""
    too_large: bool = False
    """Whether the response exceeded the size limit."""


DELIVERY: ContextVar[DeliveryState | None] = ContextVar("mcp_delivery", default=None)
"""Record of the current request. A context variable works because the transports run in the context
of the caller."""
