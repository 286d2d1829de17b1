"""Executes agents as steps, and as tools of other agents.

An agent runs in a separate budget scope inside its caller's scope, under a separate trace node. A
stop of its run also stops the agent. If an agent that runs as a tool fails, or reaches a limit in
its own definition, the calling model receives an error as the tool result.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import structlog
from cachetools import LRUCache

from caseworker.core.budget.budget import Dimension
from caseworker.core.budget.ledger import Scope
from caseworker.core.budget.stops import HandOver, Stop, StopKind
from caseworker.core.budget.usage import NOTHING
from caseworker.core.trace.node import PATH
from caseworker.engine.context import FlowContext
from caseworker.engine.ports import CallOutcome, Entry
from caseworker.engine.report import class_of
from caseworker.models.gateway import ModelAnswerIncomplete
from caseworker.models.message_log import PromptMemory
from caseworker.models.ports import Incomplete, Message
from caseworker.nodes.agent.conversation import Conversation
from caseworker.nodes.agent.definition import MAX_DEPTH, AgentDefinition, AgentInputError, ToolUse
from caseworker.nodes.agent.functions import offered_functions
from caseworker.nodes.agent.loop import AgentLoop
from caseworker.nodes.agent.output import Answer
from caseworker.nodes.agent.state import AgentState
from caseworker.nodes.agent.tools import INPUT, AgentTools, LinkedAgent, ToolOffer
from caseworker.nodes.function import FunctionNode, RunFunction, run_plainly
from caseworker.nodes.templates import compact
from caseworker.nodes.toolset import Toolset
from caseworker.platform.logs.errors import class_name, is_ours, message_of_error
from caseworker.tools.dispatch import ToolDispatch
from caseworker.tools.ports import ToolResult, failure, is_failure

log = structlog.get_logger(__name__)

_REASONS: Mapping[str, str] = {
    StopKind.CANCELLED: "aborted",
    StopKind.DEADLINE: "timeout",
    StopKind.BUDGET: "budget",
    StopKind.LOOP: "budget",
}
_CUT_OFF: Mapping[str, Incomplete] = {
    "aborted": Incomplete.CANCELLED,
    "timeout": Incomplete.TIMEOUT,
    "error": Incomplete.CANCELLED,
}
"""Why the text of a stopped or failed agent is incomplete, by terminate reason."""
_MAX_OFFERS = 256
"""Number of combinations of local tools whose offers are kept."""
_BEGAN = "began_after_seconds"
"""Metadata key: the elapsed seconds of the run when an agent with a time limit started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTask:
    """The input for one agent execution."""

    definition: AgentDefinition
    inputs: Mapping[str, Any]
    """Values for the agent's prompt variables, not yet validated."""
    messages: Sequence[Message]
    """The earlier messages of the conversation, followed by the request."""
    memory: PromptMemory | None = None
    """Memory of the last prompt in the thread; None outside of threads."""
    linked: Toolset | None = None
    """Tools and agents linked to the step; None if there are none."""
    depth: int = 1
    """Nesting depth of this agent; the outermost agent has depth 1."""

    def conversation(self, context: FlowContext) -> Conversation:
        """Build the initial conversation.

        Raises:
            AgentInputError: an input is missing or invalid, or the request is missing.
            MissingValueError: the prompt refers to a value that does not exist.
        """
        definition = self.definition
        prompt = definition.rendered(definition.values_of(self.inputs), context.limits)
        messages = [*(Message(role=role, content=text) for role, text in prompt), *self.messages]
        if not any(one.role == "user" and one.content.strip() for one in messages):
            raise AgentInputError(
                [("input", "The agent has no request: give it an input or messages.")]
            )
        return Conversation(messages, self.memory)


