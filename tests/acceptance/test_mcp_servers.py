"""Runs of a real service use tools of third-party MCP servers."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from caseworker_client import ApiError

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.graph_documents import edge, tool_step
from tests.support.json_client import JsonClient
from tests.support.mcp_servers import (
    NPM_SERVERS,
    alive,
    everything,
    hostile_settings,
    mcp_settings,
    until,
)
from tests.support.npm_packages import installed_packages
from tests.support.service import ServiceProcess, finished, model_settings
from tests.support.threads import link, offered


def graph(*steps: dict[str, Any]) -> dict[str, Any]:
    ids = [each["id"] for each in steps]
    edges = [edge(a, b, channel="flow") for a, b in pairwise(ids)]
    return {"steps": list(steps), "edges": edges}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a git repository with one commit."""
    folder = tmp_path / "repository"
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    commit = ["git", *who, "-C", str(folder), "commit", "-q", "--allow-empty", "-m", "Begin well"]
    subprocess.run(commit, check=True)
    return folder


@pytest.fixture
async def client(database_url: str, tmp_path: Path, repository: Path) -> AsyncIterator[JsonClient]:
    """Run a service with two servers from PyPI, one from npm over HTTP, and a missing one."""
    installed_packages(NPM_SERVERS)
    async with everything(tmp_path) as url:
        servers: dict[str, dict[str, Any]] = {
            "time": {"command": sys.executable, "args": ["-m", "mcp_server_time"]},
            "git": {
                "command": sys.executable,
                "args": ["-m", "mcp_server_git", "--repository", str(repository)],
                "allow": ["git_log", "git_status"],
            },
            "everything": {"url": url},
            "gone": {"command": "/no/such/program"},
        }
        for server in servers.values():
            server["start_timeout_seconds"] = 120
        async with (
            ServiceProcess(database_url, settings=mcp_settings(servers)) as service,
            service.client() as opened,
        ):
            yield opened


async def test_runs_use_servers_that_others_wrote_over_pipes_and_over_http(
    client: JsonClient, repository: Path
) -> None:
    """Texts, structured results and pictures arrive; the service refuses wrong arguments."""
    async with httpx.AsyncClient(trust_env=False, timeout=150) as plain:
        listed = (await plain.get(f"{client.url}/tools")).json()["servers"]
    by_name = {each["name"]: each for each in listed}
    tools = {tool["name"]: tool for each in listed for tool in each["tools"]}

    assert {name: each["available"] for name, each in by_name.items()} == {
        "everything": True,
        "git": True,
        "gone": False,
        "time": True,
    }
    assert "'gone' cannot be used" in by_name["gone"]["problem"]
    assert [tool["name"] for tool in by_name["git"]["tools"]] == ["git.git_log", "git.git_status"]
    assert tools["git.git_log"]["external"] is True

    run = await client.run_graph(
        graph(
            tool_step(
                "berlin",
                "time.convert_time",
                source_timezone="UTC",
                time="12:00",
                target_timezone="Asia/Tokyo",
            ),
            tool_step("log", "git.git_log", repo_path=str(repository)),
            tool_step("echo", "everything.echo", message="hello"),
            tool_step("weather", "everything.get-structured-content", location="New York"),
            tool_step("picture", "everything.get-tiny-image"),
        ),
        wait_seconds=120,
    )
    assert run["status"] == "completed", run
    outputs = {name: each["default"] for name, each in run["result"]["outputs"].items()}
    assert "T21:00:00+09:00" in json.dumps(outputs["berlin"])
    assert "Begin well" in outputs["log"]["text"]
    assert outputs["echo"] == {"text": "Echo: hello"}
    assert outputs["weather"]["structured"]["temperature"] == 33
    assert outputs["picture"]["artifacts"][0]["media_type"] == "image/png"

    wrong = await client.run_graph(
        graph(tool_step("sum", "everything.get-sum", a="x")), wait_seconds=120
    )
    assert wrong["status"] == "failed"
    assert "invalid_arguments" in json.dumps(wrong["stop"])

    few = await client.run_graph(
        graph(
            tool_step("a", "everything.echo", message="1"), tool_step("b", "time.get_current_time")
        ),
        budget={"max_tool_calls": 1},
        wait_seconds=120,
    )
    assert (few["status"], few["stop"]["kind"]) == ("halted", "budget")


