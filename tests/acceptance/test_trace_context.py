"""Functions, tools and servers that a run calls get the trace context of the run.

The service runs in the test process. The OpenTelemetry propagator reads the headers that three
servers receive, and its SDK makes the spans of functions and tools.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import httpx
import pytest
import pytest_asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from caseworker.engine.context import ExecutionContext
from caseworker.main.process import Process
from caseworker.main.server import build_app
from caseworker.main.telemetry import Telemetry
from caseworker.nodes.function import FunctionNode
from caseworker.runs.run import Run, RunKey, RunKind, RunRequest, RunStatus
from caseworker.settings.schema import Settings, TelemetrySettings
from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec
from tests.support.database import TestServer
from tests.support.webhook_receiver import Arrival, Receiver, json_answer, receiving

TRACE_ID, CALLER_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = f"00-{TRACE_ID}-{CALLER_SPAN}-01"

GRAPH = {
    "steps": [
        {"id": "ask", "type": "llm", "data": {"tier": "big", "prompt": "Say hello."}},
        {"id": "call", "type": "tool", "data": {"tool": "web.echo", "args": {}}},
    ],
    "edges": [],
}
REPLY = {
    "id": "c-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
}


OWN_SPANS = InMemorySpanExporter()
_PROVIDER = TracerProvider()
_PROVIDER.add_span_processor(SimpleSpanProcessor(OWN_SPANS))


def _own_span(name: str) -> None:
    with _PROVIDER.get_tracer("own").start_as_current_span(f"in {name}"):
        return


class SpanningTool:
    """A tool that makes its own span."""

    spec = ToolSpec(
        name="spanning",
        description="Makes a span.",
        parameters={"type": "object", "additionalProperties": False, "properties": {}},
    )

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Make the span; see Tool."""
        _own_span("execute_tool spanning")
        return {"ok": True}


async def _async(_: ExecutionContext) -> None:
    _own_span("step async")


def _sync(_: ExecutionContext) -> None:
    _own_span("step sync")


def _blocking(_: ExecutionContext) -> None:
    _own_span("step blocking")


async def _in_time(_: ExecutionContext) -> None:
    _own_span("step in_time")


FUNCTIONS = (
    FunctionNode("async", _async),
    FunctionNode("sync", _sync),
    FunctionNode("blocking", _blocking, blocking=True),
    FunctionNode("in_time", _in_time),
)
SPANNING: Mapping[str, Any] = {
    "steps": [
        *({"id": each.id, "type": "function", "data": {"name": each.id}} for each in FUNCTIONS[:3]),
        {
            "id": "in_time",
            "type": "function",
            "data": {"name": "in_time"},
            "policy": {"timeout_ms": 60_000},
        },
        {"id": "tool", "type": "tool", "data": {"tool": "spanning", "args": {}}},
    ],
    "edges": [],
}


def _mcp_answer(arrival: Arrival) -> bytes:
    """Answer like a small MCP server over HTTP."""
    if not arrival.body:
        return b"HTTP/1.1 405 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    message = arrival.message
    info = {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "web", "version": "1"},
    }
    results: Mapping[str, Any] = {
        "initialize": info,
        "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "hello"}]},
    }
    if "id" not in message:
        return b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    about: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if (result := results.get(message["method"])) is None:
        return json_answer({**about, "error": {"code": -32601, "message": "none"}})
    return json_answer({**about, "result": result})


