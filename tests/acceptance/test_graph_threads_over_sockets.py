"""Graphs that answer in threads: which agents get the chat and the user's tools."""

from typing import Any

import httpx
import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.threads import (
    ThreadClient,
    agent_step,
    chat_start,
    flow,
    link,
    offered,
    prompts,
)


def graph(steps: list[dict[str, Any]], *edges: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"steps": steps, "edges": list(edges), **more}


def agent_free(step_id: str) -> dict[str, Any]:
    """Return a step that runs a tool instead of an agent."""
    data = {"tool": "calculator", "args": {"expression": "1 + 1"}}
    return {"id": step_id, "type": "tool", "data": data}


@pytest.mark.req("004/entry", "004/pipeline")
async def test_only_the_first_agent_of_a_pipeline_sees_the_chat(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """In chat-start -> A -> B, A gets the whole chat and B gets only the output of A."""
    answers = [Step(text=text) for text in ("draft 1", "final 1", "draft 2", "final 2")]
    await provider.script("You are", answers)
    steps = [chat_start(), agent_step("A"), agent_step("B")]
    thread = await ThreadClient.begin(
        http, "pipeline", graph=graph(steps, flow("chat", "A"), flow("A", "B"))
    )

    await thread.answer(content="Write 1")
    await thread.answer(content="Write 2")

    assert await thread.contents() == ["Write 1", "final 1", "Write 2", "final 2"]
    assert await prompts(provider, "You are A.") == [["Write 1"], ["Write 1", "final 1", "Write 2"]]
    assert await prompts(provider, "You are B.") == [["draft 1"], ["draft 2"]]


@pytest.mark.req("004/entry", "004/user-tools")
@pytest.mark.parametrize("let_through", [True, False])
async def test_what_stands_between_changes_neither_the_chat_nor_the_users_tools(
    http: httpx.AsyncClient, provider: FakeProvider, let_through: bool
) -> None:
    """An agent after a tool step is an entry agent; the agent after that one is not."""
    name = f"between-{let_through}"
    await provider.script("You are", [Step(text="a"), Step(text="b")] * 2)
    start = chat_start(includeUserTools=let_through)
    steps = [start, agent_free("sum"), agent_step("A"), agent_step("B")]
    edges = [flow("chat", "sum"), flow("sum", "A"), flow("A", "B")]
    thread = await ThreadClient.begin(http, name, graph=graph(steps, *edges), tools=["calculator"])

    await thread.answer(content="One")
    await thread.answer(content="Two")

    assert (await prompts(provider, "You are A."))[1] == ["One", "b", "Two"]
    assert await prompts(provider, "You are B.") == [["a"], ["a"]]
    of_a, of_b = await offered(provider, "You are A."), await offered(provider, "You are B.")
    assert ["calculator" in names for names in of_a] == [let_through] * 2
    assert ["calculator" in names for names in of_b] == [False] * 2


@pytest.mark.req("004/user-tools")
async def test_one_chat_start_that_holds_the_tools_back_counts_more_than_others(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """An agent behind both gets no tools, one behind the generous chat start alone gets them."""
    await provider.script("You are", [Step(text="x")], repeat_last=True)
    steps = [chat_start("yes"), chat_start("no", includeUserTools=False)]
    steps += [agent_step("both"), agent_step("one")]
    edges = [flow("yes", "both"), flow("no", "both", target_handle="other"), flow("yes", "one")]
    thread = await ThreadClient.begin(
        http, "generous", graph=graph(steps, *edges), tools=["calculator"]
    )

    await thread.answer(content="Hello")

    assert "calculator" not in (await offered(provider, "You are both."))[0]
    assert "calculator" in (await offered(provider, "You are one."))[0]


@pytest.mark.req("004/user-tools")
async def test_without_a_chat_start_the_users_tools_reach_nobody(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The chat does reach an agent, which is an entry agent without a chat start."""
    await provider.script("You are", [Step(text="x")], repeat_last=True)
    thread = await ThreadClient.begin(
        http, "startless", graph=graph([agent_step("S")]), tools=["calculator"]
    )

    await thread.answer(content="One")
    await thread.answer(content="Two")

    assert (await prompts(provider, "You are S."))[1] == ["One", "x", "Two"]
    assert "calculator" not in (await offered(provider, "You are S."))[0]


@pytest.mark.req("004/pipeline", "004/materialize", "004/entry")
async def test_a_pipeline_and_a_composition_stand_in_one_graph(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """A calls its linked member and flows into B; the member sees only its own input."""
    call = {"id": "c", "name": "member", "arguments": '{"input": "Look it up."}'}
    await provider.script("You are A.", [Step(tool_calls=[call]), Step(text="draft")])
    await provider.script("You are member.", [Step(text="found")])
    await provider.script("You are B.", [Step(text="final")])
    steps = [chat_start(), agent_step("A"), agent_step("B"), agent_step("member")]
    edges = [flow("chat", "A"), flow("A", "B"), link("member", "A")]
    thread = await ThreadClient.begin(http, "composed", graph=graph(steps, *edges))

    await thread.answer(content="What is it?")

    assert await thread.contents() == ["What is it?", "final"]
    assert await prompts(provider, "You are member.") == [["Look it up."]]
    assert await prompts(provider, "You are B.") == [["draft"]]
    assert "member" in (await offered(provider, "You are A."))[0]
    assert "member" not in (await offered(provider, "You are B."))[0]


@pytest.mark.req("004/entry", "004/user-tools")
async def test_graphs_inside_steps_belong_to_the_flow_around_them(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """In a graph behind an agent an agent gets its payload; in the first graph it gets the chat."""
    await provider.script("You are", [Step(text="x"), Step(text="y")] * 2)
    nested = [
        {"id": name, "type": "subgraph", "data": {"graph": graph([agent_step(f"in-{name}")])}}
        for name in ("first", "second")
    ]
    edges = [flow("chat", "first"), flow("first", "second")]
    thread = await ThreadClient.begin(
        http, "nested", graph=graph([chat_start(), *nested], *edges), tools=["calculator"]
    )

    await thread.answer(content="One")
    await thread.answer(content="Two")

    assert (await prompts(provider, "You are in-first."))[1] == ["One", "y", "Two"]
    assert await prompts(provider, "You are in-second.") == [["x"], ["x"]]
    assert "calculator" in (await offered(provider, "You are in-first."))[0]
    assert "calculator" not in (await offered(provider, "You are in-second."))[0]


@pytest.mark.req("004/subgraph", "004/lifecycle")
async def test_a_thread_executes_what_its_chat_starts_lead_to(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Steps and cycles elsewhere are ignored, and each executed step ends once."""
    await provider.script("You are", [Step(text="x")], repeat_last=True)
    alone = [agent_step(name) for name in ("idle", "c1", "c2")]
    edges = [flow("chat", "A"), flow("c1", "c2"), flow("c2", "c1")]
    thread = await ThreadClient.begin(
        http, "reachable", graph=graph([chat_start(), agent_step("A"), *alone], *edges)
    )

    headers, seen = await thread.events(content="Hello")

    run = (await http.get(headers["location"])).json()
    assert run["status"] == "completed"
    assert set(run["result"]["steps"]) == {"chat", "A"}
    of_steps = [(e["step_id"], e["type"]) for e in seen if e["type"].startswith("step.")]
    assert of_steps == [
        ("chat", "step.started"),
        ("chat", "step.completed"),
        ("A", "step.started"),
        ("A", "step.completed"),
    ]
    assert len(await provider.arrivals("You are")) == 1


@pytest.mark.req("004/subgraph", "004/channel", "004/materialize")
@pytest.mark.parametrize(
    ("edges", "place", "told"),
    [
        ([flow("A", "B"), flow("B", "A")], "graph.edges.2", "A -> B -> A"),
        ([link("A", "B"), link("B", "A")], "graph.edges.2", "A -> B -> A"),
        ([{"source": "A", "target": "B", "data": {}}], "graph.edges.1.data.channel", "required"),
    ],
    ids=["circle of flow", "circle of links", "no channel"],
)
async def test_a_thread_is_not_begun_with_an_invalid_graph(
    http: httpx.AsyncClient, edges: list[dict[str, Any]], place: str, told: str
) -> None:
    """The answer names the edge before any message is sent."""
    steps = [chat_start(), agent_step("A"), agent_step("B")]

    refused = await http.post("/threads", json={"graph": graph(steps, flow("chat", "A"), *edges)})

    assert refused.status_code == 422
    [error] = refused.json()["errors"]
    assert error["field"] == place
    assert told in error["message"]


@pytest.mark.req("004/chat")
async def test_a_registered_graph_answers_in_its_newest_version(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """A message may select another version once."""
    await provider.script("You are", [Step(text="x")], repeat_last=True)
    for name in ("A", "B"):
        content = graph([chat_start(), agent_step(name)], flow("chat", name))
        posted = await http.post("/graphs", json={"name": f"says-{name}", "graph": content})
        assert posted.status_code == 201, posted.text
    thread = await ThreadClient.begin(http, "registered", graph={"name": "says-A"})

    first = await thread.answer(content="One")
    second = await thread.answer(content="Two", graph={"name": "says-B"})
    third = await thread.answer(
        content="Three", agent={"name": "C", "prompt": {"system": "You are C."}}
    )

    assert [turn["run"]["graph"] for turn in (first, second, third)] == [
        {"name": "says-A", "version": 1},
        {"name": "says-B", "version": 1},
        None,
    ]
    assert await prompts(provider, "You are C.") == [["One", "x", "Two", "x", "Three"]]


@pytest.mark.req("004/chat")
async def test_the_ends_of_a_graph_that_were_reached_are_its_answer(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """The outputs are joined in the order of the graph; values other than texts are JSON."""
    await provider.script("You are B.", [Step(text="B says.")])
    await provider.script("You are A.", [Step(text="A says.")])
    steps = [chat_start(), agent_step("B"), agent_step("A"), agent_free("sum")]
    edges = [flow("chat", name) for name in ("A", "B", "sum")]
    thread = await ThreadClient.begin(http, "ends", graph=graph(steps, *edges))

    await thread.answer(content="Say")

    [_, answer] = await thread.contents()
    assert answer is not None
    assert answer.startswith("B says.\n\nA says.\n\n{")


async def test_a_run_executes_the_version_that_replaced_a_remembered_one(
    http: httpx.AsyncClient,
) -> None:
    """The process had prepared the earlier version when it accepted the run."""
    results = []
    for expression in ("1 + 1", "1 + 1", "2 + 2"):
        data = {"tool": "calculator", "args": {"expression": expression}}
        content = graph([{"id": "sum", "type": "tool", "data": data}])
        await http.post("/graphs", json={"name": "sums", "graph": content})
        body = {"kind": "graph", "graph": {"name": "sums"}}
        run = await http.post("/runs", json=body, headers={"Prefer": "wait=60"})
        results.append(run.json()["result"]["outputs"]["sum"]["default"]["value"])

    assert results == ["2", "2", "4"]
