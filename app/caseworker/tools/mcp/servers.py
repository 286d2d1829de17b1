"""Manages a process's MCP servers: starts each on first use, and restarts it after a loss."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from mcp.types import CallToolResult

from caseworker.tools.mcp.config import ServerConfig
from caseworker.tools.mcp.results import mcp_result_of
from caseworker.tools.mcp.session import CallLostError, McpSession
from caseworker.tools.mcp.tool_descriptions import spec_of
from caseworker.tools.ports import (
    Tool,
    ToolContext,
    ToolRefusedError,
    ToolResult,
    ToolSpec,
    failure,
)
from caseworker.tools.servers import SERVER_LOST, Credentials, ServerUnavailableError

PAUSE_SECONDS: Final = (0.0, 1.0, 2.0, 5.0, 15.0, 60.0)
"""Delays in seconds before a server is restarted after its first, second and further consecutive
losses."""
MAX_TENANT_SERVERS: Final = 200
"""Maximum number of servers that a process calls with the credentials of tenants at once. Of the
tenant with the most, the least recently used one is closed; the next call opens it again."""
STEADY_SECONDS: Final = 60.0
"""Minimum duration of a session, in seconds, that resets the count of consecutive losses. A session
in which the server answered a call resets it as well."""
OUTCOME_UNKNOWN: Final = "outcome_unknown"
"""Error code of a call that the server may have executed and that must not be repeated."""


class McpServer:
    """A configured server. At most one of its sessions accepts calls."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self._session: McpSession | None = None
        self._opened_at = 0.0
        self._lost = 0
        self._not_before = 0.0
        self._closing: list[McpSession] = []
        """Lost sessions whose programs may still be shutting down."""
        self._problem = ""

    async def session(self) -> McpSession:
        """Return the open session; start one if necessary.

        Raises:
            ServerUnavailableError: the server cannot be started now.
        """
        now = time.monotonic()
        session = self._session
        if session is not None and session.ended:
            self._session = None
            self._closing = [session, *(each for each in self._closing if not each.closed_down)]
            steady = session.has_answered or now - self._opened_at > STEADY_SECONDS
            self._lost = 1 if steady else self._lost + 1
            self._not_before = now + PAUSE_SECONDS[min(self._lost, len(PAUSE_SECONDS)) - 1]
            self._problem = session.problem
            session = None
        if session is None:
            if now < self._not_before:
                raise ServerUnavailableError(
                    f"The server {self.config.name!r} was lost. {self._problem}".strip(),
                    retry_after_seconds=self._not_before - now,
                )
            session = self._session = McpSession(self.config)
            self._opened_at = now
        await session.opened()
        return session

    def end(self, reason: str) -> None:
        """Start closing the current session, if any."""
        if self._session is not None:
            self._session.end(reason)

    async def aclose(self) -> None:
        """End the current session, if any, and wait until all sessions have closed."""
        sessions = (*filter(None, (self._session,)), *self._closing)
        for session in sessions:
            session.end("This process ends.")
        for session in sessions:
            await session.closed()