@dataclass
class TracedService:
    """A service and the three servers that its runs call."""

    http: httpx.AsyncClient
    model: Receiver
    tools: Receiver
    hook: Receiver
    opening: Sequence[Arrival]
    """Requests of the tool server that the opening of the session caused."""

    async def arrivals(
        self, run_id: str, headers: Mapping[str, str]
    ) -> tuple[Arrival, Arrival, Arrival]:
        """Execute the graph; return the model call, the tool call and the webhook."""
        for each in (self.model, self.tools, self.hook):
            each.arrivals.clear()
        body = {
            "run_id": run_id,
            "kind": "graph",
            "graph": GRAPH,
            "webhook": {"url": self.hook.url},
        }
        sent = {"Prefer": "wait=30", **headers}
        answer = await self.http.post("/runs", json=body, headers=sent)
        assert answer.json().get("status") == "completed", answer.text
        [hook] = await self.hook.wait_for(1)
        [model] = self.model.arrivals
        [tool] = [each for each in self.tools.arrivals if b"tools/call" in each.body]
        return model, tool, hook

    async def spans(self, run_id: str) -> Mapping[str, str]:
        """Return the ids of the run's spans by their names."""
        told = await self.http.get(f"/runs/{run_id}/trace", params={"format": "otlp"})
        [scope] = told.json()["resourceSpans"][0]["scopeSpans"]
        return {span["name"]: span["spanId"] for span in scope["spans"]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def traced_service(postgres: TestServer) -> AsyncIterator[TracedService]:
    async with AsyncExitStack() as stack:
        model, tools, hook = [await stack.enter_async_context(receiving()) for _ in range(3)]
        model.answer(json_answer(REPLY))
        tools.answer(_mcp_answer)
        big = {"provider": "openai", "model": "m", "base_url": f"http://127.0.0.1:{model.port}/v1"}
        web = {"url": f"http://127.0.0.1:{tools.port}/mcp"}
        settings = Settings.model_validate(
            {
                "models": {"big": big},
                "tools": {
                    "mcp": {"servers": {"web": web}},
                    "plugins": [f"{__name__}:{SpanningTool.__name__}"],
                },
                "webhooks": {"allow_http": True, "allow_private": True},
            }
        )
        stack.enter_context(
            patch("caseworker.main.process.installed_functions", return_value=FUNCTIONS)
        )
        process = Process(settings, stack.enter_context(postgres.database()), executes=True)
        transport = httpx.ASGITransport(build_app(process), raise_app_exceptions=False)
        await stack.enter_async_context(process.opened())
        http = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        await stack.enter_async_context(http)
        assert (await http.post("/webhooks/secret", json={})).status_code == 201
        listed = await http.get("/tools", headers={"traceparent": CALLER})
        assert "web.echo" in listed.text
        traced_service = TracedService(http, model, tools, hook, opening=tuple(tools.arrivals))
        yield traced_service


def read(carrier: Mapping[str, str]) -> SpanContext:
    """Read headers as the called service does."""
    above = TraceContextTextMapPropagator().extract(carrier)
    return trace.get_current_span(above).get_span_context()


@pytest.mark.asyncio(loop_scope="module")
async def test_what_a_run_calls_is_told_of_the_span_that_calls_it(
    traced_service: TracedService,
) -> None:
    """The header has the span of the call, in the trace of the run's caller."""
    model, tool, hook = await traced_service.arrivals("told", {"traceparent": CALLER})
    shown = await traced_service.spans("told")

    for arrival, name in (
        (model, "chat m"),
        (tool, "execute_tool web.echo"),
        (hook, "invoke_workflow graph"),
    ):
        told = read(arrival.headers)
        assert f"{told.trace_id:032x}" == TRACE_ID, name
        assert f"{told.span_id:016x}" == shown[name], name
        assert told.trace_flags.sampled, name
    in_message = read(tool.message["params"]["_meta"])
    assert f"{in_message.span_id:016x}" == shown["execute_tool web.echo"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("own", [{}, {"traceparent": CALLER.replace("1", "2")}])
@pytest.mark.req("cw/15.calls")
async def test_the_provider_gets_the_span_of_a_call_of_the_gateway(
    own: Mapping[str, str], traced_service: TracedService
) -> None:
    """The span belongs to the trace of the run, not to that of the client's request."""
    traced_service.model.arrivals.clear()
    run_id = f"gateway-{len(own)}"
    body = {"kind": "external", "run_id": run_id}
    created = await traced_service.http.post("/runs", json=body, headers={"traceparent": CALLER})
    key = created.json()["access"]["key"]
    asked = {"model": "big", "messages": [{"role": "user", "content": "Hello"}]}
    headers = {"Authorization": f"Bearer {key}", **own}
    reply = await traced_service.http.post(
        "/gateway/openai/v1/chat/completions", json=asked, headers=headers
    )
    assert reply.status_code == 200, reply.text
    await traced_service.http.post(f"/runs/{run_id}/finish", json={"output": 1})
    [model] = traced_service.model.arrivals
    told = read(model.headers)
    assert f"{told.trace_id:032x}" == TRACE_ID
    assert f"{told.span_id:016x}" == (await traced_service.spans(run_id))["chat m"]


@pytest.mark.asyncio(loop_scope="module")
async def test_spans_of_functions_and_tools_are_children_of_the_services_spans(
    traced_service: TracedService,
) -> None:
    """The parent is the step or call that executes them, on the event loop and in threads."""
    OWN_SPANS.clear()
    body = {"run_id": "spanning", "kind": "graph", "graph": SPANNING}
    headers = {"Prefer": "wait=30", "traceparent": CALLER}
    answer = await traced_service.http.post("/runs", json=body, headers=headers)
    assert answer.json().get("status") == "completed", answer.text
    shown = await traced_service.spans("spanning")

    own = {span.name: span for span in OWN_SPANS.get_finished_spans()}

    expected = [*(f"step {each.id}" for each in FUNCTIONS), "execute_tool spanning"]
    parents = {name: span.parent and f"{span.parent.span_id:016x}" for name, span in own.items()}
    assert parents == {f"in {name}": shown[name] for name in expected}
    assert {f"{span.context.trace_id:032x}" for span in own.values()} == {TRACE_ID}


@pytest.mark.req("003/NFR3.1")
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("headers", [{"traceparent": CALLER}, {}])
async def test_the_log_lines_of_a_run_name_its_trace(
    traced_service: TracedService, headers: dict[str, str]
) -> None:
    """The trace is the caller's, or the one of the run's own spans."""
    run_id = f"logged-{len(headers)}"
    with capture_logs(processors=[merge_contextvars]) as lines:
        await traced_service.arrivals(run_id, headers)
    told = await traced_service.http.get(f"/runs/{run_id}/trace", params={"format": "otlp"})
    [scope] = told.json()["resourceSpans"][0]["scopeSpans"]

    [finished] = [line for line in lines if line["event"] == "run.finished"]
    assert {span["traceId"] for span in scope["spans"]} == {finished["trace_id"]}
    assert (finished["trace_id"] == TRACE_ID) == bool(headers)


@pytest.mark.asyncio(loop_scope="module")
async def test_the_session_to_a_server_of_tools_belongs_to_no_trace(
    traced_service: TracedService,
) -> None:
    """The session outlives the call that opened it."""
    assert [each for each in traced_service.opening if b"tools/list" in each.body]
    assert not any("traceparent" in each.headers for each in traced_service.opening)
    assert not any(b"traceparent" in each.body for each in traced_service.opening)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_trace_that_is_not_kept_is_told_as_such(traced_service: TracedService) -> None:
    """Called services get the sampling decision of the caller."""
    arrivals = await traced_service.arrivals("unsampled", {"traceparent": f"{CALLER[:-2]}00"})

    assert [read(each.headers).trace_flags.sampled for each in arrivals] == [False] * 3
    assert all(read(each.headers).is_valid for each in arrivals)


@pytest.mark.asyncio(loop_scope="module")
async def test_nobody_is_told_of_a_trace_that_nobody_keeps(traced_service: TracedService) -> None:
    """The run has no trace of its caller, and no spans are exported."""
    arrivals = await traced_service.arrivals("silent", {})

    assert not any("traceparent" in each.headers for each in arrivals)
    assert b"traceparent" not in arrivals[1].body


@pytest.mark.parametrize(
    ("propagate", "endpoint", "above", "tells"),
    [
        (True, None, None, False),
        (True, None, CALLER, True),
        (True, "http://127.0.0.1:1", None, True),
        (False, "http://127.0.0.1:1", CALLER, False),
    ],
)
async def test_the_setting_decides_who_is_told(
    monkeypatch: pytest.MonkeyPatch,
    propagate: bool,
    endpoint: str | None,
    above: str | None,
    tells: bool,
) -> None:
    """A run without a trace of its caller propagates its own only if spans are exported."""
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    telemetry = Telemetry(TelemetrySettings(propagate=propagate, otlp_endpoint=endpoint))
    run = Run(
        key=RunKey("acme", "r-1"),
        kind=RunKind.CASE,
        status=RunStatus.RUNNING,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        request_hash="",
        request=RunRequest(kind=RunKind.CASE, traceparent=above),
    )

    assert (telemetry.observers.span_of(run) is not None) == tells
    await telemetry.aclose()
