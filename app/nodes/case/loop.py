"""The loop of a case: the gate rules, H plans, L executes, the verifier measures."""

from app.control.budget import Dimension
from app.control.usage import BudgetExceededError
from app.llm.gateway import Tier
from app.nodes.case.executor import Executor
from app.nodes.case.gate import Decision, Reason, Ruling, Standing, rule
from app.nodes.case.planner import Planner
from app.nodes.case.state import Trouble
from app.nodes.case.verification import Verification
from app.nodes.case.work import CaseWork
from app.nodes.case.wrap_up import WrapUp

_NO_HALT = frozenset({Reason.PASSED, Reason.BIG_FAILED})
"""Reasons for which a case ends without halting."""


class CaseLoop:
    """Works on one case until the gate says stop."""

    def __init__(
        self,
        work: CaseWork,
        planner: Planner,
        executor: Executor,
        verification: Verification,
        wrap_up: WrapUp,
    ) -> None:
        self._work = work
        self._planner = planner
        self._executor = executor
        self._verification = verification
        self._wrap_up = wrap_up

    async def run(self) -> Ruling:
        """Return the ruling that ended the work.

        Raises:
            Stop: a limit or somebody's wish ended it before. If there are no tool calls left, what
                was found is put into words first.
        """
        try:
            ruling = await self._run()
        except BudgetExceededError as stop:
            if stop.cause.dimension is Dimension.TOOL_CALLS:
                await self._wrap_up.run()
            raise
        if ruling.reason not in _NO_HALT:
            await self._wrap_up.run()
        return ruling

    async def _run(self) -> Ruling:
        while True:
            ruling = self._rule()
            match ruling.decision:
                case Decision.STOP:
                    return ruling
                case Decision.ESCALATE:
                    self._escalate(ruling)
                case Decision.CONTINUE:
                    await self._pass()

    async def _pass(self) -> None:
        state, case = self._work.state, self._work.case
        state.begin_pass(gated=case.act.max_steps_in(case.mode) > 0)
        plan = await self._planner.plan()
        if isinstance(plan, Trouble):
            state.trouble, state.failure = plan, plan.message or state.failure
            return
        state.previous_plan = plan
        await self._executor.execute(plan)
        await self._verification.measure()

    def _rule(self) -> Ruling:
        case, state = self._work.case, self._work.state
        standing = Standing(
            tier=state.tier,
            passed=state.verified,
            passes=state.passes[state.tier],
            trouble=state.trouble.kind if state.trouble else None,
            stalled_rounds=state.stalled_rounds,
            act_steps=state.act_steps,
            small_calls_left=self._work.planning_calls_left(Tier.SMALL),
            big_calls_left=self._work.calls_left(Tier.BIG),
            big_calls=state.usage[Tier.BIG].calls,
            spent=self._work.spent(),
        )
        ruling = rule(standing, case.mode, case.act)
        self._work.log.add(
            "gate",
            decision=ruling.decision.value,
            reason=ruling.reason.value,
            metric=round(state.best_metric, 4),
            act_steps=state.act_steps,
        )
        return ruling

    def _escalate(self, ruling: Ruling) -> None:
        self._work.state.escalate()
        self._work.log.add("gate", event="escalate_to_big", reason=ruling.reason.value)
