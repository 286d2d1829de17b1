"""Runs: look at one, list them."""

from typing import Annotated

from fastapi import APIRouter, Query

from app.api import problem_types as types
from app.api.call import Call, GuardedRoute
from app.api.documentation import EVERY_RUN_ROUTE, answers, operation_id
from app.api.parameters import RunIdPath
from app.api.run_body import RunQuery
from app.api.run_views import RunPage, RunView
from app.runs.ports import RunFilter

router = APIRouter(
    prefix="/runs",
    tags=["runs"],
    route_class=GuardedRoute,
    generate_unique_id_function=operation_id,
)


@router.get("", responses=answers(*EVERY_RUN_ROUTE))
async def list_runs(query: Annotated[RunQuery, Query()], call: Call) -> RunPage:
    """List runs, newest first."""
    wanted = RunFilter(
        status=query.status,
        created_after=query.created_after,
        created_before=query.created_before,
        limit=query.limit,
        cursor=query.cursor,
    )
    return RunPage.of(await call.runs.find(call.caller.tenant, wanted), call.root)


@router.get("/{run_id}", responses=answers(*EVERY_RUN_ROUTE, types.RUN_NOT_FOUND))
async def get_run(run_id: RunIdPath, call: Call) -> RunView:
    """Return a run: its state, its result, what it has spent and why it stopped."""
    return RunView.of(await call.runs.get(call.key(run_id)), call.root)
