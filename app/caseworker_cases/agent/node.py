"""The step type that executes the case agent."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from caseworker.core.budget.budget import Budget, Dimension
from caseworker.core.budget.stops import Stop, StopCause, StopKind
from caseworker.core.budget.usage import BudgetExceededError
from caseworker.core.graph.graph import DEFAULT_HANDLE
from caseworker.core.graph.validation import Handles
from caseworker.engine.context import ExecutionResult, FlowContext, Outputs
from caseworker.models.gateway import ModelGateway, Tier
from caseworker.models.table import AllowedModels, ModelTable
from caseworker.nodes.model_spec import no_model
from caseworker.nodes.node_type import NONE, Fault, NodeType, RunFacts
from caseworker.nodes.parts import NodeParts
from caseworker.nodes.toolset import TOOLS, Toolset, linked_tools
from caseworker.platform.logs.redaction import redact_text
from caseworker.tools.dispatch import ToolDispatch
from caseworker.tools.ports import ToolContext
from caseworker_cases.agent.case import (
    ActLimits,
    Case,
    CaseData,
    CaseDefaults,
    EscalateWhen,
    FinishReason,
    Mode,
)
from caseworker_cases.agent.evidence import RESPOND, Action
from caseworker_cases.agent.gate import ACT_STEPS, GateDecision, Reason
from caseworker_cases.agent.loop import CaseLoop
from caseworker_cases.agent.operation import OperationCheck, Reading
from caseworker_cases.agent.plan import Plan
from caseworker_cases.agent.planner import Planner
from caseworker_cases.agent.prompt import CaseTools
from caseworker_cases.agent.verifier import Comparison, DeterministicTools, Verification
from caseworker_cases.agent.work import (
    CaseLog,
    CaseState,
    CaseWork,
    Clock,
    ModelName,
    case_result_of,
)
from caseworker_cases.tools.dates.reader import DateReader

RESULT = "result"
"""Output handle for the full result. The default handle has only the answer."""

MAX_REASON_CHARS = 400

REMEMBERED_OFFERS = 64
"""Maximum number of cached tool selections. There is one selection for cases without linked tools,
one for each graph with links, and one for each set of expected tools."""


class CaseFailedError(Exception):
    """Neither the small tier nor the big tier found a verified answer."""

    finish_reason = FinishReason.BIG_FAIL


class CaseNode:
    """Works on a case, first with the small tier and, if necessary, with the big one."""

    replays = True
    records_code = True

    def __init__(
        self,
        *,
        models: ModelGateway,
        tools: ToolDispatch,
        recomputation: DeterministicTools,
        reading: Reading,
        dates: DateReader,
        defaults: CaseDefaults,
        clock: Clock,
    ) -> None:
        """Create the node; ``clock`` is used only for log timestamps."""
        self._models = models
        self._tools = tools
        self._recomputation = recomputation
        self._reading = reading
        self._dates = dates
        self._defaults = defaults
        self._clock = clock
        self._offered = lru_cache(maxsize=REMEMBERED_OFFERS)(self._offer)

    async def execute(
        self, data: CaseData, inputs: Outputs, context: FlowContext
    ) -> ExecutionResult:
        """Work on a case; write its result to output ``result`` and its answer to ``default``.

        Raises:
            CaseDataError: the question is empty.
            MissingValueError: the question refers to a value that does not exist.
            CaseFailedError: the big tier failed too.
            Stop: a limit or a cancel request ended it. The result so far is kept.
        """
        case = data.case(inputs, context.service(RunFacts), self._defaults)
        if Tier.BIG not in self._models.table.restricted(context.services.get(AllowedModels)):
            scope = context.scope.child("no_big_model", Budget(max_llm_calls_big=0))
            context = replace(context, scope=scope)
        await self._dates.load()
        work = self._begin(case, context, await linked_tools(context))
        context.keep(lambda: _outputs(work.state))
        repetition, same = (
            self._recomputation,
            Comparison(self._dates, ZoneInfo(work.case.timezone)).same,
        )
        planner = Planner(work)
        operation = OperationCheck(work, planner, repetition.repeat, same, self._reading)
        verification = Verification(work, repetition, same, operation)
        try:
            _finish(await CaseLoop(work, self._tools, planner, verification).run(), work)
        except BaseException as ended:
            work.state.finish_reason = _finish_reason(ended, context.token.stop)
            raise
        return ExecutionResult(_outputs(work.state))

    def _begin(self, case: Case, context: FlowContext, linked: Toolset | None) -> CaseWork:
        """Start a case; linked toolsets restrict its tools."""
        state = CaseState(
            models={tier: self._model_name(tier) for tier in Tier if tier in self._models.table}
        )
        return CaseWork(
            case=case,
            state=state,
            context=context,
            limits=context.scope.tightest_limits(),
            log=CaseLog(context.run_id, state, self._clock),
            models=self._models,
            wrap_up_reserve=self._defaults.wrap_up_reserve,
            tools=self._offered(linked, case.expected_tools),
            tool_context=ToolContext(
                run_id=context.run_id, timezone=case.timezone, now=case.local_now()
            ),
        )

    def _offer(self, linked: Toolset | None, expected: tuple[str, ...]) -> CaseTools:
        """Return the permitted tools, restricted to the linked and the expected ones.

        If tools are expected, ``respond`` is also offered, to put their findings into words.
        """
        usable = [spec for spec in self._tools.usable() if linked is None or spec.name in linked]
        names = {*expected, RESPOND}
        narrowed = [spec for spec in usable if spec.name in names]
        return CaseTools(narrowed if any(one.name in expected for one in narrowed) else usable)

    def _model_name(self, tier: Tier) -> ModelName:
        chat_model = self._models.table[tier]
        return ModelName(chat_model.provider.name, chat_model.model)


def _unknown(_: Mapping[str, Any], models: ModelTable | None) -> Iterator[Fault]:
    if models is not None and Tier.SMALL not in models:
        yield "", no_model(Tier.SMALL, models)


def case_type(parts: NodeParts) -> NodeType:
    """Build the step type that works on cases, with a process's tools and settings."""
    return type_of(
        CaseNode(
            models=parts.models,
            tools=parts.tools,
            recomputation=DeterministicTools(parts.installed_tools),
            reading=_built_in_plan,
            dates=DateReader(),
            defaults=_defaults(parts.settings),
            clock=lambda: datetime.now(UTC),
        )
    )


