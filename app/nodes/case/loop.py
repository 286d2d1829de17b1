"""The loop of a case: gate, planner, executor and verifier in turn."""

from collections.abc import Mapping
from dataclasses import replace

from app.control.budget import Dimension
from app.control.ledger import Scope
from app.control.usage import BudgetExceededError
from app.llm.gateway import Tier
from app.nodes.case.evidence import UNKNOWN_TOOL
from app.nodes.case.gate import Decision, GateDecision, GateInput, Reason, decide
from app.nodes.case.plan import MISSING_RESULT, Action, Plan, UnfilledPlaceError, fill
from app.nodes.case.planner import Planner
from app.nodes.case.state import PlanFailure
from app.nodes.case.verifier import Verification
from app.nodes.case.work import CaseWork, summary
from app.nodes.case.wrap_up import WrapUp
from app.tools.dispatch import ToolDispatch
from app.tools.ports import ToolResult, failure

_NOT_RUN = frozenset({UNKNOWN_TOOL, "invalid_arguments"})
"""Codes of refusals by the dispatch, after which no tool was called."""

_NO_HALT = frozenset({Reason.PASSED, Reason.BIG_FAILED})
"""Reasons for which a case ends without halting."""


class Executor:
    """Executes plans; what a tool returns, errors included, becomes evidence."""

    def __init__(self, work: CaseWork, tools: ToolDispatch) -> None:
        self._work = work
        self._tools = tools
        self._known = work.tools.names

    async def execute(self, plan: Plan) -> None:
        """Run the actions in their order; unknown tools are skipped.

        Raises:
            Stop: a limit or a cancel request ends the run; the evidence so far is kept.
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
        """Run an action with ``results`` in its places; it fails where one is missing."""
        try:
            action = Action(planned.tool, fill(planned.args, results))
        except UnfilledPlaceError as problem:
            return planned, failure(str(problem), MISSING_RESULT)
        return action, await self._run(action, number)

    async def _run(self, action: Action, number: int) -> ToolResult:
        """Run an action and count its attempts, in a scope of its own."""
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


class CaseLoop:
    """Works on one case until the gate says stop."""

    def __init__(self, work: CaseWork, tools: ToolDispatch, verification: Verification) -> None:
        self._work = work
        self._planner = Planner(work)
        self._executor = Executor(work, tools)
        self._verification = verification
        self._wrap_up = WrapUp(work)

    async def run(self) -> GateDecision:
        """Return the decision that ended the work.

        Raises:
            Stop: a limit or a cancel request ended it before. If there are no tool calls left, what
                was found is put into words first.
        """
        try:
            decided = await self._run()
        except BudgetExceededError as stop:
            if stop.cause.dimension is Dimension.TOOL_CALLS:
                await self._wrap_up.run()
            raise
        if decided.reason not in _NO_HALT:
            await self._wrap_up.run()
        return decided

    async def _run(self) -> GateDecision:
        work = self._work
        while (decided := self._decide()).decision is not Decision.STOP:
            if decided.decision is Decision.CONTINUE:
                await self._pass()
            else:
                work.state.escalate()
                work.log.add("gate", event="escalate_to_big", reason=decided.reason.value)
        return decided

    async def _pass(self) -> None:
        state, case = self._work.state, self._work.case
        state.begin_pass(gated=case.act.max_steps_in(case.mode) > 0)
        plan = await self._planner.plan()
        if isinstance(plan, PlanFailure):
            state.plan_failure, state.failure = plan, plan.message or state.failure
            return
        state.previous_plan = plan
        await self._executor.execute(plan)
        await self._verification.measure()

    def _decide(self) -> GateDecision:
        case, state = self._work.case, self._work.state
        given = GateInput(
            tier=state.tier,
            passed=state.verified,
            passes=state.passes[state.tier],
            plan_failure=state.plan_failure.kind if state.plan_failure else None,
            stalled_rounds=state.stalled_rounds,
            act_steps=state.act_steps,
            small_calls_left=self._work.planning_calls_left(Tier.SMALL),
            big_calls_left=self._work.calls_left(Tier.BIG),
            big_calls=state.usage[Tier.BIG].calls,
            exhausted=self._work.exhausted(),
        )
        decided = decide(given, case.mode, case.act)
        self._work.log.add(
            "gate",
            decision=decided.decision.value,
            reason=decided.reason.value,
            metric=round(state.best_metric, 4),
            act_steps=state.act_steps,
        )
        return decided
