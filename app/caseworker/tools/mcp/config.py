"""Connection settings and limits for one MCP server."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from caseworker.platform.logs.secret_mask import SecretMask, secrets_in


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Configuration of an MCP server, which is either a program to start or a URL."""

    name: str
    command: tuple[str, ...] = ()
    """Program to start, with its arguments; empty if the server has a URL."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for the program, in addition to PATH, HOME and similar ones."""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """HTTP headers to send with every request to the URL."""
    allow: frozenset[str] | None = None
    """Names of the allowed tools, as the server names them; None allows all."""
    timeout_seconds: float
    """Time limit for one call, in seconds."""
    progress_timeout_seconds: float
    """Time limit in seconds for a call while its server reports progress."""
    start_timeout_seconds: float
    """Time limit in seconds for starting the server, negotiating the protocol and listing its
    tools."""
    max_message_bytes: int
    """Maximum size of one message from the server, in bytes."""

    def mask(self) -> SecretMask:
        """Return the mask of the server's headers, and of the secrets in its environment."""
        return SecretMask([*self.headers.values(), *secrets_in(self.env)])

    def allows(self, tool: str) -> bool:
        """Return whether a tool is allowed; ``tool`` is its name on the server."""
        return bool(tool) and (self.allow is None or tool in self.allow)
