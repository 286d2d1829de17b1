"""Runs: accept one, look at one, list them."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Body, Query, Response

from app.api import problem_types as types
from app.api.dependencies import Admits, CallerHere, Key, Root, RunIdPath, Runs, Wait
from app.api.documentation import answers
from app.api.examples import CASES
from app.api.limits import GuardedRoute
from app.api.run_body import RunBody, RunQuery
from app.api.run_views import RunPage, RunView
from app.runs.errors import StoreUnavailableError
from app.runs.ports import Accepted, RunFilter
from app.runs.run import Run
from app.runs.service import RunService

router = APIRouter(prefix="/runs", tags=["runs"], route_class=GuardedRoute)


@router.post(
    "",
    status_code=HTTPStatus.ACCEPTED,
    response_description="Accepted: the run is stored and survives any crash.",
    responses={
        **answers(
            types.MALFORMED_BODY,
            types.ANONYMOUS_REFUSED,
            types.RUN_CONFLICT,
            types.BODY_TOO_LARGE,
            types.UNSUPPORTED_MEDIA_TYPE,
            types.INVALID_REQUEST,
            types.IDEMPOTENCY_MISMATCH,
            types.QUEUE_FULL,
            types.UNAVAILABLE,
        ),
        200: {"description": "The run ended while it was waited for, or had been accepted before."},
    },
)
async def post_run(
    body: Annotated[RunBody, Body(openapi_examples=CASES)],
    caller: CallerHere,
    runs: Runs,
    admission: Admits,
    root: Root,
    wait: Wait,
    response: Response,
    idempotency_key: Key = None,
) -> RunView:
    """Accept a run; it is durable once this is answered.

    Repeating a request under the same `run_id` or `Idempotency-Key` returns the run it made.
    """
    accepted = await runs.accept(admission.new_run(body, caller.tenant, idempotency_key))
    run = await _awaited(runs, accepted.run, wait)
    _describe(response, accepted, run, wait)
    view = RunView.of(run, root)
    response.headers["Location"] = view.links.self
    return view


@router.get("", responses=answers(types.ANONYMOUS_REFUSED, types.INVALID_REQUEST))
async def list_runs(
    query: Annotated[RunQuery, Query()], caller: CallerHere, runs: Runs, root: Root
) -> RunPage:
    """List runs, newest first."""
    wanted = RunFilter(
        status=query.status,
        created_after=query.created_after,
        created_before=query.created_before,
        limit=query.limit,
        cursor=query.cursor,
    )
    return RunPage.of(await runs.find(caller.tenant, wanted), root)


@router.get(
    "/{run_id}",
    responses=answers(types.ANONYMOUS_REFUSED, types.RUN_NOT_FOUND, types.INVALID_REQUEST),
)
async def get_run(run_id: RunIdPath, caller: CallerHere, runs: Runs, root: Root) -> RunView:
    """Return a run: its state, its result, what it has spent and why it stopped."""
    return RunView.of(await runs.get(caller.run(run_id)), root)


async def _awaited(runs: RunService, run: Run, wait: int | None) -> Run:
    """Return the run as it stands once it was waited for; it is accepted whatever happens here."""
    if wait is None or run.finished:
        return run
    try:
        return await runs.wait(run.key, seconds=wait)
    except StoreUnavailableError:
        return run


def _describe(response: Response, accepted: Accepted, run: Run, wait: int | None) -> None:
    ended_in_time = wait is not None and run.finished
    if ended_in_time or not accepted.created:
        response.status_code = HTTPStatus.OK
    if wait is not None:
        response.headers["Preference-Applied"] = f"wait={wait}"
