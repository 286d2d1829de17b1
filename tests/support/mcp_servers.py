"""MCP servers for tests: the hostile one, and configurations for any server."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from caseworker.tools.mcp.config import ServerConfig
from caseworker.tools.mcp.servers import McpServers
from caseworker.tools.ports import ToolContext, ToolResult
from tests.support.npm_packages import installed_packages, node
from tests.support.processes import ChildProcess

NPM_SERVERS = Path(__file__).parent / "npm_servers"
_ON_LOOPBACK = """
import net from "node:net";
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (port, ...rest) {
  this.once("listening", () => console.log(JSON.stringify({ port: this.address().port })));
  return listen.call(this, { port: Number(port), host: "127.0.0.1" }, ...rest);
};
"""
"""The published server listens on all interfaces and does not report its port."""
ROOT = Path(__file__).parents[2]
CONTEXT = ToolContext(run_id="run-1", timezone="UTC", now=datetime(2026, 1, 1, tzinfo=UTC))


def config(name: str, **more: Any) -> ServerConfig:
    """Return the configuration of a server, with timeouts for a slow machine."""
    usual = {
        "timeout_seconds": 120.0,
        "progress_timeout_seconds": 120.0,
        "start_timeout_seconds": 120.0,
        "max_message_bytes": 1 << 20,
    }
    return ServerConfig(name=name, **{**usual, **more})


class Hostile:
    """The hostile server as the service uses it, and its log."""

    def __init__(self, log: Path, **more: Any) -> None:
        self.path = log
        self.path.touch()
        command = (sys.executable, "-m", "tests.support.hostile_mcp", str(log))
        env = {"PYTHONPATH": str(ROOT), **more.pop("env", {})}
        self.servers = McpServers([config("h", command=command, env=env, **more)])

    async def call(self, tool: str, **args: Any) -> ToolResult:
        """Call a tool by the name that the server uses."""
        found = await self.servers.find(f"h.{tool}")
        return await found.run(args, CONTEXT)

    def lines(self, start: str = "") -> list[str]:
        """Return the log lines of the server, across all its processes."""
        return [line for line in self.path.read_text().splitlines() if line.startswith(start)]

    def pids(self) -> list[int]:
        """Return the PIDs of all processes of the server, including ended ones."""
        return [int(line.split()[1]) for line in self.lines("start")]


@asynccontextmanager
async def hostile(log: Path, **more: Any) -> AsyncIterator[Hostile]:
    """Run a hostile server for the block."""
    server = Hostile(log, **more)
    try:
        yield server
    finally:
        await server.servers.aclose()


async def until(what: Callable[[], Any]) -> None:
    """Wait until ``what()`` is true."""
    async with asyncio.timeout(150):
        while not what():  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@asynccontextmanager
async def everything(folder: Path) -> AsyncIterator[str]:
    """The protocol authors' server-everything over streamable HTTP; yields its URL."""
    program = installed_packages(NPM_SERVERS) / "@modelcontextprotocol/server-everything/dist"
    preload = folder / "on_loopback.mjs"
    preload.write_text(_ON_LOOPBACK)
    command = node("--import", preload, program / "index.js", "streamableHttp")
    with ChildProcess(command, env={"PORT": "0"}, name="everything") as child:
        port = (await child.json_line("port"))["port"]
        yield f"http://127.0.0.1:{port}/mcp"


GENERATIONS = ["auto", "legacy"]
"""Modes of the MCP client: stateless requests, or the handshake of protocol versions up to 2025."""


def hostile_settings(log: Path) -> dict[str, Any]:
    log.touch()
    command = ["-m", "tests.support.hostile_mcp", str(log)]
    env = ["PYTHONPATH", "WITHOUT"]
    return {"command": sys.executable, "args": command, "env": env, "start_timeout_seconds": 120}


def mcp_settings(servers: Mapping[str, Any], **more: str) -> dict[str, str]:
    text = json.dumps(servers)
    return {"TOOLS_MCP_SERVERS": text, "PYTHONPATH": str(ROOT), "WITHOUT": "-", **more}
