"""Connection settings and limits of one MCP server."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """A configured server: a program to start, or a URL."""

    name: str
    command: tuple[str, ...] = ()
    """The program and its arguments; empty if the server has a URL."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the program, in addition to PATH, HOME and similar ones."""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of every request to the URL."""
    allow: frozenset[str] | None = None
    """Allowed tools by the server's own names; None allows all."""
    timeout_seconds: float
    """Time limit of one call."""
    start_timeout_seconds: float
    """Time limit for starting the server, negotiating the protocol and listing its tools."""
    max_message_bytes: int
    """Maximum size of one message from the server."""

    def allows(self, tool: str) -> bool:
        """Return whether a tool is allowed, by the server's own name for it."""
        return bool(tool) and (self.allow is None or tool in self.allow)
