"""The runs that the viewer tests use."""

import json
from typing import Any

import httpx

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.threads import flow

HOSTILE = "<img src=x onerror=\"document.documentElement.dataset.owned='yes'\">"
MANY = 9_900
"""Items of the run with many calls; each is a step."""

Json = dict[str, Any]

TEACHER: Json = {
    "name": "teacher",
    "prompt": {"system": "Teach ${subject}."},
    "inputs": {"subject": {"type": "string", "description": HOSTILE}},
}
CAREFUL: Json = {
    "name": "careful",
    "prompt": {"system": "Add carefully."},
    "tools": [{"tool": "calculator", "requires_approval": True}],
}


def ask(step_id: str, prompt: str) -> Json:
    """Return a step that calls a model."""
    return {"id": step_id, "type": "llm", "data": {"prompt": prompt}}


def calculate(step_id: str, expression: str, **more: Any) -> Json:
    """Return a step that calculates."""
    data = {"tool": "calculator", "args": {"expression": expression}}
    return {"id": step_id, "type": "tool", "data": data, **more}


def graph_run(run_id: str, steps: list[Json], *edges: Json, **more: Any) -> Json:
    """Return a run of a graph."""
    graph = {"steps": steps, "edges": list(edges), "max_parallel": 4}
    return {"run_id": run_id, "kind": "graph", "graph": graph, **more}


def asking(run_id: str) -> Json:
    """Return a run that waits for an approval."""
    changes = {"type": "object", "properties": {"amount": {"type": "integer"}}}
    step = {"id": "pay", "type": "approval", "data": {"message": "Pay?", "changes": changes}}
    return graph_run(run_id, [step], input={"amount": 4800})


async def tell(http: httpx.AsyncClient, provider: FakeProvider) -> None:
    """Make runs of every kind."""
    await _script(provider)
    again = {"on_error": "retry", "retry_count": 1, "retry_delay_ms": 0}
    await _run(http, {"run_id": "case", "input": "What is 6 * 7?", "metadata": {"team": "sales"}})
    await _run(
        http,
        graph_run(
            "broken",
            [
                ask("rates", "Fetch the rates"),
                calculate("convert", "1 / 0", policy=again),
                ask("report", "Write"),
                calculate("total", "6 * 7"),
            ],
            flow("rates", "convert"),
            flow("convert", "report"),
        ),
    )
    await _run(http, graph_run("hostile", [ask("say", f"hostile {HOSTILE}")]) | _hostile_metadata())
    await _run(http, asking("asking"), wait=0)
    await _run(http, graph_run("hanging", [ask("slow", "hang on")]), wait=0)
    await _run(http, _many())
    await _run(http, _nested())
    await _run(http, _items())
    await _run(http, graph_run("refused", [ask("say", "no answer")]))
    drawn = {"kind": "line", "symbols": ["AAPL"], "start": "2012-01-03", "end": "2012-03-30"}
    plot = {"id": "plot", "type": "tool", "data": {"tool": "plotter", "args": drawn}}
    await _run(http, graph_run("drawing", [plot]))
    graph = {"steps": [calculate("one", "1 + 1"), calculate("two", "2 + 2")], "edges": []}
    await _made(http.post("/graphs", json={"name": "sums", "graph": graph}))
    await _made(
        http.post("/agents", json={"agent": {"name": "tutor", "prompt": {"system": "Be."}}})
    )
    await _made(http.post("/agents", json={"agent": TEACHER}))
    await _made(http.post("/agents", json={"agent": CAREFUL}))
    schedule = {"cron": "0 6 * * *", "run": {"input": "What is 6 * 7?"}}
    await _made(http.put("/schedules/daily", json=schedule))
    await _talk(http)


def _hostile_metadata() -> Json:
    return {"metadata": {HOSTILE: HOSTILE}}


def _many() -> Json:
    router = {"routes": [{"when": {"path": "default", "op": "ge", "value": 0}, "to": "default"}]}
    step = {"type": "router", "data": router}
    data = {"over": "default", "step": step, "max_items": MANY}
    many = {"id": "each", "type": "map", "data": data}
    return graph_run("many", [many], input=list(range(MANY)))


def _items() -> Json:
    """Return a run whose map has an item of each kind: completed, failed and not started."""
    step = calculate("", "${default}")
    data = {"over": "default", "step": {"type": step["type"], "data": step["data"]}}
    steps = [{"id": "each", "type": "map", "data": data | {"max_parallel": 1}}]
    return graph_run("items", [*steps, calculate("total", "1 + 1")], input=["1+1", "1/0", "2+2"])


def _nested() -> Json:
    """Return a run with a graph in a step, and an edge that bypasses that step."""
    inner = {"steps": [calculate("add", "1 + 1"), calculate("double", "2 * 2")]}
    inner["edges"] = [flow("add", "double")]
    steps = [
        calculate("begin", "3 + 3"),
        {"id": "inside", "type": "subgraph", "data": {"graph": inner}},
        calculate("end", "4 + 4"),
    ]
    skipped = flow("begin", "end", target_handle="first")
    more = {"metadata": {"team": "sales", "region": "the north"}}
    return graph_run(
        "nested", steps, flow("begin", "inside"), flow("inside", "end"), skipped, **more
    )


async def _script(provider: FakeProvider) -> None:
    await provider.script("Fetch the rates", [Step(status=503), Step(text="EUR 1.08")])
    await provider.script("hostile", [Step(text=HOSTILE)], repeat_last=True)
    await provider.script("no answer", [Step(status=400)], repeat_last=True)
    sums = {"id": "call", "name": "calculator", "arguments": '{"expression": "1 + 1"}'}
    await provider.script("Add carefully", [Step(tool_calls=[sums]), Step(text="It is two.")] * 2)
    story = Step(text="Once upon a time there was a query.", after_events=4)
    await provider.script("Tell a story", [story], repeat_last=True)
    await provider.script("hang on", [Step(hang=True)], repeat_last=True)
    plan = {"actions": [{"tool": "calculator", "args": {"expression": "6 * 7"}}]}
    await provider.script("What is 6 * 7?", [Step(text=json.dumps(plan))], repeat_last=True)


async def _run(http: httpx.AsyncClient, body: Json, wait: int = 60) -> None:
    await _made(http.post("/runs", json=body, headers={"Prefer": f"wait={wait}"} if wait else {}))


async def _talk(http: httpx.AsyncClient) -> None:
    thread = {"thread_id": "talk", "title": "A talk", "agent": {"name": "tutor", "prompt": {}}}
    await _made(http.post("/threads", json=thread))
    path, wait = "/threads/talk/messages", {"Prefer": "wait=60"}
    said = await _made(http.post(path, json={"content": "First wording"}, headers=wait))
    edit = f"{path}/{said['user']['message_id']}/edit"
    await _made(http.post(edit, json={"content": "Second wording"}, headers=wait))


async def _made(sending: Any) -> Json:
    response = await sending
    assert response.status_code in (200, 201, 202), response.text
    answer: Json = response.json()
    return answer
