"""The gateway's MCP server on top of the SDK; imported on first use.

It has no sessions: every request is complete in itself and contains the key of its run. A call
continues if its client disconnects, and an equal request joins it. A client of the older protocol
ends a call with ``notifications/cancelled``. If the run is released during a call, the next owner
of the run answers the request, and its reply continues the client's.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Any, Final, NoReturn, TypeVar

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.shared.exceptions import MCPError
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)

from caseworker.core.budget.stops import HandOver, Stop
from caseworker.features.external.session import GatewaySession
from caseworker.gateway.dialects.mcp import STOPPED, error_data
from caseworker.gateway.refusals import refusal_of
from caseworker.nodes.agent.tools import ToolOffer
from caseworker.platform.http.mcp import SESSION_HEADER, McpAnswer
from caseworker.tools.ports import is_failure
from caseworker.tools.servers import SERVER_LOST, ServerUnavailableError

PROGRESS_SECONDS: Final = 5.0
"""Seconds between progress notifications to clients that requested them."""

Context = ServerRequestContext[dict[str, Any], Any]
T = TypeVar("T")


class ToolServer(McpAnswer):
    """ASGI application that answers one request of an external run's client."""

    def __init__(
        self,
        session: GatewaySession,
        content: bytes,
        message: Any,
        headers: Mapping[str, str],
        repeat: Callable[[], Awaitable[bytes]],
    ) -> None:
        """Offer the tools of a run; ``content`` is the body of the request, which was read.

        ``message`` is its JSON, and ``headers`` are those of the request, by lowercase names.
        ``repeat`` sends the request to the next owner of the run, and returns the body of the
        reply.
        """
        self._session = session
        self._client = headers.get(SESSION_HEADER, "")
        self._repeat = repeat
        method = message.get("method") if isinstance(message, dict) else None
        if method == "notifications/cancelled" and isinstance(message.get("params"), dict):
            self._cancel(message["params"].get("requestId"))
        server: Server[Any] = Server(
            "caseworker",
            version=version("caseworker"),
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        super().__init__(server, content, method)

    def _cancel(self, request_id: Any) -> None:
        """Cancel the call of another request in the client's session; a later one is not known."""
        if self._client and isinstance(request_id, str | int):
            self._session.tools.cancel((self._client, request_id))

    async def _list(self, _: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        definitions = (await self._offer()).definitions
        return ListToolsResult(
            tools=[
                Tool(name=each.name, description=each.description, input_schema=each.parameters)
                for each in definitions
            ]
        )

    async def _call(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        started = time.monotonic()
        try:
            return await self._result(context, params, started)
        except HandOver:
            return await self._result_of_next_owner(context, started)
        except Stop as stop:
            _refuse(stop)

    async def _result(
        self, context: Context, params: CallToolRequestParams, started: float
    ) -> CallToolResult:
        """Execute a call, or join the call of an equal request.

        Raises:
            Stop: a limit, a cancel request or the release of the run prevented or ended the call.
        """
        offer = await self._offer()
        if not self._session.is_open:
            self._raise_end()
        call, task = self._session.call_tool(offer, params.name, params.arguments or {})
        request = (self._client, context.request_id or "")
        try:
            with self._session.tools.requested(request, task):
                await _wait_with_progress(task, context, started)
        except asyncio.CancelledError:
            self._session.tools.abandon(call)
            raise
        return _as_result(self._raise_end() if task.cancelled() else task.result())

    async def _result_of_next_owner(self, context: Context, started: float) -> CallToolResult:
        """Return the result that the next owner of the run sends for the same request.

        The reply to the client may have started, so it is read here and not passed on.
        """
        repeated = asyncio.ensure_future(self._repeat())
        try:
            await _wait_with_progress(repeated, context, started)
        finally:
            repeated.cancel()
        reply = _response_in(repeated.result())
        if (error := reply.get("error")) is not None:
            raise MCPError(error["code"], error["message"], error.get("data"))
        return CallToolResult.model_validate(reply["result"])

    def _raise_end(self) -> NoReturn:
        """Raise the stop of the run, or an error: the client finished it or cancelled the call."""
        if self._session.stop is not None:
            raise self._session.stop
        if self._session.is_open:
            raise MCPError(REQUEST_CANCELLED, "Request cancelled")
        _refuse(None)

    async def _offer(self) -> ToolOffer:
        try:
            return await self._session.tools.offer()
        except (LookupError, ServerUnavailableError) as error:
            raise MCPError(STOPPED, str(error), {"code": SERVER_LOST}) from None


async def _wait_with_progress(task: asyncio.Future[T], context: Context, started: float) -> None:
    """Wait until a task ends; notify the client of the progress since the time ``started``."""
    while not (await asyncio.wait((task,), timeout=PROGRESS_SECONDS))[0]:
        with suppress(Exception):
            await context.session.report_progress(time.monotonic() - started)


def _response_in(content: bytes) -> Mapping[str, Any]:
    """Return the JSON-RPC response in a body, which is a JSON document or a stream of events."""
    lines = [line.removeprefix(b"data:").strip() for line in content.splitlines()]
    documents = [json.loads(line) for line in lines if line.startswith(b"{")]
    return next(each for each in documents if each.keys() & {"result", "error"})


def _as_result(result: Mapping[str, Any]) -> CallToolResult:
    """Return a tool's result; one with an error is a failed call, which a model may correct."""
    text = TextContent(text=json.dumps(result, ensure_ascii=False))
    return CallToolResult(
        content=[text], structured_content=dict(result), is_error=is_failure(result)
    )


def _refuse(stop: Stop | None) -> NoReturn:
    """Raise the error of the protocol for a stop; None means that the client finished the run."""
    refusal = refusal_of(stop)
    raise MCPError(STOPPED, refusal.message, error_data(refusal)) from None
