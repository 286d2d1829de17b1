"""The port to external tool servers, and the guarantees that it gives.

An operator configures each server under a name; its tools are named ``<server>.<tool>``. A server
may be down, and its tools may change at any time. Nothing about them is certain before a call, so
each call checks its own arguments.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from caseworker.tools.ports import Tool, ToolSpec

SERVER_LOST = "server_lost"
"""The error code of a call whose server is unavailable or was lost before it answered."""


class ServerUnavailableError(Exception):
    """A server is currently unavailable; the message is safe to show."""

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        """Seconds until the next start attempt, if known."""


@dataclass(frozen=True, slots=True)
class ServerListing:
    """The current tools of a server, or why it is unavailable."""

    server: str
    tools: Sequence[ToolSpec] = ()
    """Sorted by name."""
    problem: str | None = None
    """Why the server is unavailable; None if it is available."""


class ToolServers(Protocol):
    """The configured servers of a process; each is started on first use."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the servers, sorted."""
        ...

    def serves(self, name: str) -> bool:
        """Return whether a full tool name belongs to a configured server.

        Whether the server has such a tool is known only when it is queried.
        """
        ...

    async def tools(self, server: str) -> Sequence[ToolSpec]:
        """Return the current tools of a server, by name; start the server if necessary.

        Raises:
            ServerUnavailableError: it cannot be started, does not answer, or is not configured.
        """
        ...

    async def find(self, name: str) -> Tool:
        """Return the tool of a full name for which ``serves`` is true.

        If the server is unavailable or has no such tool, return a tool whose calls fail with that
        reason. The journal can then still replay calls made by an earlier process.
        """
        ...

    async def aclose(self) -> None:
        """Stop every server that was started."""
        ...


class NoServers:
    """The tool servers of a process without any."""

    names: Sequence[str] = ()

    def serves(self, name: str) -> bool:
        """Return False."""
        return False

    async def tools(self, server: str) -> Sequence[ToolSpec]:
        """Raise ServerUnavailableError."""
        raise ServerUnavailableError(f"No tool server {server!r} is configured.")

    async def find(self, name: str) -> Tool:
        """Raise KeyError."""
        raise KeyError(name)

    async def aclose(self) -> None:
        """Do nothing."""
