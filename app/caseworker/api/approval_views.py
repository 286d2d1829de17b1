"""API schemas of approvals and of decisions on them."""

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from caseworker.api.field_types import Body, Reason, View
from caseworker.engine.approvals import Verdict
from caseworker.nodes.reading import refusal
from caseworker.runs.approvals import Approval, ApprovalPage, Deciding

_VERDICTS = {
    "approve": Verdict.APPROVED,
    "approved": Verdict.APPROVED,
    "refuse": Verdict.REFUSED,
    "refused": Verdict.REFUSED,
}


class DecisionBody(Body):
    """A decision on an approval."""

    decision: Literal["approve", "refuse", "approved", "refused"]
    """`approve` or `refuse`; `approved` and `refused`, as used in responses, are accepted too."""
    arguments: dict[str, Any] | None = None
    """Replace the requested arguments; they must match the `schema` of the approval. If omitted,
    the requested arguments are used."""
    reason: Reason | None = None
    """Shown in the run; for a refusal, also passed to the agent."""

    @model_validator(mode="after")
    def _changes_what_is_approved(self) -> Self:
        if self.arguments is not None and _VERDICTS[self.decision] is Verdict.REFUSED:
            raise refusal("arguments are allowed only with the decision approve.")
        return self

    def deciding(self, approval_id: str, by: str) -> Deciding:
        """Convert the body to a decision."""
        verdict = _VERDICTS[self.decision]
        arguments, reason = self.arguments, self.reason
        return Deciding(
            approval_id=approval_id, verdict=verdict, by=by, arguments=arguments, reason=reason
        )


class DecisionView(View):
    """The outcome of an approval."""

    decision: Literal["approved", "refused", "timed_out"]
    by: str | None
    """Name of the decider; null if the approval timed out."""
    at: datetime
    reason: str | None
    arguments: Any
    """Arguments that replace the requested ones; null if those are used."""


class ApprovalView(View):
    """An approval that a run has requested."""

    run_id: str
    approval_id: str
    node_id: str
    """The CallNode that first requested it."""
    run_url: str
    """URL of the run; its ``input`` is the caller's request."""
    subject: str
    """The tool to call, or the step that requests the approval."""
    message: str
    arguments: Any
    """The arguments that are used on approval."""
    schema_: dict[str, Any] | None = Field(alias="schema", serialization_alias="schema")
    """JSON Schema for replacement arguments; null if they cannot be changed."""
    requested_at: datetime
    expires_at: datetime
    """The deadline for a decision."""
    open: bool
    """Whether it can still be decided."""
    decision: DecisionView | None

    @classmethod
    def of(cls, approval: Approval, root: str) -> Self:
        """Convert an approval."""
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
    """Approvals, oldest first."""

    approvals: list[ApprovalView]
    next_cursor: str | None = None
    """Cursor of the next page; null on the last page."""

    @classmethod
    def of(cls, page: ApprovalPage, root: str) -> Self:
        """Convert a page."""
        views = [ApprovalView.of(each, root) for each in page.approvals]
        return cls(approvals=views, next_cursor=page.next_cursor)