def _defaults(settings: Any) -> CaseDefaults:
    """Return the configured defaults; ``settings`` has the sections of the service's settings."""
    flags = settings.flags
    act = ActLimits(**settings.act.model_dump(), escalate_when=EscalateWhen(flags.escalate_when))
    return CaseDefaults(
        timezone=flags.zone_name,
        mode=Mode(flags.mode),
        act=act,
        pass_metric=settings.verifier_thresholds.pass_metric,
        second_plan=settings.verifier_thresholds.second_plan,
        wrap_up_reserve=settings.budget.wrap_up_reserve,
    )


def _built_in_plan(question: str, expected: Sequence[str]) -> Plan | None:
    """Return the plan of the built-in planner; it is imported for the first question."""
    from caseworker_cases.planner.provider import calls_for

    calls = calls_for(question, expected)
    return None if calls is None else Plan(tuple(Action(one.tool, one.args) for one in calls))


def type_of(node: CaseNode) -> NodeType:
    """Build the step type whose steps ``node`` executes."""
    return NodeType(
        name="case",
        description="Answers a question with tools: plans with the small model, verifies what it"
        " finds, and asks the big model where it must. The answer leaves on default, everything"
        " known about it on result. Toolsets linked to tools narrow the tools it may use.",
        node=node,
        data=CaseData,
        handles=Handles(
            flow_outputs=frozenset({RESULT, DEFAULT_HANDLE}),
            link_inputs=frozenset({TOOLS}),
            link_outputs=NONE,
        ),
        unknown=_unknown,
    )


def _outputs(state: CaseState) -> Outputs:
    answer = state.answer
    result = {RESULT: case_result_of(state, answer)}
    return result if answer is None else {**result, DEFAULT_HANDLE: answer}


def _finish(decided: GateDecision, work: CaseWork) -> None:
    """Map the last decision of the gate to the outcome of the step."""
    match decided.reason:
        case Reason.PASSED:
            work.state.finish_reason = FinishReason.SUCCESS
        case Reason.BIG_FAILED:
            raise CaseFailedError(_unsolved(work.state))
        case _:
            raise _halt(decided, work)


def _unsolved(state: CaseState) -> str:
    """Return one line with the number of attempts and the last failure."""
    attempts = state.passes[Tier.BIG]
    tried = "one attempt" if attempts == 1 else f"{attempts} attempts"
    return f"No verified answer after {tried} on the big tier. {_last_failure(state)}".rstrip()


def _last_failure(state: CaseState) -> str:
    return redact_text(state.failure or "", max_chars=MAX_REASON_CHARS)


def _finish_reason(ended: BaseException, step_stop: Stop | None) -> FinishReason | None:
    """Return the finish reason of an interrupted case; every halt is a ``budget``."""
    if isinstance(ended, CaseFailedError):
        return FinishReason.BIG_FAIL
    stop = step_stop or ended
    halted = isinstance(stop, Stop) and stop.is_limit
    return FinishReason.BUDGET if halted else None


def _halt(decided: GateDecision, work: CaseWork) -> Stop:
    """Return the stop for the limit that the gate found exhausted."""
    if decided.dimension is not None and decided.dimension != ACT_STEPS:
        failed = decided.reason is Reason.PROVIDER_FAILED  # then the limit alone explains nothing
        why = f". {_last_failure(work.state)}" if failed else ""
        return _out_of(Dimension(decided.dimension), work, why)
    limit, used = work.case.act.max_steps_in(work.case.mode), work.state.act_steps
    return Stop(
        StopCause(
            kind=StopKind.BUDGET,
            dimension=ACT_STEPS,
            scope=work.context.node_id,
            limit=limit,
            used=used,
            reason=f"ACT step limit exceeded: {used} used, limit {limit}",
        )
    )


def _out_of(dimension: Dimension, work: CaseWork, why: str) -> Stop:
    """Return the stop for the scope with the tightest limit, the innermost one on a tie.

    ``why`` is appended to its reason.
    """
    scopes = [scope for scope in work.context.scope.lineage() if dimension in scope.limits]
    scope = min(scopes, key=lambda view: view.limits[dimension])
    described = scope.usage.describe(dimension, scope.limits[dimension])
    if dimension is Dimension.LLM_CALLS_SMALL and work.kept_back:
        described += f", {work.kept_back} of them kept for the final answer"
    return BudgetExceededError(
        scope.usage,
        scope.budget,
        f"{described} (scope {scope.name}){why}",
        dimension=dimension,
        scope=scope.name,
    )
