"""One session with an MCP server: connect, list tools, execute concurrent calls, and close.

The SDK's client must be entered and exited by the same task, so each session has its own task. That
task also lists the tools: at the start, when the server announces a change, and after a call timed
out or was refused. A server that cannot list its tools in time is considered lost. Its session then
ends, and the next caller starts a new one.

A session that the server no longer knows is retired: it takes no more calls, but the calls in
flight keep their connections, because another replica of the server may still answer them. A server
that refuses both a call and the list of its tools is treated as one that does not know the session.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, Final

import structlog
from mcp import Client
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    PaginatedRequestParams,
    Tool,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from caseworker.platform.fair_slots import TENANT
from caseworker.platform.logs.errors import message_of_error
from caseworker.platform.logs.redaction import redact_text
from caseworker.platform.logs.trace_context import outside_spans
from caseworker.tools.mcp.checked_stream import checked_transport
from caseworker.tools.mcp.config import ServerConfig
from caseworker.tools.mcp.delivery import DELIVERY, DeliveryState
from caseworker.tools.mcp.http import create_http_client, names_lost_session
from caseworker.tools.mcp.stdio import TOO_LARGE_CODE, stdio_transport
from caseworker.tools.mcp.tool_descriptions import MAX_TOOLS, ServerTool, usable_tools
from caseworker.tools.ports import ToolRefusedError
from caseworker.tools.servers import SERVER_LOST, ServerUnavailableError

log = structlog.get_logger(__name__)

MAX_PAGES: Final = 50
"""Maximum number of pages to read from a tool list; the rest of a longer list is ignored."""
RELIST_SECONDS: Final = 1.0
"""Minimum time in seconds between two listings after change notifications."""
RELISTEN_SECONDS: Final = 5.0
"""Delay in seconds before a closed stream of change notifications is reopened."""

_CODES: Final = {
    INVALID_PARAMS: "invalid_arguments",
    METHOD_NOT_FOUND: "unknown_tool",
    PARSE_ERROR: "unfit_result",
    TOO_LARGE_CODE: "too_large",
}


class CallLostError(ToolRefusedError):
    """The session or the connection was lost before the server's response arrived."""

    def __init__(self, message: str, *, may_have_executed: bool, code: str = SERVER_LOST) -> None:
        super().__init__(message, code=code)
        self.may_have_executed = may_have_executed
        """Whether the server may have executed the call."""


