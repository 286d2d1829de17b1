"""The stop that a ruling of the gate means for the run."""

from app.control.budget import Dimension
from app.control.stops import Stop, StopCause, StopKind
from app.control.usage import BudgetExceededError
from app.nodes.case.gate import ACT_STEPS, Ruling
from app.nodes.case.work import CaseWork


def halt(ruling: Ruling, work: CaseWork) -> Stop:
    """Return the stop that names the limit which the gate has found used up."""
    if ruling.dimension is None or ruling.dimension == ACT_STEPS:
        return _out_of_steps(work)
    return _out_of(Dimension(ruling.dimension), work)


def _out_of_steps(work: CaseWork) -> Stop:
    limit, used = work.case.act.max_steps_in(work.case.mode), work.state.act_steps
    return Stop(
        StopCause(
            kind=StopKind.BUDGET,
            dimension=ACT_STEPS,
            scope=work.context.node_id,
            limit=limit,
            used=used,
            reason=f"ACT step limit exceeded: {used}/{limit}",
        )
    )


def _out_of(dimension: Dimension, work: CaseWork) -> Stop:
    """Name the scope whose limit is the tightest, the innermost one if several are."""
    scopes = [scope for scope in work.context.scope.lineage() if dimension in scope.budget.limits()]
    scope = min(scopes, key=lambda view: view.budget.limits()[dimension])
    described = scope.usage.describe(dimension, scope.budget.limits()[dimension])
    if dimension is Dimension.LLM_CALLS_SMALL and work.kept_back:
        described += f", {work.kept_back} of them kept for the final answer"
    return BudgetExceededError(
        scope.usage,
        scope.budget,
        f"{described} (scope {scope.name})",
        dimension=dimension,
        scope=scope.name,
    )