async def test_a_cancelled_run_cancels_its_request_and_disturbs_no_other(
    database_url: str, tmp_path: Path
) -> None:
    """The server is notified and keeps running in the same process."""
    log = tmp_path / "log"
    configured = mcp_settings({"h": hostile_settings(log)})
    async with (
        ServiceProcess(database_url, settings=configured) as service,
        service.client() as client,
    ):
        run = await client.run_graph(graph(tool_step("hang", "h.hang")))
        await until(lambda: "call hang" in log.read_text())
        await client.cancel_run(run["run_id"])
        await until(lambda: "cancelled" in log.read_text())
        other = await client.run_graph(graph(tool_step("e", "h.echo", text="on")), wait_seconds=120)
        ended = await finished(client, run["run_id"])

    assert ended["status"] == "cancelled"
    assert other["result"]["outputs"]["e"]["default"] == {"text": "on"}
    assert log.read_text().count("start") == 1


async def test_a_run_keeps_what_it_got_from_a_tool_that_is_gone_after_a_crash(
    database_url: str, tmp_path: Path
) -> None:
    """Killing the service ends the server; the next process replays the finished call."""
    log = tmp_path / "log"
    server = {"h": hostile_settings(log)}
    service = ServiceProcess(database_url, settings=mcp_settings(server))
    async with service, service.client() as client:
        document = graph(
            tool_step("kept", "h.echo", text="${default}"), tool_step("open", "h.hang")
        )
        run = await client.run_graph(document, inputs={"default": "once"})
        await until(lambda: "call hang" in log.read_text())
        service.child.kill()
        await until(lambda: "stdin closed" in log.read_text())
        first = int(log.read_text().split()[1])
        await until(lambda: not alive(first))

    again = ServiceProcess(database_url, settings=mcp_settings(server, WITHOUT="echo"))
    async with again, again.client() as client:
        ended = await finished(client, run["run_id"])

    assert ended["result"]["outputs"]["kept"]["default"] == {"text": "once"}
    assert log.read_text().count("call echo") == 1
    assert log.read_text().count("call hang") == 1
    assert "outcome_unknown" in json.dumps(ended["stop"])


async def test_a_toolset_gives_an_agent_the_tools_of_a_server_that_it_allows(
    database_url: str, provider: FakeProvider, tmp_path: Path
) -> None:
    """Allowed tools are offered next to others; the rest are hidden, and refused if called."""
    calls = [
        {"id": "c1", "name": "h_echo", "arguments": '{"text": "heard"}'},
        {"id": "c2", "name": "h_refuse", "arguments": "{}"},
    ]
    await provider.script("(toolset)", [Step(tool_calls=calls), Step(text="Done.")])
    tools = {"tools": ["calculator"], "mcp": [{"server": "h", "allow": ["echo"]}]}
    agent = {"name": "helper", "prompt": {"system": "Help."}}
    steps = [
        {"id": "tools", "type": "toolset", "data": tools},
        {"id": "a", "type": "agent", "data": {"agent": agent}},
    ]
    log = tmp_path / "log"
    servers = mcp_settings({"h": hostile_settings(log)}, **model_settings(provider.openai_url))
    async with (
        ServiceProcess(database_url, settings=servers) as service,
        service.client() as client,
    ):
        linked = {"steps": steps, "edges": [link("tools", "a")]}
        run = await client.run_graph(linked, inputs={"default": "Go (toolset)"}, wait_seconds=120)
        unknown = {**tools, "mcp": [{"server": "nobody"}]}
        wrong = {"steps": [{**steps[0], "data": unknown}, steps[1]], "edges": linked["edges"]}
        with pytest.raises(ApiError, match="nobody"):
            await client.run_graph(wrong, inputs={"default": "Go"})

    assert run["status"] == "completed", run
    assert (await offered(provider, "(toolset)"))[0] == ["calculator", "h_echo", "finish"]
    messages = run["result"]["outputs"]["a"]["result"]["messages"]
    results = [json.loads(one["content"]) for one in messages if one["role"] == "tool"]
    assert results[0] == {"text": "heard"}
    assert results[1]["code"] == "unknown_tool"
    called = [line for line in log.read_text().splitlines() if line.startswith("call")]
    assert called == ["call echo"]
