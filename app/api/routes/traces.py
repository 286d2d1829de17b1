"""Traces: what a run did, call by request."""

from typing import Annotated, cast

from fastapi import APIRouter, Query, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse

from app.api import problem_types as types
from app.api.api_request import ApiRequest, ApiRoute
from app.api.documentation import EVERY_RUN_ROUTE, answers, operation_id
from app.api.field_types import RunIdPath
from app.api.run_body import TraceQuery
from app.api.trace_views import TraceView
from app.runs.run import RunStatus
from app.runs.service import Trace
from app.trace.explain import explain
from app.trace.snapshot import Snapshot

router = APIRouter(
    prefix="/runs",
    tags=["runs"],
    route_class=ApiRoute,
    generate_unique_id_function=operation_id,
)


@router.get(
    "/{run_id}/trace",
    response_model=TraceView,
    responses={
        **answers(*EVERY_RUN_ROUTE, types.RUN_NOT_FOUND),
        200: {
            "description": "The snapshot as JSON, or the text.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
    },
)
async def get_trace(
    run_id: RunIdPath, query: Annotated[TraceQuery, Query()], request: ApiRequest
) -> Response:
    """Return what a run did so far: the graph of its calls, or a text about it."""
    trace = await request.runs.trace(request.key(run_id))
    # A run may have made a hundred thousand calls: others are served while they are looked through.
    if query.format == "explain":
        cancelled = trace.run.status is RunStatus.CANCELLED
        snapshot = cast("Snapshot", trace.snapshot)
        return PlainTextResponse(await run_in_threadpool(explain, snapshot, cancelled=cancelled))
    content = await run_in_threadpool(_as_json, trace, request.root)
    return Response(content, media_type="application/json")


def _as_json(trace: Trace, root: str) -> str:
    return TraceView.of(trace, root).model_dump_json()
