"""Routes for approvals, which runs request and people decide."""

from http import HTTPStatus
from typing import Annotated

from fastapi import Path, Query

from caseworker.features.approvals.views import ApprovalList, ApprovalView, DecisionBody
from caseworker.platform.caller import Scope
from caseworker.platform.http.field_types import PageQuery
from caseworker.platform.http.openapi import EVERY_BODY, EVERY_RUN_ROUTE, Responses, answers
from caseworker.platform.http.problems import (
    INVALID_REQUEST,
    Errors,
    ProblemError,
    ProblemType,
    Violation,
)
from caseworker.platform.http.request import ApiRequest, api_router, requires
from caseworker.runs.approvals import ApprovalPage, RunApprovals
from caseworker.runs.errors import (
    ApprovalDecidedError,
    ApprovalNotFoundError,
    InvalidArgumentsError,
)
from caseworker.runs.http.fields import RunIdPath
from caseworker.runs.http.problems import RUN_NOT_FOUND
from caseworker.runs.run import RunKey

APPROVAL_NOT_FOUND = ProblemType(
    slug="approval-not-found",
    status=404,
    title="Approval not found",
    detail="The run has no approval with this ID. GET /runs/{run_id}/approvals lists all of them.",
)
APPROVAL_DECIDED = ProblemType(
    slug="approval-decided",
    status=409,
    title="Approval is already resolved",
    detail="The approval was already decided, it expired, or its run ended. GET "
    "/runs/{run_id}/approvals shows the outcome.",
)


def _invalid_arguments(error: InvalidArgumentsError) -> ProblemError:
    violations = [Violation(field, message) for field, message in error.problems]
    return ProblemError(INVALID_REQUEST, violations=violations)


ERRORS: Errors = {
    ApprovalNotFoundError: APPROVAL_NOT_FOUND,
    ApprovalDecidedError: APPROVAL_DECIDED,
    InvalidArgumentsError: _invalid_arguments,
}

router = api_router("approvals")

ApprovalIdPath = Annotated[
    str, Path(description="ID of the approval.", pattern="^[A-Za-z0-9_-]{1,64}$")
]

_DECIDED: Responses = {
    **answers(*EVERY_RUN_ROUTE, *EVERY_BODY, APPROVAL_NOT_FOUND, APPROVAL_DECIDED),
    202: {"description": "The decision is stored (or was already stored), and the run continues."},
}


@router.get("/approvals", responses=answers(*EVERY_RUN_ROUTE))
async def list_approvals(query: Annotated[PageQuery, Query()], request: ApiRequest) -> ApprovalList:
    """List the pending approvals of all runs, oldest first."""
    approvals, tenant = request.service(RunApprovals), request.caller.tenant
    found = await approvals.waiting(tenant, limit=query.limit, cursor=query.cursor)
    return ApprovalList.of(found, request.root)


@router.get("/runs/{run_id}/approvals", responses=answers(*EVERY_RUN_ROUTE, RUN_NOT_FOUND))
async def list_run_approvals(run_id: RunIdPath, request: ApiRequest) -> ApprovalList:
    """List the approvals requested by a run, oldest first, with their decisions."""
    found = await request.service(RunApprovals).of_run(RunKey(request.caller.tenant, run_id))
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
    decided = await request.service(RunApprovals).decide(
        RunKey(request.caller.tenant, run_id), deciding
    )
    return ApprovalView.of(decided, request.root)
