"""GET /runs/{id}/calls/{node_id}, and the payloads of a trace."""

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.node import WAITS
from caseworker.core.trace.payloads import Payloads
from caseworker.engine.ports import CallOutcome
from caseworker.engine.waiting_calls import Question, WaitingCall
from caseworker.features.traces.payloads import PayloadReader
from caseworker.runs.ports import JournalWrite
from caseworker.runs.run import CallRecord, NewRun, RunKey, RunKind, RunRequest
from tests.support.api import Api, client_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


KEY = RunKey("default", "a")
QUESTION = {"role": "user", "content": "Why?"}
ASKED = {"messages": [QUESTION], "max_output_tokens": 100}
SAID = {"text": "Because of alice@example.org.", "model": "nano", "finish_reason": "stop"}


class Work:
    """A run with a step that calls a model and a tool, written as a worker writes it."""

    def __init__(self) -> None:
        self.graph = ExecutionGraph("a")
        self.root = self.graph.create_root("graph")
        self.step = self._begin(self.root, "system", "answer", {"step_type": "llm"})
        self.ask = self._begin(self.step, "llm", "ask", {"tier": "small"})
        self.tool = self._begin(self.step, "tool", "calculator", {"args": {"expression": "1/0"}})
        self.entries: dict[str, dict[str, Any]] = {
            self.ask: {"call_key": "answer/ask", "request": ASKED},
            self.tool: {"call_key": "answer/call"},
            self.step: {"call_key": "step:answer"},
        }

    def _begin(self, parent: str, kind: Any, name: str, metadata: dict[str, Any]) -> str:
        model = "nano" if kind == "llm" else None
        return self.graph.begin_node(parent, kind, name, model, metadata, running=True)

    def ended(self) -> "Work":
        """End the run: the model answers, and the tool fails at its second attempt."""
        self.graph.mark_success(self.ask, 0.25, 10, 5)
        self.entries[self.ask] |= {"outcome": CallOutcome.RESULT, "value": SAID}
        for number in (1, 2):
            node = self.graph.begin_node(
                self.tool, "system", "attempt", metadata={"attempt": number}
            )
            self.graph.mark_failure(node, "busy", f"No {number}.")
        self.graph.increment_retries(self.tool)
        self.graph.mark_failure(self.tool, "busy", "No 2.")
        self.entries[self.tool] |= {"outcome": CallOutcome.FAILURE, "value": {"message": "No 2."}}
        self.graph.mark_success(self.step, 0)
        outputs = {"default": {"session": "abc", "answer": 42}}
        self.entries[self.step] |= {"outcome": CallOutcome.RESULT, "value": outputs}
        return self

    async def written(self, api: Api, client: httpx.AsyncClient) -> None:
        """Write the run to the journal."""
        await client.post("/runs", json={"run_id": "a", "input": "2+2?"})
        run = await api.store.claim(KEY, "worker")
        assert run is not None
        calls = tuple(
            replace(CallRecord(node=node), **self.entries.get(node["node_id"], {}))
            for node in self.graph.changed_since(0).nodes
        )
        await api.journal.write(JournalWrite(key=KEY, fence=run.fence, calls=calls))