class Agents:
    """Executes agents with the tools of this process."""

    def __init__(
        self,
        dispatch: ToolDispatch,
        *,
        timezone: str,
        wrap_up_reserve: int,
        code: Mapping[str, FunctionNode] = MappingProxyType({}),
        run_function: RunFunction = run_plainly,
    ) -> None:
        """Create an executor that offers the tools of ``dispatch``.

        ``timezone`` is the default time zone of runs. ``wrap_up_reserve`` is 1 to reserve a call
        for a last answer, else 0. ``code`` are the code agents by name, and ``run_function`` runs
        them.
        """
        self.code = code
        self._run_function = run_function
        self._dispatch = dispatch
        usable = dispatch.usable()
        self._local_tools = frozenset(spec.name for spec in usable)
        self._functions = offered_functions(usable)
        self._local_offers = LRUCache[tuple[tuple[str, bool], ...], ToolOffer](_MAX_OFFERS)
        self._timezone = timezone
        self._wrap_up_reserve = wrap_up_reserve

    async def run(
        self,
        task: AgentTask,
        context: FlowContext,
        on_start: Callable[[AgentState], object],
    ) -> AgentState:
        """Execute an agent in its own budget scope and return its final state.

        ``on_start`` is called once at the start with the agent's state, so that the caller can
        build a result even if the agent fails.

        Raises:
            Exception: the agent failed; the cause is recorded in its state.
            Stop: a limit or a cancel request ended it; the cause is recorded in its state.
        """
        definition = task.definition
        state = AgentState(task.conversation(context))
        context, max_seconds = _in_own_scope(definition, context)
        on_start(state)
        context.run.trace.annotate(context.trace_parent, {"agent": definition.name})
        begun_at = time.monotonic()
        try:
            async with asyncio.timeout(max_seconds) as limit:
                if definition.code is not None:
                    await self._run_code(definition.code, task, context, state)
                else:
                    await self._run_loop(task, context, state, limit.expired)
        except BaseException as ended:
            late = isinstance(ended, TimeoutError) and limit.expired()
            stop = context.scope.time_limit_error() if late else None
            _note_failure(state, ended, stop, context.token.stop)
            if stop is not None:
                raise stop from None
            raise
        else:
            state.terminate_reason = state.terminate_reason or "goal"
        finally:
            agent, step_id = definition.name, context.path.text
            if isinstance(context.token.stop, HandOver):
                log.info("agent.suspended", agent=agent, step_id=step_id)
            else:
                log.info(
                    "agent.ended",
                    agent=agent,
                    step_id=step_id,
                    turns=state.turns,
                    terminate_reason=state.terminate_reason,
                    seconds=round(time.monotonic() - begun_at, 3),
                    token_usage=int(context.scope.usage.of(Dimension.TOKENS)),
                )
        return state

    async def _run_loop(
        self,
        task: AgentTask,
        context: FlowContext,
        state: AgentState,
        is_late: Callable[[], bool],
    ) -> None:
        """Run the turns of an agent; see :class:`AgentLoop`."""
        offer = await self.offer(task.definition.tools, task.linked, context, depth=task.depth)
        loop = AgentLoop(
            definition=task.definition,
            context=context,
            state=state,
            offer=offer,
            wrap_up_reserve=self._wrap_up_reserve,
            is_late=is_late,
        )
        await loop.run()

    async def _run_code(
        self, name: str, task: AgentTask, context: FlowContext, state: AgentState
    ) -> None:
        """Run a code agent and store its result, which is text or a JSON value.

        Raises:
            LookupError: it is not installed in this process.
            Exception: its function raised it.
        """
        await context.calls.admit(context.path)  # its function would run again
        if name not in self.code:
            raise LookupError(f"The code agent {name!r} is not installed in this process.")
        messages = [
            {"role": one.role, "content": one.content} for one in state.conversation.messages
        ]
        with context.calls.in_span(context.trace_parent):
            output = await self._run_function(
                self.code[name],
                context,
                messages[-1]["content"],
                inputs=task.definition.values_of(task.inputs),
                messages=messages,
            )
        state.take(Answer(output, task_text(output), None))
        state.conversation.add(Message(role="assistant", content=state.raw_content))

    async def offer(
        self,
        uses: Iterable[ToolUse],
        linked: Toolset | None,
        context: FlowContext,
        *,
        depth: int = 0,
    ) -> ToolOffer:
        """Resolve the tools that a definition names, and those linked to its step.

        ``depth`` is the nesting depth of the agent that calls them; 0 if no agent does.

        Raises:
            LookupError: a tool does not exist or is not permitted.
            ServerUnavailableError: a server's tool list is unavailable.
        """
        uses, mine = list(uses), self._local_tools
        local = tuple([(use.tool or "", use.requires_approval) for use in uses if use.tool in mine])
        is_local = linked is None and len(local) == len(uses)
        if is_local and (cached := self._local_offers.get(local)) is not None:
            return cached

        async def call(
            agent: LinkedAgent, context: FlowContext, key: str, args: Mapping[str, Any]
        ) -> ToolResult:
            return await self._called(agent, context, key, args, depth=depth + 1)

        functions, timezone = self._functions, self._timezone
        tools = AgentTools(self._dispatch, call, functions=functions, timezone=timezone)
        offer = await tools.offer(uses, linked, context)
        if is_local:
            self._local_offers[local] = offer
        return offer

    async def _called(
        self,
        agent: LinkedAgent,
        context: FlowContext,
        key: str,
        args: Mapping[str, Any],
        *,
        depth: int,
    ) -> ToolResult:
        """Execute an agent that another agent calls as a tool.

        Raises:
            Stop: the stop also applies to the caller.
        """
        text = args.get(INPUT)
        if not isinstance(text, str) or not text.strip():
            return failure(
                f"{INPUT!r} is missing: say what the agent is to do.", "invalid_arguments"
            )
        if depth > MAX_DEPTH:
            return failure(f"At most {MAX_DEPTH} agents may call one another.", "too_deep")
        definition = agent.definition
        inputs = {name: value for name, value in args.items() if name in definition.inputs}
        task = AgentTask(
            definition=definition,
            inputs={**agent.inputs, **inputs},
            messages=(Message(role="user", content=text),),
            linked=agent.linked,
            depth=depth,
        )
        return await _Called(self, task, context, key).result()


