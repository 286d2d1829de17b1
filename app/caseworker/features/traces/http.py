"""Routes for traces: the trace of a run, and individual calls in it."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from fastapi import Path, Query, Response
from fastapi.responses import PlainTextResponse

from caseworker.core.trace.call_rows import first_in_tree
from caseworker.core.trace.explain import MAX_NODES, explain
from caseworker.core.trace.payloads import Payload, Payloads
from caseworker.core.trace.snapshot import Snapshot
from caseworker.core.trace.spans import context_of_run, otlp_document, resource_of, spans_of
from caseworker.features.traces.payloads import CallNotFoundError, PayloadReader
from caseworker.features.traces.views import CallDetails, TraceView
from caseworker.platform.http.bodies import QueryModel
from caseworker.platform.http.openapi import EVERY_RUN_ROUTE, answers
from caseworker.platform.http.problems import ATTEMPT_SUPERSEDED, Errors, ProblemType
from caseworker.platform.http.request import ApiRequest, api_router, for_run_keys
from caseworker.runs.http.fields import RunIdPath
from caseworker.runs.http.problems import RUN_NOT_FOUND
from caseworker.runs.run import RunKey, RunStatus
from caseworker.runs.service import RunService, Trace

CALL_NOT_FOUND = ProblemType(
    slug="call-not-found",
    status=404,
    title="Call not found",
    detail=(
        "The run has no call with this node ID. GET /runs/{run_id}/trace lists the calls in nodes."
    ),
    explanation="The run has no call with this node ID. `GET /runs/{run_id}/trace` lists the "
    "IDs of all its calls, steps and attempts under `snapshot.nodes`.",
)
ERRORS: Errors = {CallNotFoundError: CALL_NOT_FOUND}

router = api_router("runs", prefix="/runs")

NodeIdPath = Annotated[str, Path(description="ID of a CallNode, such as n000003.", max_length=32)]


class TraceQuery(QueryModel):
    """Query parameters that determine how a trace is returned."""

    format: Literal["json", "explain", "otlp"] = "json"
    """Format of the trace: ``json`` is the snapshot, ``explain`` a readable text, ``otlp``
    OpenTelemetry spans without content."""
    payloads: bool = False
    """Whether the snapshot includes the request and reply of each call."""


@router.get(
    "/{run_id}/trace",
    response_model=TraceView,
    responses={
        **answers(*EVERY_RUN_ROUTE, RUN_NOT_FOUND, ATTEMPT_SUPERSEDED),
        200: {
            "description": "The snapshot as JSON, the explanation as text, or spans in OTLP JSON.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
    },
)
@for_run_keys
async def get_trace(
    run_id: RunIdPath, query: Annotated[TraceQuery, Query()], request: ApiRequest
) -> Response:
    """Return the trace of a run so far: its call graph, or a text that explains it.

    With `payloads=true` it includes the request and reply of each call, up to a total size
    (`trace.max_shown_bytes`). `GET /runs/{run_id}/calls/{node_id}` returns those of a single call.
    """
    key = RunKey(request.caller.tenant, run_id)
    trace = await request.service(RunService).trace(key)
    if query.format == "otlp":
        spans = await asyncio.to_thread(_as_spans, trace, request.app.version)
        return Response(spans, media_type="application/json")
    # A run may have a hundred thousand calls: process them in a thread to keep serving others.
    if query.format == "explain":
        return PlainTextResponse(await explanation(trace, request))
    payloads = await request.service(PayloadReader).of_run(key) if query.payloads else None
    content = await asyncio.to_thread(_as_json, trace, request.root, payloads)
    return Response(content, media_type="application/json", headers={"Vary": "Accept"})


@router.get(
    "/{run_id}/calls/{node_id}",
    response_model=CallDetails,
    responses=answers(*EVERY_RUN_ROUTE, RUN_NOT_FOUND, CALL_NOT_FOUND),
)
async def get_call(run_id: RunIdPath, node_id: NodeIdPath, request: ApiRequest) -> Response:
    """Return one call of a run: request, reply, attempts and errors.

    Steps and the run itself are calls too. Calls can be read while the run executes.
    """
    key = RunKey(request.caller.tenant, run_id)
    call = await request.service(PayloadReader).call(key, node_id)
    details = CallDetails.of(call, request.service(Payloads).mode)
    return Response(details.model_dump_json(), media_type="application/json")


async def explanation(trace: Trace, request: ApiRequest) -> str:
    """Return the text that explains a trace, with the payloads that ``trace.payloads`` permits."""
    node_ids = await asyncio.to_thread(first_in_tree, cast("Snapshot", trace.snapshot), MAX_NODES)
    payloads = await request.service(PayloadReader).of_run(trace.run.key, node_ids)
    return await asyncio.to_thread(_as_text, trace, payloads)


def _as_json(trace: Trace, root: str, payloads: Mapping[str, Payload] | None) -> str:
    hidden = {"payloads"} if payloads is None else None
    return TraceView.of(trace, root, payloads).model_dump_json(exclude=hidden)


def _as_spans(trace: Trace, version: str) -> str:
    run = trace.run
    tenant, ref = run.key.tenant, run.request.definition_ref
    context = context_of_run(tenant, run.key.run_id, run.request.traceparent)
    name = None if ref is None else ref.name
    chat = run.request.chat
    spans = spans_of(
        cast("Snapshot", trace.snapshot),
        context,
        tenant=tenant,
        name=name,
        conversation=None if chat is None else chat.thread_id,
    )
    return otlp_document(spans, context, resource_of(version))


def _as_text(trace: Trace, payloads: Mapping[str, Payload]) -> str:
    run = trace.run
    waited = None if run.started_at is None else run.started_at - run.created_at
    steps: Mapping[str, Any] = (run.result or {}).get("steps") or {}
    return explain(
        cast("Snapshot", trace.snapshot),
        cancelled=run.status is RunStatus.CANCELLED,
        waiting=run.status is RunStatus.WAITING,
        payloads=payloads,
        skipped=[step_id for step_id, step in steps.items() if step["status"] == "skipped"],
        queued_ms=0 if waited is None else round(waited.total_seconds() * 1000),
    )
