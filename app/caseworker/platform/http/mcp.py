"""Answers requests over MCP's streamable HTTP on top of the SDK; imported on first use."""

import secrets
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from sse_starlette.sse import AppStatus
from starlette.datastructures import MutableHeaders
from starlette.types import Message, Receive, Scope, Send

# Otherwise it would cut the streams of all calls in flight when the process gets SIGTERM.
AppStatus.enable_automatic_graceful_drain = False


SESSION_HEADER = "mcp-session-id"


class McpAnswer:
    """ASGI application that answers one request, without a session in memory.

    A client of the older protocol gets a session ID, because clients use equal request IDs.
    """

    def __init__(self, server: Server[Any], content: bytes, method: object) -> None:
        """``content`` is the body of the request, which was read before; ``method`` is in it."""
        self._server = server
        self._content: bytes | None = content
        self._opens_session = method == "initialize"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request."""

        async def received() -> Message:
            content, self._content = self._content, None
            if content is None:
                return await receive()
            return {"type": "http.request", "body": content, "more_body": False}

        async def send_reply(event: Message) -> None:
            if self._opens_session and event["type"] == "http.response.start":
                MutableHeaders(scope=event)[SESSION_HEADER] = secrets.token_hex(16)
            await send(event)

        manager = StreamableHTTPSessionManager(self._server, stateless=True)
        async with manager.run():
            await manager.handle_request(scope, received, send_reply)
