"""The gateway's MCP server on top of the SDK; imported on first use.

It has no sessions: every request is complete in itself and contains the key of its run. A call
continues if its client disconnects, and an equal request joins it.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Any, Final, NoReturn

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)

from caseworker.core.budget.stops import Stop
from caseworker.features.external.dialects import STOPPED, error_data
from caseworker.features.external.gateway import stopped
from caseworker.features.external.session import Session
from caseworker.nodes.agent.tools import ToolOffer
from caseworker.platform.http.mcp import McpAnswer
from caseworker.tools.servers import SERVER_LOST, ServerUnavailableError

PROGRESS_SECONDS: Final = 5.0
"""Seconds between progress notifications to clients that requested them."""

Context = ServerRequestContext[dict[str, Any], Any]


class ToolServer(McpAnswer):
    """ASGI application that answers one request of an external run's client."""

    def __init__(self, session: Session, content: bytes) -> None:
        """Offer the tools of a run; ``content`` is the body of the request, which was read."""
        self._session = session
        server: Server[Any] = Server(
            "caseworker",
            version=version("caseworker"),
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        super().__init__(server, content)

    async def _list(self, _: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        definitions = (await self._offer()).definitions
        return ListToolsResult(
            tools=[
                Tool(name=each.name, description=each.description, input_schema=each.parameters)
                for each in definitions
            ]
        )

    async def _call(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        offer, begun = await self._offer(), time.monotonic()
        if not self._session.is_open:
            _refuse(self._session.stop)
        call, task = self._session.call_tool(offer, params.name, params.arguments or {})
        try:
            while not (await asyncio.wait((task,), timeout=PROGRESS_SECONDS))[0]:
                with suppress(Exception):
                    await context.session.report_progress(time.monotonic() - begun)
        except asyncio.CancelledError:
            call.is_open = True  # an equal request gets the result that this client did not get
            raise
        if task.cancelled():
            _refuse(self._session.stop)
        try:
            return _as_result(task.result())
        except Stop as stop:
            _refuse(stop)

    async def _offer(self) -> ToolOffer:
        try:
            return await self._session.tools.offer()
        except (LookupError, ServerUnavailableError) as error:
            raise MCPError(STOPPED, str(error), {"code": SERVER_LOST}) from None


def _as_result(result: Mapping[str, Any]) -> CallToolResult:
    """Return a tool's result; one with an error is a failed call, which a model may correct."""
    text = TextContent(text=json.dumps(result, ensure_ascii=False))
    return CallToolResult(
        content=[text], structured_content=dict(result), is_error="error" in result
    )


def _refuse(stop: Stop | None) -> NoReturn:
    """Raise the error of the protocol for a stop; None means that the client finished the run."""
    refusal = stopped(stop)
    raise MCPError(STOPPED, refusal.message, error_data(refusal)) from None
