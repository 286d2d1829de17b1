"""The case agent as a node of the graph runtime (seed 002; spec, section 8)."""

from functools import lru_cache

from app.control.stops import Stop, StopKind
from app.engine.context import FlowContext, Outputs
from app.engine.node import ExecutionResult
from app.kernel.graph import DEFAULT_HANDLE
from app.kernel.validation import Handles
from app.llm.gateway import Tier
from app.nodes.case.case import Case, CaseDefaults, FinishReason
from app.nodes.case.comparison import Comparison, Dates
from app.nodes.case.data import CaseData
from app.nodes.case.executor import Executor
from app.nodes.case.gate import Reason, Ruling
from app.nodes.case.halting import halt
from app.nodes.case.log import CaseLog
from app.nodes.case.loop import CaseLoop
from app.nodes.case.offer import ToolOffer
from app.nodes.case.planner import Planner
from app.nodes.case.ports import Clock, Models, Recomputation, Tools
from app.nodes.case.result import result_of
from app.nodes.case.state import CaseState, ModelName
from app.nodes.case.verification import Verification
from app.nodes.case.work import CaseWork
from app.nodes.case.wrap_up import WrapUp
from app.nodes.node_type import NONE, NodeType
from app.nodes.run_facts import RunFacts
from app.nodes.toolset import TOOLS, Toolset, linked_tools
from app.observability.redaction import redact_text
from app.tools.ports import ToolContext

RESULT = "result"
"""The output handle of all that the case came to; the answer alone is on the usual one."""

MAX_REASON_CHARS = 400

REMEMBERED_OFFERS = 64
"""Of tools: to all cases without links the same, and to every graph with links one of its own."""

_HALTS = frozenset({StopKind.BUDGET, StopKind.DEADLINE, StopKind.LOOP})


class CaseFailedError(Exception):
    """The big tier found no verified answer either (seed 002, 3.4)."""

    finish_reason = FinishReason.BIG_FAIL


class CaseNode:
    """Works on a case: the small tier first, the big one where it must."""

    def __init__(
        self,
        *,
        models: Models,
        tools: Tools,
        recomputation: Recomputation,
        dates: Dates,
        defaults: CaseDefaults,
        clock: Clock,
    ) -> None:
        """Join what the agent needs; ``clock`` is for the timestamps of logs alone."""
        self._models = models
        self._tools = tools
        self._recomputation = recomputation
        self._dates = dates
        self._defaults = defaults
        self._clock = clock
        self._offered = lru_cache(maxsize=REMEMBERED_OFFERS)(self._offer)

    async def execute(
        self, data: CaseData, inputs: Outputs, context: FlowContext
    ) -> ExecutionResult:
        """Work on a case: its result is the output ``result``, its answer ``default``.

        Raises:
            CaseDataError: there is no question.
            MissingValueError: the question has a place for which there is no value.
            CaseFailedError: the big tier failed too.
            Stop: a limit or somebody's wish ended it. What was found until then is kept.
        """
        case = data.case(inputs, context.service(RunFacts), self._defaults)
        work = self._begin(case, context, await linked_tools(context))
        context.keep(lambda: _outputs(work.state))
        try:
            ruling = await self._loop(work).run()
            _settle(ruling, work)
        except BaseException as ended:
            work.state.finish_reason = _finish_reason(ended, context.token.stop)
            raise
        return ExecutionResult(_outputs(work.state))

    def _begin(self, case: Case, context: FlowContext, linked: Toolset | None) -> CaseWork:
        """Begin a case; links to toolsets leave it only the tools that they name."""
        state = CaseState(models={tier: self._named(tier) for tier in Tier})
        return CaseWork(
            case=case,
            state=state,
            context=context,
            log=CaseLog(context.run_id, state, self._clock),
            wrap_up_reserve=self._defaults.wrap_up_reserve,
            tools=self._offered(linked),
            tool_context=ToolContext(
                run_id=context.run_id, timezone=case.timezone, now=case.local_now()
            ),
        )

    def _offer(self, linked: Toolset | None) -> ToolOffer:
        """Return the usable tools, or those of them that are ``linked``."""
        return ToolOffer(
            spec for spec in self._tools.usable() if linked is None or spec.name in linked
        )

    def _loop(self, work: CaseWork) -> CaseLoop:
        comparison = Comparison(self._dates, work.case.zone)
        return CaseLoop(
            work,
            Planner(work, self._models),
            Executor(work, self._tools),
            Verification(work, self._recomputation, comparison),
            WrapUp(work, self._models),
        )

    def _named(self, tier: Tier) -> ModelName:
        chosen = self._models.model_of(tier)
        return ModelName(chosen.provider.name, chosen.model)


def case_type(node: CaseNode) -> NodeType:
    """Return the type of steps that work on a case."""
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
    )


def _outputs(state: CaseState) -> Outputs:
    answer = state.answer
    result = {RESULT: result_of(state, answer)}
    return result if answer is None else {**result, DEFAULT_HANDLE: answer}


def _settle(ruling: Ruling, work: CaseWork) -> None:
    """Turn the last ruling into the end of the step."""
    match ruling.reason:
        case Reason.PASSED:
            work.state.finish_reason = FinishReason.SUCCESS
        case Reason.BIG_FAILED:
            raise CaseFailedError(_unsolved(work.state))
        case _:
            raise halt(ruling, work)


def _unsolved(state: CaseState) -> str:
    """Say in one line what was tried, and what was wrong with it in the end."""
    attempts = state.passes[Tier.BIG]
    tried = "one attempt" if attempts == 1 else f"{attempts} attempts"
    why = redact_text(state.failure or "", max_chars=MAX_REASON_CHARS)
    return f"No verified answer after {tried} on the big tier. {why}".rstrip()


def _finish_reason(ended: BaseException, given: Stop | None) -> FinishReason | None:
    """Return how a case ends that was cut off; every halt is a ``budget`` (spec, section 2)."""
    if isinstance(ended, CaseFailedError):
        return FinishReason.BIG_FAIL
    stop = given or ended
    halted = isinstance(stop, Stop) and stop.cause.kind in _HALTS
    return FinishReason.BUDGET if halted else None
