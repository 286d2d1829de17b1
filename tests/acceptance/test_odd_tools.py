"""Odd tools in a real process: it lives, and each call ends as a result or as an error."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.drawn_tools import DRAWN, DrawnTool, drawn, write
from tests.support.fake_provider.client import FakeProvider
from tests.support.json_client import JsonClient
from tests.support.odd_tools import ASYNC
from tests.support.service import ServiceProcess, finished, model_settings
from tests.support.stores import eventually

AT_ONCE = 8
"""Number of runs that a test executes concurrently."""

pytestmark = pytest.mark.req("002/5.5", "002/13.1")


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    tools = [
        *(f"raises_{name}_async" for name in ASYNC),
        *(
            f"raises_{name}_{kind}"
            for name in ("keyboard_interrupt", "generator_exit", "stop_iteration", "unreadable")
            for kind in ("plain", "async", "class")
        ),
        "returns_null_error_plain",
        *("leaks", "lingers", "waits_for_ever"),
    ]
    return {
        **model_settings(running_provider.openai_url),
        "TOOLS_PLUGINS": json.dumps([f"tests.support.odd_tools:{name}" for name in tools]),
        "AGENTS_PLUGINS": json.dumps([f"tests.support.odd_agents:{name}" for name in AGENTS]),
    }


AGENTS = ("interrupting", "closing", "exiting", "cancelling", "ending", "stopping", "blocked")


def graph_of(tool: str, args: dict[str, Any]) -> dict[str, Any]:
    data = {"tool": tool, "args": args}
    return {"edges": [], "steps": [{"id": "t", "type": "tool", "data": data}]}


async def outcome(client: JsonClient, tool: str, args: dict[str, Any] | None = None) -> str | None:
    """Return the error with which the only step of a run failed; None if it has a result."""
    run = await client.run_graph(graph_of(tool, args or {}), wait_seconds=60)
    if run["status"] == "completed":
        return None
    assert run["status"] == "failed", f"{tool}: {run}"
    step = run["result"]["steps"]["t"]
    assert step["error_class"] == "ToolFailedError", f"{tool}: {step}"
    error: str = step["error"]
    return error


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("keyboard_interrupt", "KeyboardInterrupt"),
        ("generator_exit", "GeneratorExit"),
        ("stop_iteration", "StopIteration"),
        ("unreadable", "UnreadableError"),
    ],
)
@pytest.mark.parametrize("kind", ["plain", "async", "class"])
async def test_what_a_tool_raises_fails_its_call_alone(
    service: ServiceProcess, client: JsonClient, name: str, said: str, kind: str
) -> None:
    """The process lives."""
    error = await outcome(client, f"raises_{name}_{kind}")

    assert error is not None
    assert said in error or "RuntimeError" in error  # a coroutine cannot raise StopIteration
    assert service.child.exit_code is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cancels_itself", "CancelledError"),
        ("awaits_cancelled", "CancelledError"),
        ("child_exits", "SystemExit"),
        ("callback_interrupts", None),
        ("swallows_cancel", None),
    ],
)
async def test_a_tool_that_ends_tasks_ends_only_its_own(
    service: ServiceProcess, client: JsonClient, name: str, said: str | None
) -> None:
    """A child task that exits, for example, does not end the event loop."""
    error = await outcome(client, f"raises_{name}_async")

    assert (error is None) == (said is None)
    assert (said or "") in (error or "")
    assert service.child.exit_code is None


async def test_a_tool_leaves_no_context_variables(client: JsonClient) -> None:
    """Each call has its own copy of the context."""
    runs = [await client.run_graph(graph_of("leaks", {}), wait_seconds=60) for _ in range(2)]

    values = [run["result"]["outputs"]["t"]["default"] for run in runs]
    assert values == [{"value": "nothing"}] * 2


@pytest.mark.parametrize("name", ["lingers", "waits_for_ever"])
async def test_the_cancel_of_a_run_still_ends_its_tool(
    service: ServiceProcess, client: JsonClient, name: str
) -> None:
    """Unlike a CancelledError that the tool raises, it ends the run."""
    run = await client.run_graph(graph_of(name, {}))
    await eventually(lambda: _started(client, run["run_id"]))

    await client.cancel_run(run["run_id"])
    run = await finished(client, run["run_id"])

    assert (run["status"], run["stop"]["kind"]) == ("cancelled", "cancelled")
    assert service.child.exit_code is None


async def _started(client: JsonClient, run_id: str) -> bool:
    nodes = (await client.trace(run_id))["snapshot"]["nodes"].values()
    return any(node["kind"] == "tool" and node["status"] == "running" for node in nodes)


@pytest.mark.parametrize(
    ("name", "failed"),
    [
        ("raises_keyboard_interrupt_plain", True),
        ("raises_generator_exit_async", True),
        ("raises_stop_iteration_plain", True),
        ("raises_cancels_itself_async", True),
        ("returns_null_error_plain", False),
    ],
)
async def test_an_external_agent_gets_the_error_of_its_call(
    service: ServiceProcess, client: JsonClient, name: str, failed: bool
) -> None:
    """The run continues."""
    run = await client.post_run({"kind": "external", "tools": [name]})
    async with httpx.AsyncClient(base_url=service.url, timeout=150) as http:
        answer = await http.post(
            "/gateway/mcp",
            json={
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": name, "arguments": {}},
            },
            headers={
                "authorization": f"Bearer {run['access']['key']}",
                "accept": "application/json, text/event-stream",
            },
        )
    assert answer.status_code == 200, answer.text
    text = answer.text
    document = json.loads(text[text.index("{") :])

    assert document["result"]["isError"] is failed
    assert (await client.get_run(run["run_id"]))["status"] == "running"


@pytest.mark.parametrize("name", AGENTS)
async def test_what_a_code_agent_raises_fails_its_run_alone(
    service: ServiceProcess, client: JsonClient, name: str
) -> None:
    """The run has failed with the class of the exception, and the process lives."""
    run = await client.post_run(
        {"kind": "agent", "agent": {"name": name}, "input": "go"}, wait_seconds=60
    )

    assert run["status"] == "failed", run
    assert service.child.exit_code is None


@pytest.mark.parametrize("count", [24, pytest.param(300, marks=pytest.mark.proof)])
async def test_drawn_tools_end_their_calls_alone(
    database_url: str, tmp_path: Path, count: int
) -> None:
    """Hypothesis draws signatures, arguments, results and exceptions."""
    tools = drawn(count)
    plugins = write(tools, tmp_path / "drawn.py")
    settings = {"TOOLS_PLUGINS": json.dumps(plugins), DRAWN: str(tmp_path / "drawn.py")}
    queue = list(enumerate(tools))

    async def executes(client: JsonClient) -> None:
        while queue:
            at, one = queue.pop()
            await _ends(client, f"drawn_{at}", one)

    async with (
        ServiceProcess(database_url, settings=settings) as service,
        service.client() as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(AT_ONCE):
            group.create_task(executes(client))
    assert service.child.exit_code is not None  # ended by its context, and not before
    assert len(tools) >= count * 9 // 10


async def _ends(client: JsonClient, name: str, tool: DrawnTool) -> None:
    try:
        await outcome(client, name, tool.args)
    except Exception as error:
        raise AssertionError(tool.source) from error
