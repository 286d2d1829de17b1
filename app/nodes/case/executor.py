"""L: runs the actions of a plan, one after the other."""

from collections.abc import Mapping
from dataclasses import replace

from app.control.budget import Dimension
from app.control.ledger import Scope
from app.nodes.case.evidence import UNKNOWN_TOOL
from app.nodes.case.log import summary
from app.nodes.case.plan import Action, Plan
from app.nodes.case.ports import Tools
from app.nodes.case.references import MISSING_RESULT, UnfilledPlaceError, fill
from app.nodes.case.work import CaseWork
from app.tools.ports import ToolResult, failure

_NOT_RUN = frozenset({UNKNOWN_TOOL, "invalid_arguments"})
"""Codes of refusals by the dispatch; what they stand for was no tool call."""


class Executor:
    """Executes plans; what a tool returns, errors included, becomes evidence."""

    def __init__(self, work: CaseWork, tools: Tools) -> None:
        self._work = work
        self._tools = tools
        self._known = work.tools.names

    async def execute(self, plan: Plan) -> None:
        """Run the actions in their order; unknown tools are skipped.

        Raises:
            Stop: a limit or somebody's wish ends the run; the evidence so far is kept.
        """
        results: dict[int, ToolResult] = {}
        for number, planned in enumerate(plan.actions, start=1):
            if planned.tool not in self._known:
                continue  # refused by the planner, which has put a warning into the evidence
            action, result = await self._act(planned, number, results)
            results[number] = result
            self._work.state.add_evidence(action, result)
            self._work.log.add(
                "tool",
                tool=action.tool,
                args=dict(action.args),
                output_summary=summary(result),
                failed="error" in result,
            )

    async def _act(
        self, planned: Action, number: int, results: Mapping[int, ToolResult]
    ) -> tuple[Action, ToolResult]:
        """Run an action with ``results`` in its places; without them it cannot be run."""
        try:
            action = Action(planned.tool, fill(planned.args, results))
        except UnfilledPlaceError as problem:
            return planned, failure(str(problem), MISSING_RESULT)
        return action, await self._run(action, number)

    async def _run(self, action: Action, number: int) -> ToolResult:
        """Run an action and count its attempts, be there others in the run at the same time."""
        work = self._work
        state, scope = work.state, work.context.scope.child(f"act/{number}", None)
        try:
            result = await self._tools.run(
                replace(work.context, scope=scope),
                name=action.tool,
                args=action.args,
                key=f"{state.path}/act/{number}",
                tool_context=work.tool_context,
            )
        except BaseException:
            state.tool_calls += _attempts(scope)
            raise
        # A call that is replayed is not charged again.
        state.tool_calls += _attempts(scope) or result.get("code") not in _NOT_RUN
        return result


def _attempts(scope: Scope) -> int:
    return int(scope.usage.of(Dimension.TOOL_CALLS))