class _Called:
    """One call of an agent as a tool; a repeated execution reuses its recorded result."""

    def __init__(self, agents: Agents, task: AgentTask, context: FlowContext, key: str) -> None:
        self._agents = agents
        self._task = task
        self._context = context
        self._path = context.path.call(key)
        self._state: AgentState | None = None

    async def result(self) -> ToolResult:
        journal, trace = self._context.calls.journal, self._context.run.trace
        recorded = journal.recorded(self._path.record_key)
        if recorded is not None and recorded.outcome is CallOutcome.RESULT:
            return dict(recorded.value)
        if recorded is not None and recorded.imported and trace.mark_running(recorded.node_id):
            node = recorded.node_id  # imported, still open
        else:
            name = self._task.definition.name
            node = trace.begin_node(
                self._context.trace_parent,
                "system",
                name,
                metadata={"agent": name, PATH: self._path.text},
                running=True,
            )
        journal.note(node, Entry(call_key=self._path.record_key, charge=NOTHING))
        try:
            result = await self._worked(node)
        except BaseException as stop:
            trace.mark_halt(node, str(self._context.token.stop or stop) or type(stop).__name__)
            raise
        key, ended = self._path.record_key, CallOutcome.RESULT
        journal.note(node, Entry(call_key=key, charge=NOTHING, outcome=ended, value=result))
        if is_failure(result):
            trace.mark_failure(node, str(result["code"]), str(result["error"]))
        else:
            trace.mark_success(node, 0)
        return result

    async def _worked(self, node: str) -> ToolResult:
        context = replace(
            self._context, path=self._path, trace_parent=node, keep=lambda outputs: None
        )
        try:
            state = await self._agents.run(self._task, context, self._emit_start)
        except Stop as stop:
            if context.token.stop is not None or not _is_within(stop, context.scope):
                raise
            return self._failed(str(stop), str(self._state and self._state.terminate_reason))
        except Exception as error:
            return self._failed(message_of_error(error), class_of(error))
        if state.output_valid is False:
            return {"output": state.raw_content, "output_valid": False}
        return {"output": state.output}

    def _emit_start(self, state: AgentState) -> None:
        self._state = state

    def _failed(self, message: str, code: str) -> ToolResult:
        so_far = self._state.raw_content if self._state else ""
        return {**failure(message, code), **({"so_far": so_far} if so_far else {})}


