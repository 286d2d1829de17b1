"""Routes for approvals, which runs request and people decide."""

from http import HTTPStatus
from typing import Annotated

from fastapi import Path, Query

from caseworker.api import problem_types as types
from caseworker.api.api_request import ApiRequest, api_router, requires
from caseworker.api.approval_views import ApprovalList, ApprovalView, DecisionBody
from caseworker.api.documentation import EVERY_BODY, EVERY_RUN_ROUTE, Responses, answers
from caseworker.api.field_types import PageQuery, RunIdPath
from caseworker.platform.caller import Scope
from caseworker.runs.approvals import ApprovalPage

router = api_router("approvals")

ApprovalIdPath = Annotated[
    str, Path(description="ID of the approval.", pattern="^[A-Za-z0-9_-]{1,64}$")
]

_DECIDED: Responses = {
    **answers(*EVERY_RUN_ROUTE, *EVERY_BODY, types.APPROVAL_NOT_FOUND, types.APPROVAL_DECIDED),
    202: {"description": "The decision is stored (or was already stored), and the run continues."},
}


@router.get("/approvals", responses=answers(*EVERY_RUN_ROUTE))
async def list_approvals(query: Annotated[PageQuery, Query()], request: ApiRequest) -> ApprovalList:
    """List the pending approvals of all runs, oldest first."""
    approvals, tenant = request.api.services.approvals, request.caller.tenant
    found = await approvals.waiting(tenant, limit=query.limit, cursor=query.cursor)
    return ApprovalList.of(found, request.root)


@router.get("/runs/{run_id}/approvals", responses=answers(*EVERY_RUN_ROUTE, types.RUN_NOT_FOUND))
async def list_run_approvals(run_id: RunIdPath, request: ApiRequest) -> ApprovalList:
    """List the approvals requested by a run, oldest first, with their decisions."""
    found = await request.api.services.approvals.of_run(request.key(run_id))
    return ApprovalList.of(ApprovalPage(found, None), request.root)


@router.post(
    "/runs/{run_id}/approvals/{approval_id}", status_code=HTTPStatus.ACCEPTED, responses=_DECIDED
)
@requires(Scope.APPROVE)
async def decide_approval(
    run_id: RunIdPath, approval_id: ApprovalIdPath, body: DecisionBody, request: ApiRequest
) -> ApprovalView:
    """Decide an approval; the first decision is final.

    Repeating the same decision returns the same response.
    """
    request.require_small()
    deciding = body.deciding(approval_id, request.caller.name)
    decided = await request.api.services.approvals.decide(request.key(run_id), deciding)
    return ApprovalView.of(decided, request.root)
