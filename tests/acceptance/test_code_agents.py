"""Code agents in real processes: their model calls, tools, results, questions and stops."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.code_agents import NOTES
from tests.support.collector import Collector
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.embeddings import vector_of
from tests.support.fake_provider.script import Step
from tests.support.noting_tool import noted
from tests.support.processes import ChildProcess, run_caseworker
from tests.support.service import QUICK, ServiceProcess, model_settings
from tests.support.stores import eventually

AGENTS = (
    *("reporter", "streaming", "connecting", "adding", "sending", "stubborn", "very_stubborn"),
    *("blocking", "asking", "spanned", "framework", "detouring", "noting", "embedding"),
)
CHAT = "/gateway/openai/v1/chat/completions"
HERE = "tests.support.code_agents"
ADDED = {"sum": 3, "again": 4, "answer": "first", "error": ["ValueError", "ValueError: once"]}
ADDING = ["add 1 2", "breaks once", "add 3 1"]
"""The output of ``adding``, and the calls that it makes."""


@pytest.fixture(scope="module")
def noted_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("code") / "notes"


def settings_of(provider: FakeProvider, notes: Path, **more: str) -> dict[str, str]:
    """Return the settings of a service with the agents."""
    claude = {"provider": "anthropic", "base_url": provider.url, "model": "c", "api_key": "k"}
    return {
        **model_settings(provider.openai_url),
        "MODELS_NAMED": json.dumps({"claude": claude}),
        "AGENTS_PLUGINS": json.dumps([f"{HERE}:{name}" for name in AGENTS]),
        NOTES: str(notes),
        **more,
    }


@pytest.fixture
def notes(noted_in: Path) -> Path:
    """A file that holds no lines of other tests."""
    for left in noted_in.parent.iterdir():
        left.unlink()
    return noted_in


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def service_settings(
    running_provider: FakeProvider, noted_in: Path, collector: Collector
) -> dict[str, str]:
    return settings_of(running_provider, noted_in, TELEMETRY_OTLP_ENDPOINT=collector.url)


@pytest.fixture
async def http(service: ServiceProcess, provider: FakeProvider) -> AsyncIterator[httpx.AsyncClient]:
    async with service.http(accept="application/json") as opened:
        yield opened


async def start(http: httpx.AsyncClient, agent: str, text: str, **more: Any) -> str:
    """Start a code agent and return the path of its run."""
    body = {"kind": "agent", "agent": {"name": agent}, "input": text, **more}
    run = (await http.post("/runs", json=body)).raise_for_status().json()
    return f"/runs/{run['run_id']}"


async def ended(http: httpx.AsyncClient, path: str) -> Mapping[str, Any]:
    """Return a run once it has ended; the end of its event stream is the signal."""
    stream = {"Accept": "text/event-stream"}
    async with http.stream("GET", f"{path}/events", headers=stream) as events:
        async for _ in events.aiter_lines():
            pass
    run: Mapping[str, Any] = (await http.get(path)).json()
    assert run["finished_at"] is not None, run
    if (stop := run["stop"]) is not None and stop["kind"] == "error":
        raise AssertionError(stop)
    return run


async def output_of(http: httpx.AsyncClient, agent: str, text: str, **more: Any) -> Any:
    """Run a code agent and return its output."""
    run = await ended(http, await start(http, agent, text, **more))
    assert run["status"] == "completed", run
    return run["result"]["output"]


async def nodes(http: httpx.AsyncClient, path: str, kind: str) -> list[Mapping[str, Any]]:
    trace = (await http.get(f"{path}/trace")).json()
    return [each for each in trace["snapshot"]["nodes"].values() if each["kind"] == kind]


def release(notes: Path) -> None:
    """Let the tool ``send`` return."""
    Path(f"{notes}.released").touch()


@asynccontextmanager
async def two_processes(
    database_url: str, settings: Mapping[str, str]
) -> AsyncIterator[tuple[ServiceProcess, httpx.AsyncClient, httpx.AsyncClient]]:
    """Yield a process to kill, with a client, and a client of the one that resumes its runs."""
    async with AsyncExitStack() as stack:
        killed, other = [
            await stack.enter_async_context(
                ServiceProcess(database_url, settings=settings, name=name)
            )
            for name in ("killed", "other")
        ]
        first = await stack.enter_async_context(killed.http(accept="application/json"))
        yield killed, first, await stack.enter_async_context(other.http(accept="application/json"))


@pytest.mark.req("cw/15.code")
async def test_a_code_agent_is_listed_and_runs(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Its description is the first paragraph of its docstring; its value is the output."""
    await provider.script("LISTED", [Step(text=text) for text in "abc"])
    listed = (await http.get("/agents")).json()["agents"]
    path = await start(http, "reporter", "LISTED", budget={"max_llm_calls": 3})
    run = await ended(http, path)
    unknown = {"name": "x", "prompt": {}, "code": "nowhere", "tools": ["note"]}
    refused = await http.post("/runs", json={"kind": "agent", "agent": unknown, "input": "x"})

    about = {each["name"]: each["description"] for each in listed}
    assert about.keys() == set(AGENTS)
    assert about["reporter"] == "Ask a model three times."
    assert run["result"]["output"] == ["a", "b", "c"]
    assert run["usage"]["llm_calls"] == await provider.count("LISTED") == 3
    assert len(await nodes(http, path, "llm")) == 3
    assert {each["field"] for each in refused.json()["errors"]} == {
        "agent.code",
        "agent.tools",
        "agent.tools.0",
    }