def _in_own_scope(
    definition: AgentDefinition, context: FlowContext
) -> tuple[FlowContext, float | None]:
    """Return the context with the agent's own budget scope, and its remaining seconds if limited.

    The scope contains what earlier executions of the run spent on the agent.
    """
    limits = definition.limits.total_budget
    scope = context.scope.child(definition.name, limits)
    if context.run.journal is not None:
        scope.restore(context.run.journal.spent_below(context.path))
    max_seconds = limits.max_seconds
    if max_seconds is not None:
        scope.usage.resume(_worked_before(context))
        max_seconds -= scope.usage.time_elapsed_seconds
    return replace(context, scope=scope), max_seconds


def _note_failure(
    state: AgentState, ended: BaseException, own_stop: Stop | None, step_stop: Stop | None
) -> None:
    """Store why an agent failed or was stopped, unless another process resumes it.

    ``own_stop`` results from the agent's time limit, ``step_stop`` from its step.
    """
    if not isinstance(step_stop, HandOver):
        state.terminate_reason = _terminate_reason(own_stop or ended, step_stop)
        state.error = _error_of(own_stop or step_stop or next(causes(ended)))
    stopped = state.terminate_reason in ("aborted", "timeout")
    if stopped and state.raw_content and state.incomplete in (None, Incomplete.CANCELLED):
        state.incomplete = _CUT_OFF[str(state.terminate_reason)]


def _worked_before(context: FlowContext) -> float:
    """Return the seconds that earlier executions of the run spent on an agent.

    The agent's trace node records the run's elapsed time at its start. A recovered run continues
    its elapsed time from where it was lost.
    """
    now, trace = context.scope.lineage()[-1].usage.time_elapsed_seconds, context.run.trace
    recorded = context.calls.journal.recorded(context.path.record_key)
    began = now
    if recorded is not None and not recorded.imported:
        began = float(trace.node(recorded.node_id)["metadata"].get(_BEGAN, now))  # type: ignore[arg-type]
    trace.annotate(context.trace_parent, {_BEGAN: round(began, 3)})
    return max(0.0, now - began)


def cut_off_result(
    so_far: Mapping[str, Any] | None, turn: int, text: str, ended: BaseException
) -> dict[str, Any]:
    """Build the result for an agent whose answer was partly streamed by a lost execution.

    ``so_far`` is the agent's result in this execution, or None if this execution did not start the
    agent. ``turn`` is the number of the interrupted turn, and ``text`` is the streamed part of its
    answer. ``ended`` is the exception that ended the run.
    """
    reason = _terminate_reason(ended, None)
    error = _error_of(ended)
    state = AgentState(Conversation(), turns=turn, terminate_reason=reason, error=error)
    incomplete = _CUT_OFF.get(reason, Incomplete.CANCELLED).value
    about = {"raw_content": text, "incomplete": incomplete, "incomplete_reason": None}
    return {**(so_far or state.result(0)), **about}


def _error_of(ended: BaseException) -> dict[str, str]:
    """Return class and message of a failure or stop for the result of an agent."""
    return {
        "class": (getattr(ended, "error_class", None) if is_ours(ended) else None)
        or class_name(ended),
        "message": message_of_error(ended) if isinstance(ended, Exception) else str(ended),
    }


def task_text(value: Any) -> str:
    """Return an agent's input as message text; JSON values are serialised."""
    return value if isinstance(value, str) else compact(value)


def causes(ended: BaseException) -> Iterator[BaseException]:
    """Yield the leaf exceptions of an exception group, or the exception itself."""
    pending = [ended]
    while pending:
        ended = pending.pop()
        if isinstance(ended, BaseExceptionGroup):
            pending += reversed(ended.exceptions)
        else:
            yield ended


def _is_within(stop: Stop, caller: Scope) -> bool:
    """Return whether a stop comes from a scope strictly inside the caller's scope."""
    return (stop.cause.scope or "").startswith(f"{caller.name}/")


def _terminate_reason(ended: BaseException, step_stop: Stop | None) -> str:
    if isinstance(ended, ModelAnswerIncomplete):
        return "incomplete"
    stop = step_stop or next((one for one in causes(ended) if isinstance(one, Stop)), None)
    if stop is None:
        return "aborted" if isinstance(ended, asyncio.CancelledError) else "error"
    if stop.cause.kind is StopKind.BUDGET and stop.cause.interrupts:
        return "timeout"
    if stop.cause.kind is StopKind.BUDGET and stop.cause.dimension == Dimension.TURNS:
        return "max_turns"
    return _REASONS.get(stop.cause.kind, "error")
