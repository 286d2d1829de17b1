"""Nine published MCP servers do what their documents say when runs call their tools."""

import json
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from bench.environments import peer_environment
from tests.support.mcp_servers import NPM_SERVERS, everything
from tests.support.npm_packages import installed_packages, node
from tests.support.service import ServiceProcess

pytestmark = pytest.mark.proof

RUN_SQLITE = "from mcp_server_sqlite import main; main()"
PYPI = {
    "time": (("mcp-server-time==2026.10.19",), ("-m", "mcp_server_time")),
    "git": (("mcp-server-git==2026.10.19",), ("-m", "mcp_server_git")),
    "fetch": (
        ("mcp-server-fetch==2026.10.24",),
        ("-m", "mcp_server_fetch", "--ignore-robots-txt", "--allow-private-ips"),
    ),
    "calculator": (("mcp-server-calculator==0.2.1",), ("-m", "mcp_server_calculator")),
    "sqlite": (("mcp-server-sqlite==2025.4.25", "mcp==1.30.0"), ("-c", RUN_SQLITE)),
}
"""Packages and command of each server; the oldest needs version 1 of the SDK."""
NPM = ("filesystem", "memory", "sequential-thinking")


async def programs(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the configurations of the servers that are programs."""
    servers: dict[str, dict[str, Any]] = {}
    for name, (packages, arguments) in PYPI.items():
        python = (await peer_environment(*packages)).python
        servers[name] = {"command": str(python), "args": list(arguments)}
    servers["sqlite"]["args"] += ["--db-path", str(folder / "test.db")]
    scripts = installed_packages(NPM_SERVERS) / "@modelcontextprotocol"
    for name in NPM:
        command, *script = node(scripts / f"server-{name}" / "dist" / "index.js")
        servers[name] = {"command": command, "args": script}
    servers["filesystem"]["args"] += [str(folder)]
    servers["memory"]["env"] = ["MEMORY_FILE_PATH"]
    return servers


@asynccontextmanager
async def page(folder: Path) -> AsyncIterator[str]:
    """Serve the files of a folder on loopback; yield the URL."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def calls(folder: Path, url: str) -> list[tuple[str, dict[str, Any], str]]:
    """Return calls in their order, each with a text that its result contains."""
    note = str(folder / "note.txt")
    entity = {"name": "Ada", "entityType": "person", "observations": ["likes engines"]}
    thought = {
        "thought": "First.",
        "thoughtNumber": 1,
        "totalThoughts": 1,
        "nextThoughtNeeded": False,
    }
    tokyo = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    resources = {"resourceType": "Text", "resourceId": 1}
    return [
        ("time.convert_time", tokyo, "T21:00:00+09:00"),
        ("git.git_log", {"repo_path": str(folder)}, "Begin well"),
        ("fetch.fetch", {"url": f"{url}/page.html"}, "Bolts are 35 cents"),
        ("calculator.calculate", {"expression": "6 * 7"}, "42"),
        ("sqlite.create_table", {"query": "CREATE TABLE t (n INTEGER)"}, "created"),
        ("sqlite.write_query", {"query": "INSERT INTO t VALUES (41), (42)"}, "2"),
        ("sqlite.read_query", {"query": "SELECT max(n) AS top FROM t"}, "42"),
        ("filesystem.write_file", {"path": note, "content": "hello"}, "note.txt"),
        ("filesystem.read_text_file", {"path": note}, "hello"),
        ("filesystem.list_directory", {"path": str(folder)}, "note.txt"),
        ("memory.create_entities", {"entities": [entity]}, "likes engines"),
        ("memory.search_nodes", {"query": "engines"}, "Ada"),
        ("sequential-thinking.sequentialthinking", thought, "thoughtHistoryLength"),
        ("everything.echo", {"message": "hello"}, "Echo: hello"),
        ("everything.get-sum", {"a": 2, "b": 3}, "5"),
        ("everything.get-structured-content", {"location": "New York"}, "temperature"),
        ("everything.get-tiny-image", {}, "image/png"),
        ("everything.get-resource-links", {"count": 2}, "demo://resource"),
        ("everything.get-resource-reference", resources, "demo://resource"),
        ("everything.trigger-long-running-operation", {"duration": 1, "steps": 2}, "completed"),
    ]


def repository(folder: Path) -> None:
    """Make the folder a git repository with one commit."""
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    commit = ["git", *who, "-C", str(folder), "commit", "-q", "--allow-empty", "-m", "Begin well"]
    subprocess.run(commit, check=True)


async def test_tools_of_nine_published_servers_return_their_results(
    database_url: str, tmp_path: Path
) -> None:
    """Each call is a run; its result has the data once."""
    repository(tmp_path)
    (tmp_path / "page.html").write_text("<html><body><p>Bolts are 35 cents.</p></body></html>")
    servers = await programs(tmp_path)
    results = {}
    async with page(tmp_path) as url, everything(tmp_path) as everything_url:
        servers["everything"] = {"url": everything_url}
        for server in servers.values():
            server["start_timeout_seconds"] = 120
        settings = {
            "TOOLS_MCP_SERVERS": json.dumps(servers),
            "MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl"),
        }
        async with (
            ServiceProcess(database_url, settings=settings) as service,
            service.client() as client,
        ):
            for tool, args, _ in calls(tmp_path, url):
                step = {"id": "s", "type": "tool", "data": {"tool": tool, "args": args}}
                run = await client.run_graph({"steps": [step], "edges": []}, wait_seconds=120)
                results[tool] = json.dumps(run["result"])
        expected = {tool: text for tool, _, text in calls(tmp_path, url)}

    assert {tool for tool, text in expected.items() if text not in results[tool]} == set(), results
    assert results["memory.search_nodes"].count("likes engines") == 1
    assert results["everything.get-structured-content"].count("temperature") == 1
    with sqlite3.connect(tmp_path / "test.db") as database:
        assert database.execute("SELECT sum(n) FROM t").fetchone() == (83,)
