"""Filters the messages of an MCP server: drops tools that do not match the protocol, masks secrets.

The SDK accepts a list of tools only as a whole, so one malformed entry would disable the server.
A server may echo its credentials in any part of any message.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Self

import structlog
from mcp.client._transport import ReadStream, TransportStreams
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCMessage, JSONRPCResponse, Tool
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

from caseworker.platform.logs.redaction import redact_text
from caseworker.platform.logs.secret_mask import SecretMask

log = structlog.get_logger(__name__)

_VERSION: Final = "2025-11-25"
"""Protocol version that tools are validated against; earlier versions require no more fields."""

Incoming = SessionMessage | Exception


@asynccontextmanager
async def checked_transport(
    server: str, transport: AbstractAsyncContextManager[TransportStreams], mask: SecretMask
) -> AsyncIterator[TransportStreams]:
    """Wrap a server's transport; drop listed tools that the SDK cannot parse, and mask secrets."""
    async with transport as (reading, writing):
        yield _CheckedStream(server, reading, mask), writing


class _CheckedStream:
    def __init__(self, server: str, inner: ReadStream[Incoming], mask: SecretMask) -> None:
        self._server = server
        self._inner = inner
        self._mask = mask

    @property
    def last_context(self) -> Any:
        """Context of the sender of the last message; the SDK reads this attribute."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Incoming:
        return await self._checked(await self._inner.receive())

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Incoming:
        return await self._checked(await self._inner.__anext__())

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *ending: Any) -> bool | None:
        return await self._inner.__aexit__(*ending)

    async def _checked(self, incoming: Incoming) -> Incoming:
        """Mask the secrets in a message, and drop malformed tools if it lists tools."""
        if isinstance(incoming, Exception):
            return incoming
        if self._mask:
            await asyncio.to_thread(self._hide, incoming.message)  # a message may be long
        message = incoming.message
        if isinstance(message, JSONRPCResponse) and isinstance(message.result.get("tools"), list):
            listed = message.result["tools"]
            message.result["tools"] = [tool for tool in listed if self._is_readable(tool)]
        return incoming

    def _hide(self, message: JSONRPCMessage) -> None:
        match message:
            case JSONRPCResponse():
                message.result = self._mask.apply_to(message.result)
            case JSONRPCError():
                message.error.message = self._mask.apply(message.error.message)
                message.error.data = self._mask.apply_to(message.error.data)
            case _:
                message.params = self._mask.apply_to(message.params)

    def _is_readable(self, tool: Any) -> bool:
        try:
            validate_server_result("tools/list", _VERSION, {"tools": [tool]})
            Tool.model_validate(tool, by_name=False)
        except ValidationError as error:
            name = tool.get("name") if isinstance(tool, dict) else None
            full_name = redact_text(f"{self._server}.{name}", max_chars=100)
            first = error.errors(include_input=False, include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            log.warning(
                "mcp.tool_unusable", tool=full_name, detail=f"{place}: {first['msg']}"[:300]
            )
            return False
        return True
