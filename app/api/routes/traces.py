"""Traces: what a run did, call by call."""

from typing import Annotated, cast

from fastapi import APIRouter, Query, Response
from fastapi.responses import PlainTextResponse

from app.api import problem_types as types
from app.api.dependencies import CallerHere, RunIdPath, Runs
from app.api.documentation import answers
from app.api.limits import GuardedRoute
from app.api.run_body import TraceQuery
from app.api.trace_views import TraceView
from app.trace.explain import explain
from app.trace.snapshot import Snapshot

router = APIRouter(prefix="/runs", tags=["runs"], route_class=GuardedRoute)


@router.get(
    "/{run_id}/trace",
    response_model=TraceView,
    responses={
        **answers(types.ANONYMOUS_REFUSED, types.RUN_NOT_FOUND, types.INVALID_REQUEST),
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
    },
)
async def get_trace(
    run_id: RunIdPath, caller: CallerHere, query: Annotated[TraceQuery, Query()], runs: Runs
) -> TraceView | Response:
    """Return what a run did so far: the graph of its calls, or a text about it."""
    trace = await runs.trace(caller.run(run_id))
    if query.format == "explain":
        return PlainTextResponse(explain(cast("Snapshot", trace.snapshot)))
    return TraceView.of(trace)
