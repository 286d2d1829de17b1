"""Converts an ExecutionGraph to OpenTelemetry spans, without payloads.

A pure function derives the spans from a snapshot, with deterministic IDs. So the spans exported at
the end of a run are identical to those that a client reads later. The names are those of version
0.1.0 of OpenTelemetry's semantic conventions for generative AI, which are not stable yet. All
attribute names in use are defined in this module.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from caseworker.core.trace.node import ATTEMPT, TraceNode, imported_from_run
from caseworker.core.trace.snapshot import Snapshot

INTERNAL, CLIENT = 1, 3
"""Numbers of the OTLP span kinds."""

WORKFLOW, AGENT, CHAT, TOOL = "invoke_workflow", "invoke_agent", "chat", "execute_tool"
"""Values for the attribute ``OPERATION``; the names of these spans start with the value."""

OPERATION: Final = "gen_ai.operation.name"
AGENT_NAME: Final = "gen_ai.agent.name"
PROVIDER: Final = "gen_ai.provider.name"
MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
CONVERSATION: Final = "gen_ai.conversation.id"
TOKENS_IN: Final = "gen_ai.usage.input_tokens"
TOKENS_OUT: Final = "gen_ai.usage.output_tokens"
TOKENS_CACHED: Final = "gen_ai.usage.cache_read.input_tokens"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
ERROR: Final = "error.type"

RUN_ID: Final = "caseworker.run.id"
STATUS: Final = "caseworker.status"
NODE_ID: Final = "caseworker.node.id"
STEP: Final = "caseworker.step"
STEP_TYPE: Final = "caseworker.step.type"
TIER: Final = "caseworker.model.tier"
COST: Final = "caseworker.cost_usd"
RETRIES: Final = "caseworker.retries"
ATTEMPTED: Final = "caseworker.attempt"
MADE_BY: Final = "caseworker.taken_over_from"
"""Attribute for the ID of the run that a node was imported from. Like all ``caseworker.*``
attributes, it is not part of the OpenTelemetry conventions."""

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_NONE = frozenset({"0" * 32, "0" * 16})


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The parent span of a run, as carried by a ``traceparent`` header (W3C Trace Context)."""

    trace_id: str
    """ID of the trace: 32 hexadecimal digits."""
    span_id: str | None = None
    """ID of the parent span: 16 hexadecimal digits; None without a parent span."""
    sampled: bool = True

    @classmethod
    def parse(cls, header: str) -> "TraceContext | None":
        """Parse a ``traceparent`` header; return None if it is invalid."""
        match = _TRACEPARENT.fullmatch(header[:200].strip())
        if match is None or not _NONE.isdisjoint(match.groups()):
            return None
        return cls(match[1], match[2], bool(int(match[3], 16) & 1))

    @property
    def header(self) -> str:
        """Value of the ``traceparent`` header that makes this span the parent."""
        return f"00-{self.trace_id}-{self.span_id or '0' * 16}-{self.sampled:02x}"


Attribute = str | int | float | tuple[str, ...]
"""Type of a span attribute's value."""

SpanOf = Callable[[str], TraceContext]
"""Function that returns the trace context of a CallNode's span, which is sent to the called
service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The OpenTelemetry span of a node that has ended."""

    span_id: str
    parent_id: str | None
    name: str
    kind: int
    start_ms: int
    end_ms: int
    attributes: Mapping[str, Attribute]
    failed: bool


def context_of_run(tenant: str, run_id: str, traceparent: str | None) -> TraceContext:
    """Return the trace context that the caller sent with a run, or else a new trace."""
    parent = None if traceparent is None else TraceContext.parse(traceparent)
    return parent or TraceContext(_digest(tenant, run_id)[:32])


def spans_of_nodes(tenant: str, run_id: str, traceparent: str | None) -> SpanOf:
    """Return a function that maps the node IDs of a run to the trace contexts to propagate."""
    run_context = context_of_run(tenant, run_id, traceparent)
    return lambda node_id: replace(run_context, span_id=span_id_of(tenant, run_id, node_id))


def resource_of(version: str) -> Mapping[str, str]:
    """Return the attributes that describe this service, for all spans."""
    return {"service.name": "caseworker", "service.version": version}


def span_id_of(tenant: str, run_id: str, node_id: str) -> str:
    """Return the span ID of a node, which is always the same for that node."""
    return _digest(tenant, run_id, node_id)[:16]


