"""The interface to external tool servers, and the guarantees that it gives.

An operator configures each server under a name; its tools are named ``<server>.<tool>``. A server
may be down, and its tools may change at any time. Nothing about them is certain before a call, so
each call validates its own arguments.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from caseworker.tools.ports import Tool, ToolSpec

SERVER_LOST = "server_lost"
"""Error code for a call whose server is unavailable or was lost before it answered."""


Credentials = Callable[[str, str], Awaitable[Mapping[str, str]]]
"""Function that returns the HTTP headers of a tenant for a server; empty if it has none. It may
raise a ServerUnavailableError."""


class ServerUnavailableError(Exception):
    """A server is currently unavailable. The message is safe to show to users."""

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        """Seconds until the next start attempt, if known."""


@dataclass(frozen=True, slots=True)
class ServerListing:
    """A server's current tools, or the reason why it is unavailable."""

    server: str
    tools: Sequence[ToolSpec] = ()
    """The server's tools, sorted by name; empty if it is unavailable."""
    problem: str | None = None
    """Why the server is unavailable; None if it is available."""


class ToolServers(Protocol):
    """A process's configured tool servers; each is started on first use."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the servers, sorted."""
        ...

    def serves(self, name: str) -> bool:
        """Return whether a full tool name belongs to a configured server.

        Whether the server has such a tool is known only when it is queried.
        """
        ...

    async def tools(self, server: str, tenant: str = "") -> Sequence[ToolSpec]:
        """Return a server's current tools, sorted by name; start the server if necessary.

        The server is called with the credentials of ``tenant``, if it has any.

        Raises:
            ServerUnavailableError: it cannot be started, does not answer, or is not configured.
        """
        ...

    async def find(self, name: str, tenant: str = "") -> Tool:
        """Return a tool by its full name, for which ``serves`` must have returned True.

        If the server is unavailable or has no such tool, return a tool whose calls fail with that
        reason. The journal can then still replay calls made by an earlier process.

        Raises:
            ServerUnavailableError: the credentials of ``tenant`` cannot be read.
        """
        ...

    async def aclose(self) -> None:
        """Stop every server that was started."""
        ...


class NoServers:
    """Implements ``ToolServers`` for a process that has no tool servers."""

    names: Sequence[str] = ()

    def serves(self, name: str) -> bool:
        """Return False."""
        return False

    async def tools(self, server: str, tenant: str = "") -> Sequence[ToolSpec]:
        """Raise ServerUnavailableError."""
        raise ServerUnavailableError(f"No tool server {server!r} is configured.")

    async def find(self, name: str, tenant: str = "") -> Tool:
        """Raise KeyError."""
        raise KeyError(name)

    async def aclose(self) -> None:
        """Do nothing."""


NO_SERVERS: Final = NoServers()