async def call(client: httpx.AsyncClient, node_id: str) -> dict[str, Any]:
    answer = await client.get(f"/runs/a/calls/{node_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.req("card/trace", "002/14.5")
async def test_a_call_of_a_model_shows_its_prompt_and_its_reply(
    api: Api, client: httpx.AsyncClient
) -> None:
    """Both are redacted, and the usage of the call is shown."""
    work = Work().ended()
    await work.written(api, client)

    shown = await call(client, work.ask)

    assert (shown["kind"], shown["name"], shown["model"]) == ("llm", "ask", "nano")
    assert (shown["status"], shown["path"], shown["payloads"]) == (
        "completed",
        "answer/ask",
        "redacted",
    )
    assert shown["request"] == ASKED
    assert shown["reply"] == {**SAID, "text": "Because of [email]."}
    assert shown["usage"] == {"tokens_in": 10, "tokens_out": 5, "cost_usd": 0.25}
    assert (shown["error"], shown["attempts"]) == (None, [])
    assert shown["started_at"].endswith("Z")


@pytest.mark.req("card/trace", "002/14.5")
async def test_a_failed_call_says_what_was_done_about_each_of_its_failures(
    api: Api, client: httpx.AsyncClient
) -> None:
    """The first failure was retried, the second one failed the call, and the step continued."""
    work = Work().ended()
    await work.written(api, client)

    shown = await call(client, work.tool)

    assert shown["request"] == {"args": {"expression": "1/0"}}
    assert shown["reply"] is None
    assert shown["error"] == {"error_class": "busy", "message": "No 2.", "handling": "failed"}
    assert [(one["attempt"], one["status"], one["error"]) for one in shown["attempts"]] == [
        (1, "failed", {"error_class": "busy", "message": "No 1.", "handling": "retried"}),
        (2, "failed", {"error_class": "busy", "message": "No 2.", "handling": "failed"}),
    ]
    assert shown["retries"] == 1


async def test_a_step_shows_its_outputs_without_secrets(
    api: Api, client: httpx.AsyncClient
) -> None:
    """Outputs are listed by handle, while the journal stores them unredacted."""
    work = Work().ended()
    await work.written(api, client)

    shown = await call(client, work.step)

    assert (shown["path"], shown["kind"]) == ("answer", "system")
    assert shown["reply"] == {"default": {"session": "[secret]", "answer": 42}}


async def test_what_has_no_key_in_the_journal_has_the_path_of_its_step_or_none(
    api: Api, client: httpx.AsyncClient
) -> None:
    """A step is named by its ID before it has a key; the root and attempts are no steps."""
    work = Work().ended()
    del work.entries[work.step]
    await work.written(api, client)
    attempts = [each["node_id"] for each in (await call(client, work.tool))["attempts"]]

    paths = {node: (await call(client, node))["path"] for node in (work.step, work.root, *attempts)}

    assert paths == {work.step: "answer", **dict.fromkeys((work.root, *attempts))}


async def test_a_call_can_be_read_while_it_works(api: Api, client: httpx.AsyncClient) -> None:
    """A running call has a request but no reply or end."""
    work = Work()
    await work.written(api, client)

    shown = await call(client, work.ask)

    assert (shown["status"], shown["request"], shown["reply"], shown["finished_at"]) == (
        "running",
        ASKED,
        None,
        None,
    )


async def test_only_the_call_that_waits_for_an_approval_is_shown_as_waiting(
    api: Api, client: httpx.AsyncClient
) -> None:
    """A call that waited in an earlier execution of its step is finished, not waiting."""
    work = Work()
    work.graph.mark_halt(work.tool, WAITS)
    again = work.graph.begin_node(work.step, "tool", "calculator", running=True)
    work.graph.close_open(WAITS, top=work.root)
    await work.written(api, client)
    run = await api.store.get(KEY)
    assert run is not None
    question = Question(
        subject="calculator", message="?", arguments={}, schema=None, timeout_seconds=60
    )
    asked = WaitingCall(call_id="q", node_id=again, call_key="answer/call", question=question)
    await api.approval_store.ask(run, asked)
    await api.store.release(run, active_seconds=0, calls=(), counted=False, waits_for=["q"])

    views = {each: await call(client, each) for each in (work.root, work.step, work.tool, again)}

    assert {
        each: (view["status"], view["finished_at"] is None) for each, view in views.items()
    } == {
        work.root: ("waiting", True),
        work.step: ("waiting", True),
        work.tool: ("halted", False),
        again: ("waiting", True),
    }


async def test_a_step_shows_the_inputs_that_its_edges_brought(
    api: Api, client: httpx.AsyncClient
) -> None:
    """The inputs are the outputs of the steps before it, or those of its graph in an entry step."""
    flow = {"channel": "flow"}
    inner = {
        "steps": [{"id": each, "type": "function", "data": {}} for each in "cd"],
        "edges": [{"source": "c", "target": "d", "data": flow}],
    }
    outer = {
        "steps": [
            {"id": "a", "type": "function", "data": {}},
            {"id": "b", "type": "subgraph", "data": {"graph": inner}},
        ],
        "edges": [{"source": "a", "target": "b", "data": flow}],
    }
    request = RunRequest(kind=RunKind.GRAPH, graph=outer, inputs={"default": 5})
    new = NewRun(key=KEY, request=request, request_hash="h")
    run = (await api.store.accept(new, worker_id="worker")).run
    graph = ExecutionGraph("a")
    root = graph.create_root("graph")
    steps = {each: graph.begin_node(root, "system", each) for each in ("a", "b", "b/c", "b/d")}
    ended = {"a": 1, "b/c": 2}
    calls = tuple(
        CallRecord(
            node=graph.node(node_id),
            call_key=f"step:{path}",
            outcome=CallOutcome.RESULT if path in ended else None,
            value={"default": ended[path]} if path in ended else None,
        )
        for path, node_id in steps.items()
    )
    root_record = CallRecord(node=graph.node(root))
    await api.journal.write(JournalWrite(key=KEY, fence=run.fence, calls=(root_record, *calls)))

    shown = {path: (await call(client, node))["request"] for path, node in steps.items()}

    assert shown == {path: {"default": n} for path, n in zip(steps, (5, 1, 1, 2), strict=True)}


@pytest.mark.parametrize("path", ["/runs/a/calls/n000099", "/runs/a/calls/x", "/runs/b/calls/n1"])
async def test_what_is_not_there_is_not_found(
    api: Api, client: httpx.AsyncClient, path: str
) -> None:
    """The problem document says whether the run or the call is missing."""
    await Work().written(api, client)

    answer = await client.get(path)

    kind = "run-not-found" if "/b/" in path else "call-not-found"
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (404, kind)


@pytest.mark.req("card/trace")
async def test_a_trace_has_payloads_if_they_are_asked_for(
    api: Api, client: httpx.AsyncClient
) -> None:
    """Payloads are listed by node ID, and the explanation quotes them."""
    work = Work().ended()
    await work.written(api, client)

    plain = (await client.get("/runs/a/trace")).json()
    whole = (await client.get("/runs/a/trace", params={"payloads": "true"})).json()
    told = (await client.get("/runs/a/trace", params={"format": "explain"})).text

    assert "payloads" not in plain
    assert set(whole["payloads"]) == {work.step, work.ask, work.tool}
    assert whole["payloads"][work.ask]["reply"]["text"] == "Because of [email]."
    assert "asked: Why?" in told
    assert "got: Because of [email]." in told
    assert 'asked: {"expression": "1/0"}' in told


@pytest.mark.parametrize(("mode", "said"), [("none", None), ("full", SAID["text"])])
async def test_payloads_are_shown_as_it_is_configured(
    api: Api, mode: Any, said: str | None
) -> None:
    """The setting hides payloads or shows them unredacted."""
    payloads = Payloads(mode)
    reading = PayloadReader(api.store, payloads, max_shown_bytes=2_000_000)
    async with client_of(api.app(payloads, reading)) as client:
        work = Work().ended()
        await work.written(api, client)
        shown = await call(client, work.ask)
        trace = (await client.get("/runs/a/trace", params={"payloads": "true"})).json()

    assert shown["payloads"] == mode
    assert (shown["reply"] or {}).get("text") == said
    assert bool(trace["payloads"]) is (said is not None)
    assert (shown["request"] is None) is (said is None)


async def test_the_payloads_of_a_trace_have_a_size(api: Api) -> None:
    """The first calls have payloads; the call route returns all others."""
    reading = PayloadReader(api.store, max_shown_bytes=400)
    async with client_of(api.app(reading)) as client:
        work = Work()
        for number in range(50):
            node = work.graph.begin_node(work.step, "tool", f"t{number}")
            work.entries[node] = {
                "call_key": f"t/{number}",
                "outcome": CallOutcome.RESULT,
                "value": {"text": "x" * 100},
            }
        await work.written(api, client)
        trace = (await client.get("/runs/a/trace", params={"payloads": "true"})).json()
        last = await call(client, node)

    assert 1 <= len(trace["payloads"]) <= 5
    assert len(json.dumps(trace["payloads"])) < 1_000
    assert last["reply"] == {"text": "x" * 100}


async def test_a_call_of_a_conversation_shows_its_whole_prompt(
    api: Api, client: httpx.AsyncClient
) -> None:
    """The call shows the whole conversation; the trace shows only the messages that it adds."""
    work = Work()
    added = {"role": "user", "content": "And then?"}
    request = {
        "messages": [{"role": "assistant", "reply_of": "answer/ask"}, added],
        "after": {"call_key": "answer/ask", "messages": 1},
    }
    again = work.graph.begin_node(work.step, "llm", "again", "nano", {}, running=True)
    work.entries[again] = {"call_key": "answer/again", "request": request}
    await work.ended().written(api, client)

    shown = (await call(client, again))["request"]
    traced = (await client.get("/runs/a/trace?payloads=true")).json()["payloads"]

    answer = {"role": "assistant", "content": "Because of [email]."}
    assert shown == {**ASKED, "messages": [QUESTION, answer, added]}
    assert traced[again]["request"] == request
