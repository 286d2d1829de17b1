"""MCP servers that show the credentials with which they are called, in every form and place.

The servers are built with the official SDK. Operators configure the credentials, or tenants store
them. No result, trace, event, tool list, log line or table shows them.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import pytest_asyncio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult, EmbeddedResource, TextContent, TextResourceContents

from tests.support.echoes import FORMS, SECRET, shows
from tests.support.external_tools import ENCRYPTION_KEY
from tests.support.service import ServiceProcess
from tests.support.surfaces import columns_of
from tests.support.tenants import OPERATOR_KEY

OF_TENANT = "own-" + SECRET
RESULTS = ("text", "structured", "key", "resource", "progress")
ERRORS = ("error", "protocol error")
OPERATOR = {"Authorization": f"Bearer {OPERATOR_KEY}"}


async def echo(form: str, place: str, context: Context[Any, Any]) -> CallToolResult:
    """Show the credentials of the caller."""
    headers = context.headers or {}
    shown = FORMS[form](headers.get("authorization", "").removeprefix("Bearer "))
    text = [TextContent(text=shown if place in ("text", "error") else "done")]
    match place:
        case "structured":
            return CallToolResult(content=text, structured_content={"a": [shown]})
        case "key":
            return CallToolResult(content=text, structured_content={shown: 1})
        case "error":
            return CallToolResult(content=text, is_error=True)
        case "protocol error":
            raise ValueError(shown)
        case "resource":
            resource = TextResourceContents(uri="file:///x", text=shown)
            return CallToolResult(content=[EmbeddedResource(resource=resource)])
        case "progress":
            await context.report_progress(1, 2, shown)
    return CallToolResult(content=text)


@asynccontextmanager
async def echoing() -> AsyncIterator[str]:
    """Run the server over streamable HTTP; yields its URL."""
    server = MCPServer("echo")
    server.tool()(echo)
    app = server.streamable_http_app(stateless_http=True)
    serving = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    async with asyncio.TaskGroup() as group:
        group.create_task(serving.serve())
        while not serving.started:  # noqa: ASYNC110 - the library has no event
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{serving.servers[0].sockets[0].getsockname()[1]}/mcp"
        serving.should_exit = True


PROGRAM = """
import os, sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("program")

@server.tool(description="Knows " + os.environ["MY_TOKEN"])
def env() -> str:
    return os.environ["MY_TOKEN"] + " in " + os.environ["FOLDER_OF_FILES"]

@server.tool()
def crash() -> str:
    print("x" * 3000 + " " + os.environ["MY_TOKEN"], file=sys.stderr, flush=True)
    os._exit(1)

server.run("stdio")
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(
    module_database_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceProcess]:
    """Run a service with a server over HTTP and a server that is a program."""
    program = tmp_path_factory.mktemp("mcp") / "program.py"
    await asyncio.to_thread(program.write_text, PROGRAM)
    async with echoing() as url:
        servers = {
            "web": {"url": url, "headers": {"Authorization": "CREDENTIALS"}},
            "program": {
                "command": sys.executable,
                "args": [str(program)],
                "env": ["MY_TOKEN", "FOLDER_OF_FILES"],
            },
        }
        settings = {
            "TOOLS_MCP_SERVERS": json.dumps(servers),
            "CREDENTIALS": f"Bearer {SECRET}",
            "MY_TOKEN": SECRET,
            "FOLDER_OF_FILES": "/srv/all/files",
            "LOGGING_LEVEL": "debug",
            "AUTH_BOOTSTRAP_KEY": OPERATOR_KEY,
            "SECRETS_ENCRYPTION_KEY": ENCRYPTION_KEY,
        }
        async with ServiceProcess(module_database_url, settings=settings) as running:
            yield running


async def result_of(http: httpx.AsyncClient, tool: str, *calls: dict[str, str]) -> str:
    """Call a tool in a run with each of the arguments; return all that the service shows of it."""
    steps = [
        {"id": f"s{number}", "type": "tool", "data": {"tool": tool, "args": args}}
        for number, args in enumerate(calls)
    ]
    body = {"kind": "graph", "graph": {"steps": steps, "edges": []}}
    run = await http.post("/runs", json=body, headers={"Prefer": "wait=30"})
    run_id = run.json()["run_id"]
    json_only = {"accept": "application/json"}
    views = [run, await http.get(f"/runs/{run_id}/trace?payloads=true")]
    views.append(await http.get(f"/runs/{run_id}/events", headers=json_only))
    assert all(view.is_success for view in views)
    return "\n".join(json.dumps(view.json(), ensure_ascii=False) for view in views)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("form", FORMS)
async def test_no_form_of_a_header_is_shown(service: ServiceProcess, form: str) -> None:
    """Neither in a text, a value, a key, an error, a resource nor a progress message."""
    async with service.http(**OPERATOR) as http:
        results = await result_of(http, "web.echo", *({"form": form, "place": p} for p in RESULTS))
        errors = [await result_of(http, "web.echo", {"form": form, "place": p}) for p in ERRORS]

    assert not any(shows(text, SECRET) for text in (results, *errors))
    assert results.count("[secret]") >= len(RESULTS) - 1  # progress is not shown at all
    assert all("[secret]" in text for text in errors[:1])


@pytest.mark.asyncio(loop_scope="module")
async def test_the_credentials_of_a_tenant_are_not_shown(service: ServiceProcess) -> None:
    """They replace those of the operator."""
    body = {"name": "robot", "scopes": ["admin"], "tenant": "own"}
    async with service.http(**OPERATOR) as operator:
        key = (await operator.post("/keys", json=body)).json()["key"]
    async with service.http(authorization=f"Bearer {key}") as http:
        stored = await http.put(
            "/mcp-credentials/web", json={"headers": {"authorization": f"Bearer {OF_TENANT}"}}
        )
        shown = [
            await result_of(http, "web.echo", {"form": form, "place": "structured"})
            for form in ("as it is", "percent", "JSON in JSON")
        ]

    assert stored.status_code == 204
    assert not any(shows(text, SECRET) for text in shown)
    assert all("[secret]" in text for text in shown)


@pytest.mark.asyncio(loop_scope="module")
async def test_secrets_in_the_environment_of_a_program_are_not_shown(
    service: ServiceProcess,
) -> None:
    """Its result, its description and the end of its log; other variables stay."""
    async with service.http(**OPERATOR) as http:
        shown = await result_of(http, "program.env", {})
        tools = (await http.get("/tools")).text
        crashed = await result_of(http, "program.crash", {})

    assert "[secret] in /srv/all/files" in shown
    assert "Knows [secret]" in tools
    assert not any(shows(text, SECRET) for text in (shown, tools, crashed))


@pytest.mark.asyncio(loop_scope="module")
async def test_neither_logs_nor_tables_show_a_secret(
    service: ServiceProcess, module_database_url: str
) -> None:
    """After all calls above."""
    assert "mcp.server_open" in service.child.stderr
    assert not shows(service.child.stderr, SECRET)
    assert [each.name for each in columns_of(module_database_url) if SECRET in each.text] == []
