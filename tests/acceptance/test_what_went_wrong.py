"""A reader can reconstruct the failures and calls of a run afterwards.

A tool breaks, a provider refuses, and a run is cancelled during a model call. The tests read the
HTTP API and the log of a service process.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.graph_documents import edge
from tests.support.service import ServiceProcess, model_settings
from tests.support.stores import eventually

REFUSED = {"error": {"message": "Unknown parameter: 'frobnicate' of alice@example.org."}}


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider) -> dict[str, str]:
    """Return the settings of a service with a tool that breaks."""
    return {
        **model_settings(running_provider.openai_url),
        "TOOLS_PLUGINS": '["tests.support.kaput_tool:KaputTool"]',
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(service: ServiceProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with service.http() as client:
        yield client


async def posted(http: httpx.AsyncClient, body: dict[str, Any], wait: int = 20) -> dict[str, Any]:
    answer = await http.post("/runs", json=body, headers={"Prefer": f"wait={wait}"})
    assert answer.is_success, answer.text
    return dict(answer.json())


async def read(http: httpx.AsyncClient, path: str, **params: str) -> httpx.Response:
    answer = await http.get(path, params=params, headers={"Accept": "application/json"})
    assert answer.status_code == 200, answer.text
    return answer


def logged(service: ServiceProcess, event: str, run_id: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in service.child.stderr.splitlines() if line]
    return [line for line in lines if (line["event"], line.get("run_id")) == (event, run_id)]


def llm(step_id: str, prompt: str) -> dict[str, Any]:
    return {"id": step_id, "type": "llm", "data": {"prompt": prompt}}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.req("002/13.1", "000/O2")
async def test_what_a_broken_tool_said_can_be_read_in_trace_and_log(
    service: ServiceProcess, http: httpx.AsyncClient
) -> None:
    """Each attempt is logged, and the result and the stop name only the exception's class."""
    policy = {"on_error": "retry", "retry_count": 1, "retry_delay_ms": 1}
    steps = [
        {"id": "a", "type": "tool", "data": {"tool": "kaput"}, "policy": policy},
        {"id": "b", "type": "tool", "data": {"tool": "respond"}},
    ]
    graph = {"steps": steps, "edges": [edge("a", "b", channel="flow")]}
    run = await posted(http, {"kind": "graph", "graph": graph, "inputs": {"why": "a loose screw"}})
    path = f"/runs/{run['run_id']}"
    step = run["result"]["steps"]["a"]
    trace = (await read(http, f"{path}/trace")).json()
    call = (await read(http, f"{path}/calls/{trace['steps'][0]['node_id']}")).json()
    told = (await read(http, f"{path}/trace", format="explain")).text

    said = "RuntimeError: kaput: a loose screw"
    assert (step["status"], step["error_class"], step["attempts"]) == (
        "failed",
        "ToolFailedError",
        2,
    )
    read_by_models = "The tool broke (RuntimeError)."
    assert step["error"].endswith(read_by_models)
    assert run["stop"]["reason"].endswith(read_by_models)
    assert "loose screw" not in str([run["result"], run["stop"]])
    assert (run["stop"]["step_id"], run["finish_reason"]) == ("a", None)
    assert run["stop"]["at"].endswith("Z")
    assert run["result"]["steps"]["b"] == {"status": "not_started"}
    assert [attempt["error"]["handling"] for attempt in call["attempts"]] == ["retried", "failed"]
    assert all(read_by_models in attempt["error"]["message"] for attempt in call["attempts"])
    assert [one["status"] for one in trace["steps"]] == ["failed"]
    assert (
        "tool kaput (n000003) and 1 more call: The tool broke: RuntimeError: kaput: a loose" in told
    )
    broken = logged(service, "tool.broke", run["run_id"])
    failed = logged(service, "step.attempt_failed", run["run_id"])
    assert len(broken) == len(failed) == 2
    assert "kaput_tool.py" in broken[0]["exception"]
    assert broken[0]["exception"].endswith(said)
    assert [line["attempt"] for line in failed] == [1, 2]
    assert len(logged(service, "step.failed", run["run_id"])) == 1


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.req("002/13.5")
async def test_what_a_provider_says_of_its_refusal_is_kept(
    service: ServiceProcess, http: httpx.AsyncClient, running_provider: FakeProvider
) -> None:
    """The provider's message is redacted in the trace, in the result and in the log."""
    await running_provider.script("Refuse me", [Step(status=400, raw_body=json.dumps(REFUSED))])
    graph = {"steps": [llm("ask", "Refuse me")], "edges": []}

    run = await posted(http, {"kind": "graph", "graph": graph})
    told = (await read(http, f"/runs/{run['run_id']}/trace", format="explain")).text

    said = "the request was rejected (HTTP 400): Unknown parameter: 'frobnicate' of [email]"
    assert said in run["result"]["steps"]["ask"]["error"]
    assert told.count("frobnicate") == 1
    (line,) = logged(service, "model.failed", run["run_id"])
    assert said in line["error"]
    assert (line["level"], line["status"], line["attempt"]) == ("warning", 400, 1)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.req("card/trace", "002/14.5")
