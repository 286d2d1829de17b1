"""Requests of the gateway's clients: their slots, their bodies, and answers of other processes."""

from typing import Final

from fastapi import Request, Response

from caseworker.features.external.sessions import Sessions
from caseworker.platform.fair_slots import TENANT
from caseworker.platform.http.bodies import VALUE_BYTES, memory_of
from caseworker.platform.http.deadline import DEADLINE
from caseworker.platform.http.request import IDENTIFIED, ApiRequest, HttpContext

_COUNTED: Final = "caseworker.counted"
"""ASGI scope key of a request whose body was counted."""
ON_REFUSAL: Final = "caseworker.on_refusal"
"""ASGI scope key of a function that counts the refusal of the request."""
VALUES: Final = "caseworker.value_bytes"
"""ASGI scope key of the bytes of memory for a value of the body."""


class AnsweredError(Exception):
    """Another process, which owns the run, has answered the request."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


async def enter(request: Request, tenant: str) -> None:
    """Acquire the request's slot of a tenant, once.

    From then on, the request may take as long as its model, but not wait for the database.

    Raises:
        ProblemError: the tenant has too many concurrent requests.
    """
    if "tenant" not in request.scope:
        shared: HttpContext = request.app.state.shared
        request.scope["tenant"] = tenant
        TENANT.set(tenant)
        request.scope.get(IDENTIFIED, bool)()
        await shared.connections.enter(tenant, request.scope)
        if (deadline := request.scope.get(DEADLINE)) is not None:
            deadline.count_only(shared.services[Sessions].stuck_seconds)


async def content_of(request: ApiRequest) -> bytes:
    """Return the body of a request.

    A long one, or one with many values, counts as one in transfer until its call has ended.

    Raises:
        ProblemError: it is too large, or all such bodies together are.
    """
    content, shared = await request.body(), request.app.state.shared
    if _COUNTED in request.scope:  # a request may be answered again, by the next owner
        return content
    value_bytes = request.scope.get(VALUES, VALUE_BYTES)
    request.scope[_COUNTED], memory_bytes = True, memory_of(content, value_bytes)
    if memory_bytes > shared.limits.max_body_bytes + shared.limits.max_graph_bytes:
        request.hold(memory_bytes)
    return content
