"""``/mcp``: the service as an MCP server over streamable HTTP, without sessions in memory.

Host check, authentication and body limits apply as for every request. The MCP SDK serves two
generations of the protocol. In the newer one, a client cancels a call by closing its connection.

In the older one, it sends ``notifications/cancelled``, possibly to another replica. Such a client
receives a session ID. The run ID is derived from the session ID and the request ID, so any replica
can store the cancel request, even before the run exists.
"""

import asyncio
import hashlib
from http import HTTPStatus
from importlib import import_module
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from caseworker.platform.caller import KeyScope as AccessScope
from caseworker.platform.http.deadline import lift_deadline, paused_deadline
from caseworker.platform.http.problems import MALFORMED_BODY, ProblemError
from caseworker.platform.http.request import ApiRequest
from caseworker.runs.errors import TooManyPendingCancelsError
from caseworker.runs.http.problems import TOO_MANY_PENDING_CANCELS
from caseworker.runs.run import RunKey
from caseworker.runs.service import RunService

SESSION_HEADER = "mcp-session-id"
_MAX_SESSION_CHARS = 128
CALLER = "mcp"
"""Name shown in cancel receipts for MCP clients that cancel a call."""


def session_run_id(session: str | None, request_id: Any) -> str | None:
    """Return the run ID derived from session ID and request ID; None without a valid session."""
    if not session or len(session) > _MAX_SESSION_CHARS or not isinstance(request_id, int | str):
        return None
    identity = f"{session}\n{type(request_id).__name__}\n{request_id}"
    return f"mcp-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"


class McpEndpoint:
    """ASGI application that serves ``/mcp``."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._server: Any = None
        self._loading = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request.

        Raises:
            ProblemError: the request is rejected before it reaches the protocol.
        """
        request = await ApiRequest.of(Request(scope, receive, send), AccessScope.READ)
        if request.method != "POST":
            answer = Response(status_code=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "POST"})
            await answer(scope, receive, send)
            return
        content = await request.body()
        request.require_small()
        message = await request.json()
        if not isinstance(message, dict):
            raise ProblemError(
                MALFORMED_BODY, "The body must be a single JSON-RPC message (a JSON object)."
            )
        if message.get("method") == "notifications/cancelled":
            await self._cancel(request, message.get("params"))
        scope["api_request"] = request
        with paused_deadline(scope):
            server = await self._loaded()
        lift_deadline(scope)  # the tools have limits of their own
        await server.answer(content, message.get("method"))(scope, receive, send)

    async def _cancel(self, request: ApiRequest, params: Any) -> None:
        """Store a cancel request for the run of another request in the same session."""
        request_id = params.get("requestId") if isinstance(params, dict) else None
        run_id = session_run_id(request.headers.get(SESSION_HEADER), request_id)
        if run_id is not None:
            request.require(AccessScope.RUN)
            try:
                await request.service(RunService).cancel(
                    RunKey(request.caller.tenant, run_id), by=CALLER
                )
            except TooManyPendingCancelsError as error:
                raise ProblemError(TOO_MANY_PENDING_CANCELS) from error

    async def _loaded(self) -> Any:
        """Import the SDK on first use, in a thread, because that takes nearly a second."""
        async with self._loading:
            if self._server is None:
                module = await asyncio.to_thread(
                    import_module, "caseworker.faces.mcp_server.server"
                )
                self._server = module.OfferingServer(self._version)
            return self._server
