"""The service under attack."""

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Self

import httpx

_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """The service under attack."""

    url: str
    key: str = ""
    """The key sent with each request; empty sends none."""

    @property
    def address(self) -> tuple[str, int]:
        """The address of the service."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send one request."""
        if self.key:
            headers = {"Authorization": f"Bearer {self.key}", **options.pop("headers", {})}
            options["headers"] = headers
        usual: dict[str, Any] = {"timeout": _PATIENCE_SECONDS, "trust_env": False}
        usual["verify"] = False  # the URL is not https, and loading certificates takes long
        return httpx.request(method, self.url + path, **usual, **options)

    def as_tenant(self, tenant: str) -> Self:
        """Return the same service with a new key of a tenant, created by the operator."""
        body = {"name": "attack", "tenant": tenant, "scopes": ["admin"]}
        return replace(self, key=self.ask("POST", "/keys", json=body).json()["key"])

    def run(self, graph: Mapping[str, Any], **fields: Any) -> str:
        """Run a graph; return its outcome as text."""
        body = {"kind": "graph", "graph": graph, **fields}
        began = time.monotonic()
        answer = self.ask("POST", "/runs", json=body, headers={"Prefer": "wait=20"})
        shown = answer.json()
        said = shown.get("status") if answer.is_success else f"HTTP {answer.status_code}"
        return f"{said}, {len(answer.content) >> 10} KB in {time.monotonic() - began:.1f} s"

    def connect(self, first: bytes = b"") -> socket.socket:
        """Open a connection and send the first bytes."""
        connection = socket.create_connection(self.address, timeout=10)
        with suppress(OSError):  # it was refused already
            connection.sendall(first)
        return connection


@contextmanager
def open_connections(target: Target, count: int, begun: bytes) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(target.connect(begun)) for _ in range(count)]