async def test_prompts_and_replies_can_be_read_call_by_call_also_live(
    http: httpx.AsyncClient, running_provider: FakeProvider
) -> None:
    """The run is cancelled during the second call, and all levels show it as cancelled."""
    await running_provider.script("First of alice@example.org", [Step(text="Said first.")])
    await running_provider.script("Second", [Step(hang=True)])
    steps = [llm("one", "First of alice@example.org"), llm("two", "Second after ${default}")]
    graph = {"steps": steps, "edges": [edge("one", "two", channel="flow")]}
    run = await posted(http, {"kind": "graph", "graph": graph}, wait=0)
    path = f"/runs/{run['run_id']}"
    await running_provider.wait_for_arrivals(1, "Second")

    async def second_is_stored_as_sent() -> bool:  # the journal may learn it after the provider
        nodes = (await read(http, f"{path}/trace")).json()["snapshot"]["nodes"].values()
        return [each["status"] for each in nodes if each["model"]] == ["success", "running"]

    await eventually(second_is_stored_as_sent)
    trace = (await read(http, f"{path}/trace", payloads="true")).json()
    ids = [each["node_id"] for each in trace["snapshot"]["nodes"].values() if each["model"]]
    first, second = [(await read(http, f"{path}/calls/{one}")).json() for one in ids]
    await http.delete(path)
    run = await posted_end(http, path)
    told = (await read(http, f"{path}/trace", format="explain")).text
    ended = (await read(http, f"{path}/calls/{ids[1]}")).json()
    steps_shown = (await read(http, f"{path}/trace")).json()["steps"]

    assert first["request"]["messages"][-1] == {"role": "user", "content": "First of [email]"}
    assert (first["reply"]["text"], first["reply"]["finish_reason"]) == ("Said first.", "stop")
    assert first["request"]["max_output_tokens"] > 0
    assert (second["status"], second["reply"]) == ("running", None)
    assert second["request"]["messages"][-1]["content"] == "Second after Said first."
    assert trace["payloads"][ids[0]]["reply"]["text"] == "Said first."
    assert (run["status"], ended["status"]) == ("cancelled", "cancelled")
    assert {name: step["status"] for name, step in run["result"]["steps"].items()} == {
        "one": "completed",
        "two": "cancelled",
    }
    assert [step["status"] for step in steps_shown] == ["completed", "cancelled"]
    assert "halt" not in told
    assert "asked: First of [email]" in told
    assert "got: Said first." in told


