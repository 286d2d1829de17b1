"""The planner: requests plans from the current tier's model, with at most one reprompt."""

from typing import Any

from caseworker.core.budget.usage import BudgetExceededError
from caseworker.engine.call import CallFailedError
from caseworker.models.gateway import Completion, Tier
from caseworker.models.table import CALLS_OF
from caseworker.platform.logs.redaction import redact_text
from caseworker.tools.ports import failure
from caseworker_cases.agent.evidence import UNKNOWN_TOOL, Action
from caseworker_cases.agent.gate import PlanFailureKind
from caseworker_cases.agent.plan import (
    ACTIONS,
    CALLS,
    Cannot,
    Plan,
    PlanForm,
    PlanSchemaError,
    parse_plan,
)
from caseworker_cases.agent.prompt import Dialogue, second_prompt
from caseworker_cases.agent.work import CaseWork, ModelName, PlanFailure, summary, token_usage

_Draft = Plan | Cannot | PlanSchemaError
_NAME_CHARS = 60
_SECOND = "second_plan"


async def ask_if_possible(
    work: CaseWork, tier: Tier, *, step_type: str, name: str, **call: Any
) -> Completion | None:
    """Call a tier through ``work.ask``; return None if the call fails or a limit refuses it.

    Raises:
        Stop: a cancel request or the run's time limit ended the call.
    """
    refusal: object = CALLS_OF[tier]
    try:
        if work.calls_left(tier) != 0:
            return await work.ask(tier, name=name, **call)
    except CallFailedError as failed:
        about = {"error_class": failed.error_class, "attempts": failed.attempts}
        work.log.add(step_type, event="provider_error", **about)
        return None
    except BudgetExceededError as refused:
        if refused.cause.interrupts:
            raise
        refusal = refused.cause.dimension
    work.log.add(step_type, event=f"{name}_refused", reason=str(refusal))
    return None


class Planner:
    """Requests a plan for each pass.

    If a reply violates the schema or names an unknown tool, the planner is reprompted once with the
    error. A planner that declines the case is not called again.
    """

    def __init__(self, work: CaseWork) -> None:
        self._work = work
        self._tool_names = work.tools.names
        self._dialogue = Dialogue(work.case, work.tools)

    async def plan(self) -> Plan | PlanFailure:
        """Return a plan, which may still name unknown tools, or the reason why there is none."""
        try:
            return await self._plan()
        except CallFailedError as failed:
            self._log("provider_error", error_class=failed.error_class, attempts=failed.attempts)
            reason = f"The last planner gave no reply. {failed}"
            return PlanFailure(PlanFailureKind.PROVIDER_FAILED, reason)
        except BudgetExceededError as refused:
            # Only the limit of a tier may lead to an escalation by the gate.
            if refused.cause.dimension != CALLS_OF[self._work.state.tier]:
                raise
            return PlanFailure(PlanFailureKind.CALLS_USED)

    async def second_plan(self) -> Plan | None:
        """Request a plan in another form without showing the first; None if the request fails.

        Raises:
            Stop: a cancel request or the run's time limit ended the call.
        """
        work = self._work
        completion = await ask_if_possible(
            work,
            work.state.tier,
            step_type="plan",
            name=_SECOND,
            key=f"{work.state.path}/{_SECOND}",
            messages=second_prompt(work.case, work.tools),
            json_schema=work.tools.second_schema,
        )
        if completion is None:
            return None
        draft = self._read(_SECOND, completion, CALLS)
        if isinstance(draft, Plan) and all(one.tool in self._tool_names for one in draft.actions):
            return draft
        self._log("second_plan_unusable")
        return None

    async def _plan(self) -> Plan | PlanFailure:
        state = self._work.state
        draft = await self._ask("plan", state.failure)
        complaint = self._log_and_describe_faults(draft)
        if complaint is not None:
            if self._work.planning_calls_left(state.tier) == 0:
                used = PlanFailure(PlanFailureKind.CALLS_USED, complaint)
                return draft if isinstance(draft, Plan) else used
            draft = await self._ask("reprompt", complaint)
            complaint = self._log_and_describe_faults(draft)
        match draft:
            case Plan():
                return draft
            case Cannot(reason):
                self._log("planner_cannot", explanation=reason)
                return PlanFailure(PlanFailureKind.CANNOT, f"The planner gave up: {reason}")
            case PlanSchemaError():
                return PlanFailure(
                    PlanFailureKind.UNUSABLE_PLAN, f"The last reply was no plan: {draft}"
                )

    async def _ask(self, purpose: str, failure: str | None) -> _Draft:
        work, state = self._work, self._work.state
        completion = await work.ask(
            state.tier,
            name=purpose,
            key=f"{work.state.path}/{purpose}",
            messages=self._dialogue.ask(state.evidence, failure),
            json_schema=work.tools.schema,
        )
        self._dialogue.add_reply(completion.text)
        state.planned_by = completion.node_id
        state.models[state.tier] = ModelName(completion.provider, completion.model)
        return self._read(purpose, completion, ACTIONS)

    def _read(self, purpose: str, completion: Completion, form: PlanForm) -> _Draft:
        """Log a reply and parse it."""
        self._work.log.add(
            "plan",
            purpose=purpose,
            model=completion.model,
            token_usage=token_usage(completion),
            output_summary=summary(completion.text),
        )
        if completion.incomplete is not None:
            return PlanSchemaError(f"It is not complete ({completion.incomplete.value}).")
        try:
            return parse_plan(completion.text, form)
        except PlanSchemaError as error:
            return error

    def _log_and_describe_faults(self, draft: _Draft) -> str | None:
        """Log the errors of a draft and return them as reprompt text; None if it has none."""
        match draft:
            case PlanSchemaError():
                self._log("plan_schema_error", problem=str(draft))
                return f"Your reply was no plan. {draft}"
            case Plan(actions):
                unknown = [action for action in actions if action.tool not in self._tool_names]
                return self._refuse(unknown) if unknown else None
            case Cannot():
                return None

    def _refuse(self, unknown: list[Action]) -> str:
        """Add a warning to the evidence for each action with an unknown tool."""
        names = ", ".join(sorted({repr(_shown_name(action)) for action in unknown}))
        for action in unknown:
            result = failure(f"There is no tool {_shown_name(action)!r}.", UNKNOWN_TOOL)
            self._work.state.add_evidence(action, result, warning=UNKNOWN_TOOL)
            self._log(UNKNOWN_TOOL, level="warning", tool=_shown_name(action))
        return f"There is no tool {names}. The tools are: {', '.join(self._work.tools.offered)}."

    def _log(self, event: str, **details: Any) -> None:
        self._work.log.add("plan", event=event, **details)


def _shown_name(action: Action) -> str:
    """Return the name of an unknown tool, redacted, because it may contain any text."""
    return redact_text(action.tool, max_chars=_NAME_CHARS)
