"""An MCP server with sessions, on version 1 of the SDK in a separate environment.

Start it with ``python restarted_mcp.py PORT LOG``. It adds a line to the file LOG for each call,
and prints a line of JSON when it listens.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import uvicorn

PORT, LOG = int(sys.argv[1]), Path(sys.argv[2])


def note(line: str) -> str:
    with LOG.open("a") as file:
        file.write(f"{line}\n")
    return line


async def read(key: str) -> str:
    """Read a key."""
    return note(f"read {key}")


async def write(key: str) -> str:
    """Write a key once."""
    return note(f"write {key}")


class Announcing(uvicorn.Server):
    """Prints its port when it listens."""

    async def startup(self, sockets: object = None) -> None:
        await super().startup(sockets)  # type: ignore[arg-type]
        port = self.servers[0].sockets[0].getsockname()[1]
        sys.stdout.write(json.dumps({"port": port}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sdk: Any = import_module("mcp.server.fastmcp")
    types: Any = import_module("mcp.types")
    server = sdk.FastMCP("restarted", log_level="WARNING")
    server.add_tool(read, annotations=types.ToolAnnotations(readOnlyHint=True))
    server.add_tool(write)
    settings = uvicorn.Config(
        server.streamable_http_app(), port=PORT, log_level="warning", access_log=False
    )
    Announcing(settings).run()
