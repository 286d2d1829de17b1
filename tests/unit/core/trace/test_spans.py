"""OTLP spans of a graph, parsed as protobuf and named by the GenAI conventions."""

import base64
import inspect
import json
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes

from caseworker.core.trace import spans
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.spans import (
    TraceContext,
    context_of_run,
    otlp_document,
    resource_of,
    spans_of,
)
from tests.support.manual_clock import ManualClock

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def graph() -> ExecutionGraph:
    """Build a run in which an agent called a model and failed with a tool."""
    clock = ManualClock()
    work = ExecutionGraph("r-1", now_ms=clock)
    root = work.create_root("agent", {"run_id": "r-1"})
    work.mark_running(root)
    step = work.begin_node(root, "system", "agent", None, {"step_type": "agent"}, running=True)
    about = {"tier": "small", "provider": "openai", "note": "the secret prompt"}
    call = work.begin_node(step, "llm", "turn 1", "gpt-5-nano", about, running=True)
    clock.advance(250)
    answered = {"finish_reason": "stop", "response_model": "gpt-5-nano-2025-08-07"}
    work.annotate(call, {**answered, "tokens_cached": 60})
    work.annotate(step, {"agent": "clerk"})
    work.mark_success(call, 0.25, 100, 7)
    tool = work.begin_node(
        step,
        "tool",
        "calculator",
        None,
        {"args": {"x": "secret"}, "tool_call_id": "call_1"},
        running=True,
    )
    work.increment_retries(tool)
    work.mark_failure(tool, "ToolFailedError", "the secret message")
    work.mark_halt(step, "the secret reason")
    work.begin_node(root, "llm", "open", "gpt-5-nano", {}, running=True)
    return work


def document(traceparent: str | None = None) -> str:
    context = context_of_run("acme", "r-1", traceparent)
    made = spans_of(graph().snapshot(), context, tenant="acme", name="clerk", conversation="t-1")
    return otlp_document(made, context, resource_of("1.2.3"))


def parsed(text: str) -> list[ProtoSpan]:
    """Parse a document as a collector does; OTLP in JSON has hexadecimal IDs."""

    def with_bytes(value: Any) -> Any:
        if isinstance(value, list):
            return [with_bytes(each) for each in value]
        if not isinstance(value, dict):
            return value
        return {
            key: base64.b64encode(bytes.fromhex(inner)).decode()
            if key in ("traceId", "spanId", "parentSpanId")
            else with_bytes(inner)
            for key, inner in value.items()
        }

    message = ExportTraceServiceRequest()
    json_format.ParseDict(with_bytes(json.loads(text)), message)
    [resource] = message.resource_spans
    assert {each.key: each.value.string_value for each in resource.resource.attributes} == {
        "service.name": "caseworker",
        "service.version": "1.2.3",
    }
    return list(resource.scope_spans[0].spans)


def attributes(span: ProtoSpan) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, str(each.value.WhichOneof("value")))
        for each in span.attributes
    }


def test_a_collector_understands_every_node_that_has_ended() -> None:
    """Each ended node becomes a span with times, parent and usage; open nodes have none."""
    step, call, tool = parsed(document(CALLER))

    assert [step.name, call.name, tool.name] == [
        "invoke_agent clerk",
        "chat gpt-5-nano",
        "execute_tool calculator",
    ]
    assert call.parent_span_id == tool.parent_span_id == step.span_id
    assert {span.trace_id.hex() for span in (step, call, tool)} == {CALLER[3:35]}
    assert call.end_time_unix_nano - call.start_time_unix_nano == 250_000_000
    assert attributes(call)["gen_ai.usage.input_tokens"] == 100
    assert attributes(call)["gen_ai.usage.cache_read.input_tokens"] == 60
    assert attributes(call)["gen_ai.response.model"] == "gpt-5-nano-2025-08-07"
    [reason] = attributes(call)["gen_ai.response.finish_reasons"].values
    assert reason.string_value == "stop"
    assert {attributes(each)["gen_ai.conversation.id"] for each in (step, call, tool)} == {"t-1"}
    assert attributes(call)["caseworker.cost_usd"] == 0.25
    assert attributes(tool)["error.type"] == "ToolFailedError"
    assert attributes(tool)["gen_ai.tool.call.id"] == "call_1"
    assert attributes(tool)["caseworker.retries"] == 1
    assert (call.status.code, tool.status.code) == (
        Status.STATUS_CODE_UNSET,
        Status.STATUS_CODE_ERROR,
    )
    assert call.kind == ProtoSpan.SPAN_KIND_CLIENT


def test_the_root_stands_below_the_caller() -> None:
    """The root span has the caller's span as parent and the registered agent's name."""
    work = graph()
    work.close_open("over")
    work.mark_success(work.snapshot()["root_id"] or "", 0)
    context = context_of_run("acme", "r-1", CALLER)
    root = next(spans_of(work.snapshot(), context, tenant="acme", name="clerk"))

    assert (root.parent_id, root.name) == (CALLER[36:52], "invoke_workflow clerk")
    assert root.attributes["gen_ai.agent.name"] == "clerk"
    assert root.attributes["gen_ai.operation.name"] == "invoke_workflow"


def test_the_same_run_has_the_same_ids_whenever_it_is_asked_for() -> None:
    """A run's span IDs are deterministic and differ between tenants."""
    assert document() == document()
    assert context_of_run("acme", "r-1", None) != context_of_run("other", "r-1", None)
    assert spans.span_id_of("a", "r", "n1") != spans.span_id_of("a", "r", "n2")


def test_no_content_is_in_a_span() -> None:
    """Spans contain no message, reason, argument or prompt."""
    assert "secret" not in document(CALLER)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00-0-0-01",
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
        f"ff{CALLER[2:]}",
        CALLER.upper(),
    ],
)
def test_a_header_that_means_nothing_is_not_used(header: str) -> None:
    """An invalid traceparent is ignored, so the run gets its own trace."""
    assert TraceContext.parse(header) is None


def test_what_a_caller_does_not_keep_is_known() -> None:
    """The sampled flag is parsed, and the header is passed on unchanged."""
    context = TraceContext.parse(f"{CALLER[:-2]}00")

    assert context is not None
    assert (context.sampled, context.header) == (False, f"{CALLER[:-2]}00")


def test_the_names_are_those_of_the_conventions() -> None:
    """All span and attribute names exist in the current package of the conventions."""
    known = {value for _, value in inspect.getmembers(gen_ai_attributes) if isinstance(value, str)}
    known |= {operation.value for operation in gen_ai_attributes.GenAiOperationNameValues}
    used = [
        value for name, value in vars(spans).items() if name.isupper() and str(value)[:3] == "gen"
    ]

    assert len(used) == 13
    assert set(used) <= known
    assert {spans.WORKFLOW, spans.AGENT, spans.CHAT, spans.TOOL} <= known
    assert spans.ERROR == error_attributes.ERROR_TYPE


def test_the_names_are_those_of_version_0_1_0_of_the_conventions() -> None:
    """Copied by hand from the registry of that version; it has no ``gen_ai.workflow.name``."""
    registry = {
        *("gen_ai.agent.name", "gen_ai.conversation.id", "gen_ai.operation.name"),
        *("gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model"),
        *("gen_ai.response.finish_reasons", "gen_ai.tool.call.id", "gen_ai.tool.name"),
        *("gen_ai.tool.type", "gen_ai.usage.cache_read.input_tokens"),
        *("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"),
    }
    sent = {
        value
        for value in vars(spans).values()
        if isinstance(value, str) and value.startswith("gen_ai.")
    }

    assert sent == registry