@pytest.mark.req("cw/15.code")
async def test_the_clients_need_no_socket_and_pass_streams_on(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The parts of a stream arrive one by one, with each of the vendors' libraries."""
    await provider.script("STREAMED", [Step(text="hello code agent")], repeat_last=True)
    output = await output_of(http, "streaming", "STREAMED")

    assert "".join(output["openai"]) == "".join(output["anthropic"]) == "hello code agent"
    assert len(list(filter(None, output["openai"]))) > 1
    assert len(output["anthropic"]) > 1


@pytest.mark.req("cw/15.code")
async def test_a_framework_can_open_its_own_connections(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The key is valid until the step ends, and names the run for other processes."""
    await provider.script("SOCKET", [Step(text="over a socket")])
    output = await output_of(http, "connecting", "SOCKET")
    late = await http.post(CHAT, headers={"x-api-key": output["key"]}, json={})

    assert output["text"] == "over a socket"
    assert await provider.count("SOCKET") == 1
    assert late.status_code == 401


@pytest.mark.req("cw/15.code")
async def test_a_killed_worker_loses_no_call(
    database_url: str, provider: FakeProvider, notes: Path
) -> None:
    """The other process replays the recorded calls and makes the one in flight again."""
    settings = settings_of(provider, notes)
    hangs = Step(text="c", hang=True)
    await provider.script("KILLED", [Step(text="a"), Step(text="b"), hangs, Step(text="c")])
    async with two_processes(database_url, settings) as (killed, first, http):
        path = await start(first, "reporter", "KILLED")
        await provider.wait_for_arrivals(3, "KILLED")
        killed.child.kill()
        run = await ended(http, path)

        assert run["result"]["output"] == ["a", "b", "c"]
        assert await provider.count("KILLED") == 4
        assert run["usage"]["llm_calls"] == 3


async def test_another_process_forwards_requests_with_the_key_of_a_step(
    database_url: str, provider: FakeProvider, notes: Path
) -> None:
    """A key that names no run of another process is unknown."""
    await provider.script("DETOUR", [Step(text="forwarded")])
    async with two_processes(database_url, settings_of(provider, notes)) as (_, first, http):
        path = await start(first, "detouring", str(http.base_url).rstrip("/"))
        run = await ended(http, path)
        statuses = [
            (await http.post(CHAT, headers={"x-api-key": key}, json={})).status_code
            for key in ("cwr_bm9ib2R5CnJ1bg==.0", "cwr_nothing.0", "cwr_0")
        ]

    assert run["result"]["output"] == "forwarded"
    assert await provider.count("DETOUR") == 1
    assert statuses == [401, 401, 401]


async def test_tools_and_results_are_recorded(
    http: httpx.AsyncClient, provider: FakeProvider, notes: Path
) -> None:
    """Each call of a tool is counted; results are recorded but cost nothing."""
    await provider.script("TOOLS", [Step(text="first"), Step(text="last")])
    path = await start(http, "adding", "TOOLS")
    run = await ended(http, path)
    tools = await nodes(http, path, "tool")

    assert run["result"]["output"] == ADDED
    assert noted(notes) == ADDING
    assert run["usage"]["tool_calls"] == 3
    assert [(each["name"], each["status"]) for each in tools] == [
        ("add", "success"),
        ("name", "success"),
        ("breaks", "fail"),
        ("add", "success"),
    ]
    assert tools[0]["metadata"]["args"] == {"a": 1, "b": 2}


@pytest.mark.req("cw/15.code")
async def test_an_installed_package_provides_code_agents_and_function_steps(
    database_url: str, provider: FakeProvider, notes: Path, tmp_path: Path
) -> None:
    """Both get the same context; a step that waits for an approval is executed again."""
    await provider.script("FUNCTION", [Step(text="first"), Step(text="last")])
    about = tmp_path / "code_agents-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: code-agents\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        f"[caseworker.agents]\nsummer = {HERE}:adding\n"
        f"[caseworker.functions]\nadds = {HERE}:adding\nasks = {HERE}:asking\n"
    )
    settings = settings_of(provider, notes, PYTHONPATH=f"{tmp_path}:{Path.cwd()}")
    service = ServiceProcess(database_url, settings=settings)
    env = {**QUICK, **settings, "DATABASE_URL": database_url}
    service.child.close()
    service.child = ChildProcess.python("-m", "caseworker", "serve", env=env, name="installed")
    steps = [
        {"id": "s", "type": "function", "data": {"name": "adds", "args": "FUNCTION"}},
        {"id": "t", "type": "function", "data": {"name": "asks", "args": "ASKS"}},
    ]
    body = {"kind": "graph", "graph": {"steps": steps, "edges": []}}
    async with service, service.http(accept="application/json") as http:
        agents = (await http.get("/agents")).json()["agents"]
        made = (await http.post("/runs", json=body)).raise_for_status()
        path = f"/runs/{made.json()['run_id']}"
        await http.post(await approval_of(http, path), json={"decision": "approve"})
        run = await ended(http, path)

    assert "summer" in {each["name"] for each in agents}
    assert run["result"]["outputs"]["s"]["default"] == ADDED
    assert run["result"]["outputs"]["t"]["default"].keys() == {"before", "after"}
    assert noted(notes) == ADDING
    assert await provider.count("ASKS") == 2


@pytest.mark.req("cw/15.code")
async def test_a_repeated_execution_gets_the_recorded_results(
    database_url: str, provider: FakeProvider, notes: Path
) -> None:
    """Tools are not called again, and the random name in a prompt is the same."""
    hangs = Step(text="last", hang=True)
    await provider.script("AGAIN", [Step(text="first"), hangs, Step(text="last")])
    async with two_processes(database_url, settings_of(provider, notes)) as (killed, first, http):
        path = await start(first, "adding", "AGAIN")
        await provider.wait_for_arrivals(2, "AGAIN")
        killed.child.kill()
        run = await ended(http, path)

        assert run["result"]["output"] == ADDED
        assert noted(notes) == ADDING
        assert await provider.count("AGAIN") == 3
        assert run["usage"]["tool_calls"] == 3


@pytest.mark.parametrize("text", ["idempotent", "once"])
async def test_a_tool_call_in_flight_is_repeated_only_if_it_is_idempotent(
    database_url: str, provider: FakeProvider, notes: Path, text: str
) -> None:
    """Otherwise the function is informed that the outcome is unknown."""
    async with two_processes(database_url, settings_of(provider, notes)) as (killed, first, http):
        path = await start(first, "sending", text)

        async def sent() -> bool:
            return bool(noted(notes))

        await eventually(sent)
        killed.child.kill()
        release(notes)
        run = await ended(http, path)

    if text == "idempotent":
        assert run["result"]["output"] == "sent to x"
        assert noted(notes) == ["send x", "send x"]
    else:
        assert run["result"]["output"] == "An earlier try may have taken effect."
        assert noted(notes) == ["send x"]


@pytest.mark.req("cw/15.code")
async def test_a_limit_outlives_code_that_catches_exceptions(
    http: httpx.AsyncClient, provider: FakeProvider, notes: Path
) -> None:
    """No call beyond the limit reaches the provider, and the run is halted."""
    path = await start(http, "stubborn", "STUBBORN", budget={"max_llm_calls": 2})
    run = await ended(http, path)

    assert (run["status"], run["stop"]["kind"]) == ("halted", "budget")
    assert await provider.count("STUBBORN") == 2
    assert noted(notes) == []


async def test_a_limit_outlives_code_that_catches_everything(
    http: httpx.AsyncClient, notes: Path
) -> None:
    """Its result is dropped."""
    path = await start(http, "very_stubborn", "x", budget={"max_tool_calls": 2})
    run = await ended(http, path)

    assert (run["status"], run["stop"]["kind"]) == ("halted", "budget")
    assert [each for each in noted(notes) if each != "caught"] == ["tool 0", "tool 1"]
    assert (run["result"] or {}).get("output") is None


async def test_a_cancel_ends_the_call_of_a_code_agent(
    http: httpx.AsyncClient, provider: FakeProvider, notes: Path
) -> None:
    """The provider's connection is closed, and the code makes no other call."""
    await provider.script("CANCELLED", [Step(hang=True)], repeat_last=True)
    path = await start(http, "stubborn", "CANCELLED")
    await provider.wait_for_arrivals(1, "CANCELLED")
    await http.delete(path)
    run = await ended(http, path)
    await provider.wait_for_arrivals(1, "CANCELLED", ended=True)

    assert run["status"] == "cancelled"
    assert await provider.count("CANCELLED") == 1
    assert noted(notes) == []


async def approval_of(http: httpx.AsyncClient, path: str) -> str:
    """Return the path of the only open approval of a run that waits for it."""
    async with asyncio.timeout(150):
        while (run := (await http.get(path)).json())["status"] != "waiting":
            assert run["finished_at"] is None, run["stop"]
            await asyncio.sleep(0.02)
    (asked,) = (await http.get(f"{path}/approvals")).json()["approvals"]
    assert asked["open"], asked
    return f"{path}/approvals/{asked['approval_id']}"


@pytest.mark.req("cw/15.code")
@pytest.mark.parametrize("decision", ["approve", "refuse"])
async def test_a_question_suspends_the_run_until_it_is_decided(
    http: httpx.AsyncClient, provider: FakeProvider, decision: str
) -> None:
    """The function is then executed again and gets the decision; its call is replayed."""
    text = f"ASK {decision}"
    await provider.script(text, [Step(text="one"), Step(text="two")])
    path = await start(http, "asking", text)
    approval = await approval_of(http, path)
    (await http.post(approval, json={"decision": decision, "reason": "No."})).raise_for_status()
    output = (await ended(http, path))["result"]["output"]

    approved = decision == "approve"
    assert output == ({"before": "one", "after": "two"} if approved else {"refused": "No."})
    assert await provider.count(text) == (2 if approved else 1)


@pytest.mark.req("cw/15.code")
async def test_a_synchronous_agent_runs_in_a_thread(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """It has the same clients, tools, results and questions, which block."""
    await provider.script("THREAD", [Step(text="one"), Step(text="two"), Step(text="three")])
    path = await start(http, "blocking", "THREAD")
    await http.post(await approval_of(http, path), json={"decision": "approve"})
    run = await ended(http, path)

    words = {"text": "one", "stream": "two", "socket": "three"}
    assert run["result"]["output"] == {**words, "tool": 4, "step": 7, "asked": True}
    assert await provider.count("THREAD") == 3


@pytest.mark.req("cw/15.code")
async def test_a_code_agent_is_a_step_and_a_sub_agent(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """A model calls it as a tool; its calls count in the run and obey its own limits."""
    call = {"id": "c1", "name": "reporter", "arguments": '{"input": "INNER"}'}
    few = {
        "name": "few",
        "prompt": {},
        "code": "reporter",
        "limits": {"budget": {"max_llm_calls": 1}},
    }
    again = {**call, "id": "c2", "name": "few"}
    await provider.script("OUTER", [Step(tool_calls=[call, again]), Step(text="both")])
    boss = {
        "name": "boss",
        "prompt": {},
        "tools": [{"agent": {"name": "reporter"}}, {"agent": few}],
    }
    step = {"id": "s", "type": "agent", "data": {"agent": boss, "input": "OUTER"}}
    leaf = {"id": "t", "type": "agent", "data": {"agent": {"name": "reporter"}, "input": "LEAF"}}
    graph = {"steps": [step, leaf], "edges": []}
    made = (await http.post("/runs", json={"kind": "graph", "graph": graph})).raise_for_status()
    run = await ended(http, f"/runs/{made.json()['run_id']}")

    assert run["status"] == "completed", run
    assert run["result"]["outputs"]["s"]["default"] == "both"
    assert len(run["result"]["outputs"]["t"]["default"]) == 3
    assert await provider.count("LEAF") == 3
    assert [await provider.count(f"INNER {number}") for number in range(3)] == [2, 1, 1]
    sent = (await provider.arrivals("OUTER", bodies=True))[-1].body or {}
    results = [json.loads(m["content"]) for m in sent["messages"] if m["role"] == "tool"]
    assert "output" in results[0]
    assert results[1]["code"] == "budget"


@pytest.mark.req("cw/5.release")
async def test_a_drained_process_executes_no_code_agent_that_a_model_calls_then(
    database_url: str, provider: FakeProvider, notes: Path
) -> None:
    """The next process executes it, although the call of the model ended in the first one."""
    call = {"id": "c1", "name": "noting", "arguments": '{"input": "once"}'}
    await provider.script("OUTER", [Step(tool_calls=[call], hang=True), Step(text="done")])
    boss = {"name": "boss", "prompt": {}, "tools": [{"agent": {"name": "noting"}}]}
    body = {"kind": "agent", "run_id": "outer", "agent": boss, "input": "OUTER"}
    settings = settings_of(provider, notes, WORKER_DRAIN_SECONDS="60")
    env = {**QUICK, "DATABASE_URL": database_url}
    async with (
        ServiceProcess(database_url, settings=settings, name="first") as first,
        first.http() as http,
    ):
        (await http.post("/runs", json=body)).raise_for_status()
        await provider.wait_for_arrivals(1, "OUTER")
        (worker,) = json.loads(run_caseworker("workers", "--json", env=env).stdout)
        assert run_caseworker("drain", worker["worker_id"], env=env).returncode == 0

        async def is_draining() -> bool:
            return (await http.get("/readyz")).status_code == 503

        async def is_released() -> bool:
            return bool((await http.get("/runs/outer")).json()["status"] == "queued")

        await eventually(is_draining)
        await provider.release()
        await eventually(is_released)
        assert noted(notes) == []
        async with ServiceProcess(database_url, settings=settings, name="second"):
            run = await ended(http, "/runs/outer")
    assert run["status"] == "completed", run
    assert noted(notes) == ["noting once"]


async def test_a_run_that_reached_a_limit_continues_with_a_larger_one(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The new run gets the recorded replies."""
    await provider.script("LARGER", [Step(text=text) for text in "abc"])
    path = await start(http, "reporter", "LARGER", budget={"max_llm_calls": 2})
    halted = await ended(http, path)
    body = {"from": {"run_id": halted["run_id"]}, "budget": {"max_llm_calls": 9}}
    made = (await http.post("/runs", json=body)).raise_for_status().json()
    run = await ended(http, f"/runs/{made['run_id']}")

    assert halted["status"] == "halted"
    assert run["result"]["output"] == ["a", "b", "c"]
    assert await provider.count("LARGER") == 3


@pytest.mark.req("cw/15.embeddings")
async def test_a_code_agent_embeds_texts_and_a_larger_budget_continues_with_its_vectors(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The new run imports the recorded vectors, and makes only the missing call."""
    path = await start(http, "embedding", "VECTOR", budget={"max_llm_calls": 1})
    halted = await ended(http, path)
    body = {"from": {"run_id": halted["run_id"]}, "budget": {"max_llm_calls": 9}}
    made = (await http.post("/runs", json=body)).raise_for_status().json()
    run = await ended(http, f"/runs/{made['run_id']}")
    arrivals = await provider.arrivals("", bodies=True)

    vectors = [vector_of(each, 3).tolist() for each in ("VECTOR", [1, 2], [3])]
    assert halted["status"] == "halted"
    assert run["result"]["output"] == vectors
    assert [(each.body or {})["input"] for each in arrivals] == ["VECTOR", [[1, 2], [3]]]


async def test_a_worker_without_http_offers_clients_without_a_socket(
    database_url: str, provider: FakeProvider, notes: Path
) -> None:
    """The base URL raises an error that names the alternative."""
    settings = settings_of(provider, notes)
    async with (
        ServiceProcess(database_url, command="worker", settings=settings, name="worker"),
        ServiceProcess(database_url, "--no-worker", settings=settings) as api,
        api.http(accept="application/json") as http,
    ):
        output = await output_of(http, "reporter", "WORKER")
        with pytest.raises(AssertionError, match=r"serves no HTTP: use .*http_client\(\)"):
            await output_of(http, "connecting", "WORKER")

    assert len(output) == await provider.count("WORKER") == 3


@pytest.mark.req("cw/15.code")
async def test_the_span_of_the_step_is_current(
    http: httpx.AsyncClient, collector: Collector
) -> None:
    """Spans that the function's libraries begin are its children."""
    output = await output_of(http, "spanned", "x")
    collector.wait_for(output["trace_id"], 2)

    found = {span.span_id.hex(): span.name for span in collector.spans}
    assert "agent" in found[output["span_id"]]


async def test_a_framework_agent_replays_after_a_crash(
    database_url: str, provider: FakeProvider, notes: Path
) -> None:
    """Its tool is called once, each model call is made once, and the tool call counts once."""
    call = {"id": "c1", "name": "weather", "arguments": '{"city": "Bergen"}'}
    hangs = Step(text="It rains.", hang=True)
    await provider.script("FRAMEWORK", [Step(tool_calls=[call]), hangs, Step(text="It rains.")])
    async with two_processes(database_url, settings_of(provider, notes)) as (killed, first, http):
        path = await start(first, "framework", "FRAMEWORK")
        await provider.wait_for_arrivals(2, "FRAMEWORK")
        killed.child.kill()
        run = await ended(http, path)

        assert run["result"]["output"] == "It rains."
        assert noted(notes) == ["weather Bergen"]
        assert await provider.count("FRAMEWORK") == 3
        assert (run["usage"]["llm_calls"], run["usage"]["tool_calls"]) == (2, 1)
