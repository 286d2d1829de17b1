"""Stops: DELETE means cancel here, never "remove the record"."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Response

from app.api import problem_types as types
from app.api.dependencies import CallerHere, RunIdPath, Runs
from app.api.documentation import Responses, answers
from app.api.limits import GuardedRoute
from app.api.run_body import CancelBody, CancelQuery
from app.api.run_views import CancelReceipt

router = APIRouter(prefix="/runs", tags=["runs"], route_class=GuardedRoute)

_ANSWERS: Responses = {
    **answers(
        types.MALFORMED_BODY,
        types.ANONYMOUS_REFUSED,
        types.BODY_TOO_LARGE,
        types.UNSUPPORTED_MEDIA_TYPE,
        types.INVALID_REQUEST,
        types.TOO_MANY_INTENTS,
        types.UNAVAILABLE,
    ),
    200: {"description": "The run had ended before; nothing was changed."},
}


@router.delete(
    "/{run_id}",
    status_code=HTTPStatus.ACCEPTED,
    response_description="The wish is stored and wins, also over a run that is yet to come.",
    responses=_ANSWERS,
)
@router.post(
    "/{run_id}/cancel",
    status_code=HTTPStatus.ACCEPTED,
    response_description="The wish is stored and wins, also over a run that is yet to come.",
    responses=_ANSWERS,
)
async def cancel_run(
    run_id: RunIdPath,
    query: Annotated[CancelQuery, Query()],
    caller: CallerHere,
    runs: Runs,
    response: Response,
    body: CancelBody | None = None,
) -> CancelReceipt:
    """Ask a run to stop; the wish is kept even if the run does not exist yet."""
    reason = (body.reason if body else None) or query.reason
    receipt = await runs.cancel(caller.run(run_id), by=caller.name, reason=reason)
    if receipt.already_finished:
        response.status_code = HTTPStatus.OK
    return CancelReceipt.of(receipt)