async def posted_end(http: httpx.AsyncClient, path: str) -> dict[str, Any]:
    """Follow the events until the run has ended; return the run."""
    async with http.stream(
        "GET", f"{path}/events", headers={"Accept": "text/event-stream"}
    ) as all_:
        async for _ in all_.aiter_lines():
            pass
    return dict((await read(http, path)).json())


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.req("003/FR3.1")
async def test_events_tell_of_the_run_its_calls_and_its_routes(http: httpx.AsyncClient) -> None:
    """Events come in order, and a step that a limit stops is halted, like its graph."""
    routes = [{"when": {"path": "default.value", "op": "eq", "value": 42}, "to": "found"}]
    steps = [
        {"id": "sum", "type": "tool", "data": {"tool": "calculator", "args": {"expression": "42"}}},
        {"id": "route", "type": "router", "data": {"routes": routes, "otherwise": "lost"}},
        {"id": "ask", "type": "tool", "data": {"tool": "respond", "args": {"answer": "a"}}},
    ]
    edges = [
        edge("sum", "route", channel="flow"),
        {**edge("route", "ask", channel="flow"), "source_handle": "found"},
    ]
    body = {"kind": "graph", "graph": {"steps": steps, "edges": edges}}

    run = await posted(http, {**body, "budget": {"max_tool_calls": 1}})
    events = (await read(http, f"/runs/{run['run_id']}/events")).json()["events"]
    told = [(one["type"], one["step_id"]) for one in events if one["type"] != "budget.warning"]

    assert told[:6] == [
        ("run.started", None),
        ("step.started", "sum"),
        ("call.started", "sum"),
        ("call.completed", "sum"),
        ("step.completed", "sum"),
        ("step.started", "route"),
    ]
    (routed,) = [event for event in events if event["type"] == "router.routed"]
    assert (routed["step_id"], routed["data"]) == ("route", {"handles": ["found"]})
    assert (run["status"], run["stop"]["kind"]) == ("halted", "budget")
    assert run["finish_reason"] is None  # only cases have one
    assert run["result"]["steps"]["ask"]["status"] == "halted"


def calculation(step_id: str, expression: str) -> dict[str, Any]:
    data = {"tool": "calculator", "args": {"expression": expression}}
    return {"id": step_id, "type": "tool", "data": data}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.req("card/trace")
async def test_a_step_shows_what_it_was_given(http: httpx.AsyncClient) -> None:
    """Entry steps show the inputs and other steps the outputs before them, also when nested."""
    inner = {
        "steps": [calculation("first", "${default.value} + 1"), calculation("then", "1")],
        "edges": [edge("first", "then", channel="flow")],
    }
    listing = {"over": "list", "step": {"type": "tool", "data": calculation("", "2")["data"]}}
    steps = [
        calculation("a", "${default} * 2"),
        calculation("b", "3"),
        {"id": "join", "type": "subgraph", "data": {"graph": inner}},
        {"id": "each", "type": "map", "data": listing},
    ]
    edges = [
        edge("a", "join", channel="flow"),
        edge("b", "join", channel="flow") | {"target_handle": "other"},
    ]
    given = {"default": 4, "list": [1], "note": "to bob@example.org"}
    body = {"kind": "graph", "graph": {"steps": steps, "edges": edges}, "inputs": given}
    run = await posted(http, body)
    assert run["status"] == "completed", run
    path = f"/runs/{run['run_id']}"
    nodes = (await read(http, f"{path}/trace")).json()["snapshot"]["nodes"].values()
    found = {
        node["name"]: (await read(http, f"{path}/calls/{node['node_id']}")).json()
        for node in nodes
        if "step_type" in node["metadata"]
    }
    asked = {step_id: call["request"] for step_id, call in found.items()}

    outputs = run["result"]["outputs"]
    joined = {"default": outputs["a"]["default"], "other": outputs["b"]["default"]}
    assert asked["a"] == asked["b"] == asked["each"] == given | {"note": "to [email]"}
    assert asked["join"] == asked["join/first"] == joined
    assert asked["join/then"] == found["join/first"]["reply"]
    assert [asked[step] for step in asked if step.startswith("each/")] == [None]
