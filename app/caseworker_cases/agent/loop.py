"""The loop of a case: gate, planner, executor and verifier, and a final answer before a halt.

A case halts if a limit stops it before it has a verified answer. The answer is composed from the
evidence without a model, so a halted case with a finding still shows it. If tools only found data
that is not an answer, such as rows, one more call to the small tier puts it into words. Planning
leaves ``wrap_up_reserve`` calls for that if using them would halt the case. A final answer with a
number from neither the evidence nor the question is discarded. A final answer does not count as
verified, and the case still halts.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from caseworker.core.budget.budget import Dimension
from caseworker.core.budget.usage import BudgetExceededError
from caseworker.models.gateway import Tier
from caseworker.tools.dispatch import ToolDispatch, ToolRequest
from caseworker.tools.ports import ToolResult, failure, is_failure
from caseworker_cases.agent.evidence import UNKNOWN_TOOL, Action
from caseworker_cases.agent.gate import GateDecision, GateInput, NextAction, Reason, decide
from caseworker_cases.agent.plan import MISSING_RESULT, UnresolvedReferenceError, fill, results_used
from caseworker_cases.agent.planner import Planner, ask_if_possible
from caseworker_cases.agent.prompt import wrap_up_prompt
from caseworker_cases.agent.verifier import Verification
from caseworker_cases.agent.work import CaseWork, PlanFailure, summary

MAX_ANSWER_CHARS = 2000

ANSWER_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "minProperties": 1,
    "maxProperties": 1,
    "properties": {
        "answer": {"type": "string", "minLength": 1, "maxLength": MAX_ANSWER_CHARS},
        "cannot": {"type": "string", "minLength": 1},
    },
}

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*", re.ASCII)
_WRAP_UP = "wrap_up"

_NOT_RUN = frozenset({UNKNOWN_TOOL, "invalid_arguments"})
"""Codes of errors for which the dispatch ran no tool."""

_NO_HALT = frozenset({Reason.PASSED, Reason.BIG_FAILED})
"""Reasons for which a case ends without halting."""


class CaseLoop:
    """Works on one case until the gate stops it."""

    def __init__(
        self, work: CaseWork, tools: ToolDispatch, planner: Planner, verification: Verification
    ) -> None:
        self._work = work
        self._tools = tools
        self._planner = planner
        self._verification = verification

    async def run(self) -> GateDecision:
        """Run the loop and return the decision that ended it.

        Raises:
            Stop: a limit or a cancel request ended the loop earlier. If the tool calls are
                exhausted, a final answer is requested first.
        """
        state = self._work.state
        try:
            while (decided := self._decide()).decision is not NextAction.STOP:
                if decided.decision is NextAction.CONTINUE:
                    await self._pass()
                else:
                    state.escalate()
                    reason = decided.reason.value
                    self._work.log.add("gate", event="escalate_to_big", reason=reason)
        except BudgetExceededError as stop:
            if stop.cause.dimension is Dimension.TOOL_CALLS:
                await _wrap_up(self._work)
            raise
        if decided.reason not in _NO_HALT:
            await _wrap_up(self._work)
        return decided

    async def _pass(self) -> None:
        """Plan, run the actions in order, and verify the results.

        All tool results, including errors, become evidence; unknown tools are skipped. A plan whose
        calls have all succeeded before is only verified again.
        """
        work, state = self._work, self._work.state
        state.begin_pass(gated=work.case.act.max_steps_in(work.case.mode) > 0)
        plan = await self._planner.plan()
        if isinstance(plan, PlanFailure):
            state.plan_failure, state.failure = plan, plan.message or state.failure
            return
        calls = [[call.tool, dict(call.args)] for call in map(work.tools.call, plan.actions)]
        written = json.dumps(calls, sort_keys=True)
        if written in state.succeeded_plans:
            work.log.add("plan", event="plan_repeated")
            await self._verification.measure()
            return
        used = set().union(*(results_used(action.args) for action in plan.actions))
        results: dict[int, ToolResult] = {}
        for number, planned in enumerate(plan.actions, start=1):
            if planned.tool not in work.tools.names:
                continue  # the planner has added a warning to the evidence
            filled = planned
            try:
                filled = Action(planned.tool, fill(planned.args, results))
            except UnresolvedReferenceError as problem:
                action, result = work.tools.call(planned), failure(str(problem), MISSING_RESULT)
            else:
                action = work.tools.call(filled)
                result = await self._act(action, number)
            results[number] = result
            state.add_evidence(action, result, planned=filled, used=number in used)
            outcome = {"output_summary": summary(result), "failed": is_failure(result)}
            work.log.add("tool", tool=action.tool, args=dict(action.args), **outcome)
        if len(results) == len(plan.actions) and not any(map(is_failure, results.values())):
            state.succeeded_plans.add(written)
        await self._verification.measure()

    async def _act(self, action: Action, number: int) -> ToolResult:
        """Run an action in its own scope and count its attempts."""
        context, state = self._work.context, self._work.state
        scope = context.scope.child(f"act/{number}", None)
        request = ToolRequest(
            name=action.tool,
            args=action.args,
            key=f"{state.path}/act/{number}",
            context=self._work.tool_context,
            succeeded=partial(self._work.log_failures, "tool", tool=action.tool),
        )
        ran = False
        try:
            result = await self._tools.run(
                replace(context, scope=scope, trace_parent=state.planned_by), request
            )
            ran = result.get("code") not in _NOT_RUN
        finally:
            # A replayed call is not charged again.
            state.tool_calls += int(scope.usage.of(Dimension.TOOL_CALLS)) or ran
        return result

    def _decide(self) -> GateDecision:
        case, state = self._work.case, self._work.state
        gate_input = GateInput(
            tier=state.tier,
            passed=state.verified is True,
            unconfirmed=state.verified is None
            and state.plan_failure is None
            and state.passes[state.tier] > 0,
            passes=state.passes[state.tier],
            plan_failure=state.plan_failure.kind if state.plan_failure else None,
            stalled_rounds=state.stalled_rounds,
            act_steps=state.act_steps,
            small_calls_left=self._work.planning_calls_left(Tier.SMALL),
            big_calls_left=self._work.calls_left(Tier.BIG),
            big_calls=state.usage[Tier.BIG].calls,
            exhausted=self._work.exhausted(),
        )
        decided = decide(gate_input, case.mode, case.act)
        self._work.log.add(
            "gate",
            decision=decided.decision.value,
            reason=decided.reason.value,
            metric=round(state.best_metric, 4),
            act_steps=state.act_steps,
        )
        return decided


async def _wrap_up(work: CaseWork) -> None:
    """Request a final answer from the small tier, if one is missing and a call is left.

    On failure the case stays unchanged.

    Raises:
        Stop: a cancel request or the run's time limit ended it.
    """
    if not work.wants_wrap_up or work.calls_left(Tier.SMALL) == 0:
        return
    completion = await ask_if_possible(
        work,
        Tier.SMALL,
        step_type=_WRAP_UP,
        name=_WRAP_UP,
        key=_WRAP_UP,
        messages=wrap_up_prompt(work.case, work.state.evidence),
        json_schema=ANSWER_SCHEMA,
    )
    if completion is None:
        return
    answer = _answer_in(completion.text) if completion.incomplete is None else None
    log = partial(work.log.add, _WRAP_UP, model=completion.model)
    if answer is not None and not _is_grounded(answer, work):
        answer = None
        log(event="wrap_up_invented")
    work.state.wrapped_up = answer
    log(event="wrap_up", output_summary=summary(completion.text))


def _is_grounded(answer: str, work: CaseWork) -> bool:
    """Return whether every number of an answer occurs in the evidence or in the question."""
    results = [dict(piece.result) for piece in work.state.evidence]
    sources = (
        work.case.question,
        json.dumps(results, ensure_ascii=False),
    )  # escapes would add digits
    return _numbers(answer) <= {number for text in sources for number in _numbers(text)}


def _answer_in(reply: str) -> str | None:
    try:
        value = json.loads(reply)
    except (ValueError, RecursionError):
        return None
    answer = value.get("answer") if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(answer, str) or not answer.strip() or len(answer) > MAX_ANSWER_CHARS:
        return None
    return answer if answer.isprintable() else None


def _numbers(text: str) -> set[str]:
    """Return the numbers in a text, without thousands separators and redundant zeros."""
    numbers = (number.replace(",", "") for number in _NUMBER.findall(text))
    return {(n.rstrip("0").rstrip(".") if "." in n else n).lstrip("0") or "0" for n in numbers}
