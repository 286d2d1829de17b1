"""Confirms the operation of a model's plan: that the plan makes the right tool calls.

Recomputing a result confirms its value, but not that the right call was chosen. The choice is
confirmed by the built-in planner, if it understands the question, or by a second plan. The same
tier makes the second plan in another form, without seeing the first. Both are evaluated without
external calls, on the results already in the evidence. If the plans differ, the next pass plans
again; a plan that agrees with the second plan is confirmed.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from caseworker.models.gateway import Tier
from caseworker.tools.ports import ToolContext, ToolResult, is_failure
from caseworker_cases.agent.evidence import (
    RESPOND,
    Action,
    CaseEvidence,
    Same,
    compose,
    finding,
    sources_of,
)
from caseworker_cases.agent.plan import Plan, UnresolvedReferenceError, fill, results_used
from caseworker_cases.agent.planner import Planner
from caseworker_cases.agent.work import CaseWork

Reading = Callable[[str, Sequence[str]], Plan | None]
"""Function that returns the built-in planner's plan for a question and the expected tools. None if
it does not understand the question."""

_NOT_DECIDED = frozenset({"out_of_range", "invalid_expression", "invalid_arguments"})
"""Error codes of calls that do not decide: the built-in planner would plan again with other dates,
or it has not understood the question."""

Recomputation = Callable[[str, Mapping[str, Any], ToolContext], Awaitable[ToolResult | None]]
"""Function that runs a tool again. It returns None if the result does not depend on the arguments
alone."""

_Calls = Mapping[int, tuple[Action, ToolResult]]
"""The calls of another plan with their results, by call number."""


class OperationCheck:
    """Checks that the plan behind an answer made the right tool calls."""

    def __init__(
        self,
        work: CaseWork,
        planner: Planner,
        recomputation: Recomputation,
        same: Same,
        reading: Reading,
    ) -> None:
        self._work = work
        self._planner = planner
        self._recomputation = recomputation
        self._same = same
        self._reading = reading
        self._second: dict[Tier, Plan | None] = {}
        """The second plan of each tier that was requested; None if the request gave no plan."""

    async def holds(self, *, expected: bool) -> bool | None:
        """Return whether the plan's tool calls are confirmed; False if another plan differs.

        ``expected`` is True if the answer is the finding of one of the case's expected tools. This
        confirms the calls unless the built-in planner's plan differs.

        None means undecided: the question has no words, the reply is not a plan, or the budget is
        exhausted.

        Raises:
            Stop: a cancel request or the run's time limit ended the second plan.
        """
        if not any(map(str.isalnum, self._work.case.question)):
            return None  # nothing to interpret
        read = await self._as_read()
        if read is not None or expected:
            return read is not False
        tier_of_answer = self._work.state.tier
        for tier in dict.fromkeys((*self._second, tier_of_answer)):
            if tier not in self._second:
                self._second[tier] = await self._planner.second_plan()
            plan = self._second[tier]
            if plan is not None and self._agrees(plan, await self._calls_of(plan)):
                return True
        return None if self._second[tier_of_answer] is None else False

    async def _as_read(self) -> bool | None:
        """Return whether the built-in planner reaches the same answer; None if it cannot plan."""
        case, evidence = self._work.case, self._work.state.evidence
        plan = self._reading(case.question, case.expected_tools)
        if plan is None or not {one.tool for one in plan.actions} <= self._work.tools.names:
            return None
        calls = await self._calls_of(plan)
        if self._agrees(plan, calls):
            return True
        (_, result), answer = calls[max(calls)], compose(evidence)
        text = finding(result)
        if text is None or answer is None:
            return False if result.get("code", "out_of_range") not in _NOT_DECIDED else None
        return self._same(answer.text, text)

    def _agrees(self, plan: Plan, calls: _Calls) -> bool:
        """Return whether calls include those behind the answer, with the same last call.

        A call whose result another call uses counts through that other call.
        """
        evidence = self._work.state.evidence
        answer = compose(evidence)
        sources = sources_of(answer, evidence, self._same) if answer else []
        written = answer and any(each.tool == RESPOND for each in answer.basis)
        last = sources[-1:] if written else [each for each in sources if not each.used]
        mine = [_form(each, each.result) for each in last]
        used = set().union(*(results_used(e.args) for e in plan.actions if e.tool != RESPOND))
        theirs = [_form(*call) for number, call in calls.items() if number not in used]
        return bool(mine) and {*mine} <= {*theirs} and mine[-1] == theirs[-1]

    async def _calls_of(self, plan: Plan) -> _Calls:
        """Make the calls of a plan, without ``respond``, up to one that lacks an earlier result.

        If the evidence has no result for a call and its tool cannot be run again, its result is
        empty.
        """
        work = self._work
        results_by_form = {_form(one): one.result for one in work.state.evidence if not one.refused}
        calls: dict[int, tuple[Action, ToolResult]] = {}
        for number, action in enumerate(plan.actions, start=1):
            results = {n: result for n, (_, result) in calls.items()}
            try:
                call = work.tools.call(Action(action.tool, fill(action.args, results)))
            except UnresolvedReferenceError:
                break
            if call.tool != RESPOND:
                result = results_by_form.get(_form(call))
                if result is None:
                    result = await self._recomputation(call.tool, call.args, work.tool_context)
                calls[number] = call, result or {}
        return calls


def _form(call: Action | CaseEvidence, result: ToolResult | None = None) -> str:
    """Return a text that is equal for equivalent calls: same tool, and same findings or arguments.

    Result fields that repeat an argument are ignored, because they can be written in several ways.
    Case and spacing are ignored too.
    """
    fields = {} if result is None or is_failure(result) else result
    outcome = {name: value for name, value in fields.items() if name not in call.args}
    text = json.dumps([call.tool, outcome or dict(call.args)], sort_keys=True, ensure_ascii=False)
    return " ".join(text.casefold().split())
