"""How one MCP server is reached, and what it may do at most."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """A server that an operator has configured: a program to start, or a URL."""

    name: str
    command: tuple[str, ...] = ()
    """The program and its arguments; empty if the server has a URL."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the program gets besides PATH, HOME and the like."""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every request to the URL."""
    allow: frozenset[str] | None = None
    """The server's own names of the tools that may be used; None is all of them."""
    timeout_seconds: float
    """Of one call."""
    start_timeout_seconds: float
    """Until the server has started, said which protocol it speaks and listed its tools."""
    max_message_bytes: int
    """Of one message of the server, as it is read."""

    def allows(self, tool: str) -> bool:
        """Tell whether a tool may be used, by the server's own name for it."""
        return bool(tool) and (self.allow is None or tool in self.allow)