def spans_of(
    snapshot: Snapshot,
    context: TraceContext,
    *,
    tenant: str,
    name: str | None = None,
    conversation: str | None = None,
) -> Iterator[Span]:
    """Yield the spans of all ended nodes, parents before their children.

    ``name`` is the registered graph or agent that the run executed; None for other runs.
    ``conversation`` is the ID of the run's thread; None if the run belongs to no thread.
    """
    run_id = snapshot["chain_id"]
    for node_id, node in snapshot["nodes"].items():
        end_ms = node["end_ts_ms"]
        if end_ms is None:
            continue
        parent = node["parent_id"]
        about, title, kind = _described(node, name)
        if parent is None:
            about[RUN_ID] = run_id
        if conversation is not None and OPERATION in about:
            about[CONVERSATION] = conversation
        yield Span(
            span_id=span_id_of(tenant, run_id, node_id),
            parent_id=context.span_id if parent is None else span_id_of(tenant, run_id, parent),
            name=title,
            kind=kind,
            start_ms=node["start_ts_ms"],
            end_ms=end_ms,
            attributes=about | _end_of(node),
            failed=node["status"] != "success",
        )


def _end_of(node: TraceNode) -> dict[str, Attribute]:
    """Return the attributes of an ended node of any kind."""
    about: dict[str, Attribute] = {NODE_ID: node["node_id"], STATUS: node["status"]}
    if node["retries_used"]:
        about[RETRIES] = node["retries_used"]
    if (maker := imported_from_run(node)) is not None:
        about[MADE_BY] = maker
    if node["status"] != "success":
        about[ERROR] = node["error_class"] or node["status"]
    return about


def _described(node: Mapping[str, Any], name: str | None) -> tuple[dict[str, Attribute], str, int]:
    """Return the attributes, the name and the kind of a node's span."""
    metadata = node["metadata"]
    match node["kind"]:
        case "llm":
            about = {OPERATION: CHAT, MODEL: node["model"], PROVIDER: metadata.get("provider")}
            about |= {TOKENS_IN: node["tokens_in"], TOKENS_OUT: node["tokens_out"]}
            about |= {TIER: metadata.get("tier"), COST: node["cost_usd"]}
            about[TOKENS_CACHED] = metadata.get("tokens_cached")
            if node["status"] == "success":
                about[RESPONSE_MODEL] = metadata.get("response_model", node["model"])
            if (reason := metadata.get("finish_reason")) is not None:
                about[FINISH_REASONS] = (reason,)
            attributes = {key: value for key, value in about.items() if value is not None}
            return attributes, f"{CHAT} {node['model']}", CLIENT
        case "tool":
            tool = {OPERATION: TOOL, TOOL_NAME: node["name"], TOOL_TYPE: "function"}
            if (call_id := metadata.get("tool_call_id")) is not None:
                tool[TOOL_CALL_ID] = call_id
            return tool, f"{TOOL} {node['name']}", INTERNAL
    if node["parent_id"] is None:
        agent_name = name or node["name"]
        return {OPERATION: WORKFLOW, AGENT_NAME: agent_name}, f"{WORKFLOW} {agent_name}", INTERNAL
    if node["name"] == ATTEMPT:
        return {ATTEMPTED: metadata.get("attempt", 0)}, ATTEMPT, INTERNAL
    agent = metadata.get("agent")
    if agent is not None or metadata.get("step_type") == "agent":
        agent_name = str(agent or node["name"])
        return {OPERATION: AGENT, AGENT_NAME: agent_name}, f"{AGENT} {agent_name}", INTERNAL
    step = {STEP: node["name"], STEP_TYPE: metadata.get("step_type", "system")}
    return step, f"step {node['name']}", INTERNAL


def otlp_document(spans: Iterator[Span], context: TraceContext, resource: Mapping[str, str]) -> str:
    """Serialise spans as an ``ExportTraceServiceRequest`` in OTLP/JSON."""
    resource_spans = {
        "resource": {"attributes": _attributes(resource)},
        "scopeSpans": [
            {
                "scope": {"name": "caseworker", "version": resource.get("service.version", "")},
                "spans": [_as_json(span, context) for span in spans],
            }
        ],
    }
    return json.dumps({"resourceSpans": [resource_spans]})


def _as_json(span: Span, context: TraceContext) -> dict[str, Any]:
    return {
        "traceId": context.trace_id,
        "spanId": span.span_id,
        **({} if span.parent_id is None else {"parentSpanId": span.parent_id}),
        "flags": int(context.sampled),
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": f"{span.start_ms}000000",
        "endTimeUnixNano": f"{span.end_ms}000000",
        "attributes": _attributes(span.attributes),
        "status": {"code": 2} if span.failed else {},
    }


def _attributes(values: Mapping[str, Attribute]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _any_value(value)} for key, value in values.items()]


def _any_value(value: Attribute) -> dict[str, Any]:
    if isinstance(value, tuple):
        return {"arrayValue": {"values": [_any_value(each) for each in value]}}
    if isinstance(value, str):
        return {"stringValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"doubleValue": value}


def _digest(*parts: str) -> str:
    return hashlib.sha256("/".join(parts).encode()).hexdigest()
