"""Stops: DELETE means cancel here, never "remove the record"."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Response

from app.api import problem_types as types
from app.api.call import Call, GuardedRoute
from app.api.documentation import EVERY_BODY, EVERY_RUN_ROUTE, Responses, answers, operation_id
from app.api.parameters import RunIdPath
from app.api.run_body import CancelBody, CancelQuery
from app.api.run_views import CancelReceipt

router = APIRouter(
    prefix="/runs",
    tags=["runs"],
    route_class=GuardedRoute,
    generate_unique_id_function=operation_id,
)

_ANSWERS: Responses = {
    **answers(*EVERY_RUN_ROUTE, *EVERY_BODY, types.TOO_MANY_PENDING_CANCELS),
    200: {
        "description": "The run had ended before; nothing was changed.",
        "model": CancelReceipt,
    },
    202: {"description": "The wish is stored and wins, also over a run that is yet to come."},
}


@router.delete("/{run_id}", status_code=HTTPStatus.ACCEPTED, responses=_ANSWERS)
@router.post(
    "/{run_id}/cancel",
    status_code=HTTPStatus.ACCEPTED,
    responses=_ANSWERS,
    name="cancel_run_by_post",
)
async def cancel_run(
    run_id: RunIdPath,
    query: Annotated[CancelQuery, Query()],
    call: Call,
    response: Response,
    body: CancelBody | None = None,
) -> CancelReceipt:
    """Ask a run to stop; the wish is kept even if the run does not exist yet."""
    reason = (body.reason if body else None) or query.reason
    receipt = await call.runs.cancel(call.key(run_id), by=call.caller.name, reason=reason)
    if receipt.already_finished:
        response.status_code = HTTPStatus.OK
    return CancelReceipt.of(receipt)