class McpSession:
    """One connection to an MCP server, opened in a separate task when it is created.

    A closed session is never reopened.
    """

    def __init__(self, config: ServerConfig) -> None:
        """Start connecting, in a separate task."""
        self.config = config
        self.tools: Mapping[str, ServerTool] = {}
        """The usable tools, by the server's own names."""
        self.problem = ""
        """Why the session ended, redacted."""
        self._mask = config.mask()
        self.has_answered = False
        """Whether the server has answered a call, even if only to say that the session is lost."""
        self._stop = asyncio.Event()
        self._drained = asyncio.Event()
        """Set when no call in flight needs the connection."""
        self._look = asyncio.Event()
        """Set when the tools must be listed again, or the session must end."""
        self._at_once = asyncio.Event()
        """Set when the next listing must not be delayed."""
        self._listed = asyncio.Event()
        """Set when the next listing has ended, or the session has."""
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls: set[asyncio.Task[CallToolResult]] = set()
        self._task = asyncio.create_task(
            self._live(), name=f"mcp server {config.name}", context=outside_spans()
        )

    @property
    def ended(self) -> bool:
        """Whether the session accepts no more calls."""
        return self._stop.is_set() or self._task.done()

    @property
    def closed_down(self) -> bool:
        """Whether the connection to the server is closed."""
        return self._task.done()

    async def opened(self) -> None:
        """Wait until the session accepts calls.

        Raises:
            ServerUnavailableError: the server cannot be started or does not respond.
        """
        await asyncio.shield(self._opened)

    def end(self, reason: str = "") -> None:
        """Stop accepting calls, and start closing the connection."""
        self._retire(reason)
        self._drained.set()

    def _retire(self, reason: str) -> None:
        """Stop accepting calls, and close the connection once no call is in flight."""
        self.problem = self.problem or redact_text(self._mask.apply(reason), max_chars=300)
        self._stop.set()
        self._look.set()
        self._at_once.set()
        self._listed.set()

    async def closed(self) -> None:
        """Wait until the connection is closed."""
        await asyncio.wait([self._task])

    async def call(self, tool: str, args: Mapping[str, Any]) -> CallToolResult:
        """Call a tool; ``tool`` is its name on the server.

        A cancelled caller returns immediately. The server is notified in the background.

        Raises:
            CallLostError: the server or its session was lost before the call was answered.
            ToolRefusedError: the call has no result; the error's code gives the reason.
        """
        delivery = DeliveryState()
        if self.ended:
            raise CallLostError("The server was lost.", may_have_executed=False)
        call = asyncio.create_task(self._request(tool, args, delivery))
        self._calls.add(call)
        call.add_done_callback(self._forget)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if call.cancelled() and task is not None and not task.cancelling():
                raise CallLostError(
                    "The server was lost.", may_have_executed=delivery.may_have_executed
                ) from None
            call.cancel()
            raise

    async def _request(
        self, tool: str, args: Mapping[str, Any], delivery: DeliveryState
    ) -> CallToolResult:
        DELIVERY.set(delivery)
        clock, seconds = asyncio.get_running_loop().time, self.config.timeout_seconds
        latest = clock() + max(seconds, self.config.progress_timeout_seconds)
        params = CallToolRequestParams(name=tool, arguments=dict(args))
        try:
            async with asyncio.timeout(seconds) as limit:

                async def extend(progress: float, total: float | None, message: str | None) -> None:
                    """Wait for ``timeout_seconds`` from the last progress notification."""
                    with suppress(RuntimeError):  # the call has ended
                        limit.reschedule(min(clock() + seconds, latest))

                answer = await self._client.session.send_request(
                    CallToolRequest(params=params), CallToolResult, progress_callback=extend
                )
        except TimeoutError:
            self._look.set()
            raise ToolRefusedError(
                f"The tool did not answer within {seconds:g} seconds.", code="timeout"
            ) from None
        except ValidationError:
            raise ToolRefusedError(
                "The server's answer is not one that the protocol knows.", code="unfit_result"
            ) from None
        except MCPError as error:
            raise await self._failure_of(error, delivery) from None
        self.has_answered = True
        return answer

    async def _failure_of(self, error: MCPError, delivery: DeliveryState) -> ToolRefusedError:
        """Return the failure of a call for an error of the protocol or of the transport."""
        code = "too_large" if delivery.too_large else _CODES.get(error.code, "tool_error")
        loss = None if delivery.too_large else await self._loss_of(error, delivery, code)
        if loss is not None:
            return loss
        if code == "unfit_result":  # the SDK quotes parts of the answer
            return ToolRefusedError("The server's answer cannot be read.", code=code)
        if code == "too_large":
            max_bytes = self.config.max_message_bytes
            return ToolRefusedError(f"The answer has more than {max_bytes:,} bytes.", code=code)
        return ToolRefusedError(error.message, code=code)

    async def _loss_of(
        self, error: MCPError, delivery: DeliveryState, code: str
    ) -> CallLostError | None:
        """Return the failure if an error means that the session or the server was lost."""
        if delivery.session_lost:
            self.has_answered = True
            self._retire(error.message)
            return CallLostError(error.message, may_have_executed=False)
        if delivery.is_broken or _is_closed(error):
            self._look.set()
            return CallLostError(error.message, may_have_executed=delivery.may_have_executed)
        if delivery.refusal_status:
            if not await self._can_list():
                is_refused = delivery.refusal_status < HTTPStatus.INTERNAL_SERVER_ERROR
                return CallLostError(
                    error.message,
                    may_have_executed=delivery.may_have_executed,
                    code="tool_error" if is_refused and delivery.may_have_executed else SERVER_LOST,
                )
        elif (
            code == "tool_error"
            and error.code != INTERNAL_ERROR
            and names_lost_session(error.message)
        ):
            # The server answered, and may mean a session of the tool, such as a browser's.
            self._retire(error.message)
            return CallLostError(error.message, may_have_executed=True, code=code)
        return None

    async def _can_list(self) -> bool:
        """List the tools again; return whether the session still accepts calls."""
        listed = self._listed
        self._look.set()
        self._at_once.set()
        await listed.wait()
        return not self.ended

    def _forget(self, call: asyncio.Task[CallToolResult]) -> None:
        self._calls.discard(call)
        if not self._calls and self._stop.is_set():
            self._drained.set()
        if not call.cancelled():
            call.exception()  # a cancelled caller does not retrieve it

    async def _live(self) -> None:
        TENANT.set(None)  # the tenant that needed the session first is not its only one
        following: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(self.config.start_timeout_seconds) as opening:
                async with self._connect() as self._client:
                    await self._list()
                    opening.reschedule(None)
                    self._opened.set_result(None)
                    log.info("mcp.server_open", server=self.config.name, count=len(self.tools))
                    following = asyncio.create_task(self._follow())
                    await self._watch()
                    await self._drained.wait()  # the calls in flight have time limits
        except Exception as error:
            self.end(_first_error_text(error))
        finally:
            if following is not None:
                following.cancel()
            self.end("It has ended.")
            await self._let_calls_end()
            if not self._opened.done():
                message = f"The server {self.config.name!r} cannot be used. {self.problem}"
                self._opened.set_exception(ServerUnavailableError(message.strip()))
                self._opened.exception()  # its waiters may be gone
            log.info("mcp.server_closed", server=self.config.name, detail=self.problem)

    async def _let_calls_end(self) -> None:
        """Give pending calls one second to fail with their own error, then cancel them."""
        if self._calls:
            _, unfinished = await asyncio.wait(self._calls, timeout=1.0)
            for call in unfinished:
                call.cancel()

    def _connect(self) -> Client:
        config = self.config
        transport: AbstractAsyncContextManager[TransportStreams] = (
            stdio_transport(config, self.end) if config.command else _http_transport(config)
        )
        return Client(
            checked_transport(config.name, transport, self._mask),
            client_info=Implementation(name="caseworker", version="1"),
            message_handler=self._heard,
            cache=None,
        )

    async def _watch(self) -> None:
        """List the tools on request, until the session ends."""
        while not self._stop.is_set():
            await self._look.wait()
            self._look.clear()
            if self._stop.is_set():
                return
            self._at_once.clear()
            listed, self._listed = self._listed, asyncio.Event()
            DELIVERY.set(delivery := DeliveryState())
            try:
                async with asyncio.timeout(self.config.start_timeout_seconds):
                    await self._list()
            except Exception as error:
                if not (delivery.session_lost or delivery.refusal_status):
                    self.end(_first_error_text(error))
                    return
                self.has_answered = True
                self._retire(_first_error_text(error))
                if not self._calls:
                    self._drained.set()
                return
            finally:
                listed.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(RELIST_SECONDS):
                    await self._at_once.wait()

    async def _list(self) -> None:
        listed: list[Tool] = []
        cursor: str | None = None
        seen = set[str]()
        for _ in range(MAX_PAGES):
            page = await self._client.session.list_tools(
                params=None if cursor is None else PaginatedRequestParams(cursor=cursor)
            )
            listed += page.tools
            cursor = page.next_cursor  # may be an empty string
            if cursor is None or cursor in seen or len(listed) > 4 * MAX_TOOLS:
                break
            seen.add(cursor)
        self.tools = usable_tools(self.config, listed)

    async def _heard(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._look.set()

    async def _follow(self) -> None:
        """Subscribe to tool changes, if the protocol version requires a subscription."""
        offers = self._client.server_capabilities.tools
        modern = self._client.session.protocol_version in MODERN_PROTOCOL_VERSIONS
        while modern and offers is not None and offers.list_changed:
            with suppress(Exception):
                async with self._client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self._look.set()
            await asyncio.sleep(RELISTEN_SECONDS)
            self._look.set()


@asynccontextmanager
async def _http_transport(config: ServerConfig) -> AsyncIterator[TransportStreams]:
    """Open the SDK's transport with a client that is closed with it."""
    async with (
        aclosing(create_http_client(config)) as client,
        streamable_http_client(
            config.url, http_client=client, max_sse_event_size=config.max_message_bytes
        ) as streams,
    ):
        yield streams


def _is_closed(error: MCPError) -> bool:
    """Return whether the SDK reports a closed connection; servers use the same code for errors."""
    is_reported = error.message.startswith(("Connection closed", "SSE stream "))
    return error.code == CONNECTION_CLOSED and is_reported


def _first_error_text(error: BaseException) -> str:
    """Return the message of the first error in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "It did not answer in time."
    return message_of_error(error) if isinstance(error, Exception) else type(error).__name__
