"""API schemas for approvals and for decisions about them."""

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from caseworker.engine.approvals import Verdict
from caseworker.platform.http.field_types import Body, Reason, View
from caseworker.platform.validation import refusal
from caseworker.runs.approvals import Approval, ApprovalPage, Deciding

_VERDICTS = {
    "approve": Verdict.APPROVED,
    "approved": Verdict.APPROVED,
    "refuse": Verdict.REFUSED,
    "refused": Verdict.REFUSED,
}


class DecisionBody(Body):
    """A decision to approve or refuse a pending approval."""

    decision: Literal["approve", "refuse", "approved", "refused"]
    """The decision: `approve` or `refuse`. `approved` and `refused`, as used in responses, are
    accepted too."""
    arguments: dict[str, Any] | None = None
    """Arguments that replace the requested ones; they must match the `schema` of the approval. If
    omitted, the requested arguments are used."""
    reason: Reason | None = None
    """Reason for the decision, shown in the run. If the approval is refused, the agent receives it
    too."""

    @model_validator(mode="after")
    def _changes_what_is_approved(self) -> Self:
        if self.arguments is not None and _VERDICTS[self.decision] is Verdict.REFUSED:
            raise refusal("arguments are allowed only with the decision approve.")
        return self

    def deciding(self, approval_id: str, by: str) -> Deciding:
        """Return the decision on the approval with this ID, made by ``by``."""
        verdict = _VERDICTS[self.decision]
        arguments, reason = self.arguments, self.reason
        return Deciding(
            approval_id=approval_id, verdict=verdict, by=by, arguments=arguments, reason=reason
        )


class DecisionView(View):
    """The decision on an approval, or its timeout."""

    decision: Literal["approved", "refused", "timed_out"]
    by: str | None
    """Name of the caller that decided; null if the approval timed out."""
    at: datetime
    reason: str | None
    arguments: Any
    """Arguments that replace the requested ones; null if the requested ones are used."""


class ApprovalView(View):
    """A request by a run for a person's approval, and the decision if there is one."""

    run_id: str
    approval_id: str
    node_id: str
    """ID of the trace node (CallNode) that first requested the approval."""
    run_url: str
    """URL of the run, whose ``input`` is the caller's request."""
    subject: str
    """Name of the tool to call, or of the step that requests the approval."""
    message: str
    arguments: Any
    """Arguments that are used if the request is approved unchanged."""
    schema_: dict[str, Any] | None = Field(alias="schema", serialization_alias="schema")
    """JSON Schema for replacement arguments; null if the arguments cannot be changed."""
    requested_at: datetime
    expires_at: datetime
    """Time at which the approval expires if no decision is made."""
    open: bool
    """Whether a decision can still be made."""
    decision: DecisionView | None

    @classmethod
    def of(cls, approval: Approval, root: str) -> Self:
        """Return the view of an approval. ``root`` is the path prefix for its URLs."""
        question, decided = approval.question, approval.decision
        return cls(
            run_id=approval.key.run_id,
            approval_id=approval.approval_id,
            node_id=approval.node_id,
            run_url=f"{root}/runs/{approval.key.run_id}",
            subject=question.subject,
            message=question.message,
            arguments=question.arguments,
            schema=None if question.schema is None else dict(question.schema),
            requested_at=approval.requested_at,
            expires_at=approval.expires_at,
            open=approval.open,
            decision=None
            if decided is None
            else DecisionView(
                decision=decided.verdict.value,
                by=decided.by,
                at=decided.at,
                reason=decided.reason,
                arguments=decided.arguments,
            ),
        )


class ApprovalList(View):
    """A page of approvals, oldest first."""

    approvals: list[ApprovalView]
    next_cursor: str | None = None
    """Cursor of the next page; null on the last page."""

    @classmethod
    def of(cls, page: ApprovalPage, root: str) -> Self:
        """Return the view of a page of approvals. ``root`` is the path prefix for their URLs."""
        views = [ApprovalView.of(each, root) for each in page.approvals]
        return cls(approvals=views, next_cursor=page.next_cursor)