class McpTool:
    """A tool on an MCP server; each call validates its arguments with the current schema."""

    records_code = True

    def __init__(self, server: McpServer, tool: str, spec: ToolSpec) -> None:
        self.spec = spec
        self._server = server
        self._tool = tool

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Call the tool on its server."""
        try:
            return await mcp_result_of(self.spec.name, await self._answer(args), context)
        except ServerUnavailableError as error:
            wait = error.retry_after_seconds
            return failure(str(error), SERVER_LOST, retry_after_seconds=wait)
        except ToolRefusedError as refusal:
            return refusal.result()

    async def _answer(self, args: Mapping[str, Any]) -> CallToolResult:
        """Call the tool; if its session was lost, repeat the call at once where that is safe.

        Raises:
            ServerUnavailableError: the server cannot be started now.
            ToolRefusedError: the call has no result.
        """
        may_repeat = True
        while True:
            session = await self._server.session()
            tool = session.tools.get(self._tool)
            if tool is None:
                message = f"The server has no tool {self._tool!r} now."
                raise ToolRefusedError(message, code="unknown_tool")
            problem = tool.check.problem(args)
            if problem is not None:
                raise ToolRefusedError(problem)
            try:
                return await session.call(self._tool, args)
            except CallLostError as lost:
                if lost.may_have_executed and not tool.spec.idempotent:
                    if lost.code != SERVER_LOST:
                        raise
                    message = f"Outcome unknown: the server was lost during the call. {lost}"
                    raise ToolRefusedError(message, code=OUTCOME_UNKNOWN) from None
                if not may_repeat:
                    raise
                may_repeat = False


class McpServers:
    """All configured servers; implements ``ToolServers``.

    A tenant with credentials for a server has its own session with it, which is never shared.
    """

    def __init__(
        self, configs: Iterable[ServerConfig], credentials: Credentials | None = None
    ) -> None:
        """Register the servers without starting any."""
        self._servers = {each.name: McpServer(each) for each in configs}
        self._credentials = credentials
        self._of_tenants: dict[tuple[str, str], McpServer] = {}
        self.names: Sequence[str] = sorted(self._servers)

    def serves(self, name: str) -> bool:
        """Return whether a full name belongs to a configured server that allows the tool."""
        server, _, tool = name.partition(".")
        return server in self._servers and self._servers[server].config.allows(tool)

    async def tools(self, server: str, tenant: str = "") -> Sequence[ToolSpec]:
        """Return a server's tools, sorted by name.

        Raises:
            ServerUnavailableError: the server is unavailable or not configured.
        """
        if server not in self._servers:
            raise ServerUnavailableError(f"No tool server {server!r} is configured.")
        session = await (await self._server_of(server, tenant)).session()
        return [tool.spec for tool in session.tools.values()]

    async def find(self, name: str, tenant: str = "") -> Tool:
        """Return a tool by its full name, for which :meth:`serves` must have returned True.

        Raises:
            ServerUnavailableError: the credentials of ``tenant`` cannot be read.
        """
        of, _, tool_name = name.partition(".")
        server = await self._server_of(of, tenant)
        spec = spec_of(server.config, tool_name)
        try:
            tool = (await server.session()).tools.get(tool_name)
        except ServerUnavailableError:
            tool = None
        return McpTool(server, tool_name, spec if tool is None else tool.spec)

    async def aclose(self) -> None:
        """Close all servers concurrently."""
        async with asyncio.TaskGroup() as group:
            for server in (*self._servers.values(), *self._of_tenants.values()):
                group.create_task(server.aclose())

    async def _server_of(self, name: str, tenant: str) -> McpServer:
        """Return a server as a tenant calls it: with its own credentials, or the configured ones.

        Raises:
            ServerUnavailableError: the credentials cannot be read.
        """
        shared = self._servers[name]
        if self._credentials is None or not tenant or not shared.config.url:
            return shared
        headers = await self._credentials(tenant, name)
        tenant_server = self._of_tenants.pop((tenant, name), None)
        usual = {each.lower(): value for each, value in shared.config.headers.items()}
        config = replace(shared.config, headers=usual | dict(headers))
        if tenant_server is not None and tenant_server.config != config:
            tenant_server.end("Its credentials were changed.")
            tenant_server = None
        if not headers:
            return shared
        tenant_server = self._of_tenants[tenant, name] = tenant_server or McpServer(config)
        if len(self._of_tenants) > MAX_TENANT_SERVERS:
            counts = Counter(each for each, _ in self._of_tenants)
            [(busiest, _)] = counts.most_common(1)
            oldest = next(each for each in self._of_tenants if each[0] == busiest)
            self._of_tenants.pop(oldest).end("It was not used for long.")
        return tenant_server
