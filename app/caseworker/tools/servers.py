"""Tools that other programs serve: what the service asks of them, and what it may rely on.

An operator configures each server under a name; its tools are called ``<server>.<tool>``. A server
may be down, and its tools may change at any time, so nothing about them is known for certain before
a call: a call checks its arguments where it is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from caseworker.tools.ports import Tool, ToolSpec

SERVER_LOST = "server_lost"
"""The code of a call whose server is not there, or went away before it answered."""


class ServerUnavailableError(Exception):
    """A server cannot be used at present; the message is safe to show."""

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        """How long it will not be started again, if that is known."""


@dataclass(frozen=True, slots=True)
class ServerListing:
    """What a server offers at present."""

    server: str
    tools: Sequence[ToolSpec] = ()
    """By name."""
    problem: str | None = None
    """Why it cannot be used; None if it can."""


class ToolServers(Protocol):
    """The configured servers of a process, each started at its first use."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the servers, sorted."""
        ...

    def serves(self, name: str) -> bool:
        """Tell whether a tool's full name is one that a configured server may use.

        Whether the server has such a tool shows only when it is asked.
        """
        ...

    async def tools(self, server: str) -> Sequence[ToolSpec]:
        """Return the tools that a server offers now, by name; it is started if need be.

        Raises:
            ServerUnavailableError: it cannot be started, does not answer, or is not configured.
        """
        ...

    async def find(self, name: str) -> Tool:
        """Return the tool of a full name for which ``serves`` is true.

        If the server cannot be asked or has no such tool, it is one whose calls say so: a call that
        an earlier process has made is replayed from the journal whatever became of its tool.
        """
        ...

    async def aclose(self) -> None:
        """End every server that was started."""
        ...


class NoServers:
    """The servers of a process that has none."""

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
