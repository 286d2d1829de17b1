"""The agent loop: call the model, run its tool calls, and repeat until it answers.

A turn is one model call with the tool calls that it requests. The key of each call consists of its
turn and its position. A repeated execution therefore replays recorded calls and resumes after them.
Limits are not checked again for a turn that an earlier execution started, because the remaining
budget has changed since.

In the last turn that a limit permits, the model is informed that no more tools can be called. If a
limit refuses a tool call, the model is called once more without tools, in a separate turn, for its
best answer.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from caseworker.core.budget.budget import Dimension
from caseworker.core.budget.usage import BudgetExceededError, Charge
from caseworker.engine.call import CallFailedError
from caseworker.engine.context import FlowContext
from caseworker.engine.report import class_of
from caseworker.models.gateway import Completion, LogicalCall, ModelGateway, Tier
from caseworker.models.ports import Incomplete, Message, ModelFault, ToolCall, ToolDefinition
from caseworker.nodes.agent import requests
from caseworker.nodes.agent.activity import TurnActivity
from caseworker.nodes.agent.definition import FINISH, AgentDefinition
from caseworker.nodes.agent.history_limit import Shortening
from caseworker.nodes.agent.limits import TurnCapacity
from caseworker.nodes.agent.output import Answer, Output, OutputInvalidError
from caseworker.nodes.agent.rounds import SAME_ROUNDS, Rounds, ToolRound, loop_stop
from caseworker.nodes.agent.state import REQUIRES_ACTION, AgentState
from caseworker.nodes.agent.tools import ToolOffer, arguments_of
from caseworker.nodes.node_type import RunFacts
from caseworker.platform.logs.errors import message_of_error
from caseworker.tools.ports import ToolResult, failure

_WRAP_UP = "wrap_up"
_ONE_TURN: Final[Charge] = {Dimension.TURNS: 1}
_ALLOW_LAST_ANSWER = frozenset(each for each in Dimension if each.allows_last_answer)


@dataclass(slots=True, kw_only=True)
class AgentLoop:
    """Runs the turns of one agent execution."""

    definition: AgentDefinition
    context: FlowContext
    state: AgentState
    offer: ToolOffer
    wrap_up_reserve: int
    is_late: Callable[[], bool] = lambda: False
    """Callback that returns whether the agent's own time limit has expired. The loop calls it
    before each model call, and does not start the call if the limit has expired."""
    _rounds: Rounds = field(default_factory=Rounds)
    _capacity: TurnCapacity = field(init=False)
    _output: Output = field(init=False)
    _tools: tuple[ToolDefinition, ...] = field(init=False)
    _shortening: Shortening = field(init=False)

    def __post_init__(self) -> None:
        definition = self.definition
        self._output = Output(definition.output)
        self._capacity = TurnCapacity(
            scope=self.context.scope,
            calls=self._counted(),
            max_turns=definition.limits.max_turns,
            wrap_up_reserve=self.wrap_up_reserve,
        )
        offered = self.offer.definitions
        self._tools = (*offered, self._output.finish) if offered else ()
        if not self._tools:  # some protocols reject tool calls if no tools are offered
            self.state.conversation.convert_calls_to_text()
        self._shortening = Shortening(
            self.context, definition.conversation, self.state.conversation, self._tools
        )

    async def run(self) -> None:
        """Run turns until the model answers, and store the answer in the agent's state.

        Raises:
            CallFailedError: the model failed after all retries.
            ModelAnswerIncomplete: its last answer is cut off, withheld, refused or empty.
            OutputInvalidError: the answer violates its schema, which is strict.
            ConversationTooLongError: the messages do not fit into the token limit.
            Stop: a limit or a cancel request ended it.
        """
        answer = None
        while answer is None:
            number = self.state.turns + 1
            last = self._started_before(f"turn/{number}/last", this_run_only=True)
            if not last and not self._started_before(f"turn/{number}"):
                if stop := self._capacity.stop_before(number):
                    raise stop
                last = self._capacity.stop_after(number) is not None
            self.state.turns = number
            try:
                answer = await self._turn(number, last=last)
            except BudgetExceededError as refused:
                if refused.cause.dimension in _ALLOW_LAST_ANSWER:
                    await self._wrap_up()
                raise
            if last and answer is None and (stop := self._capacity.stop_after(number)):
                raise stop

    async def _turn(self, number: int, *, last: bool) -> Answer | None:
        """Run a turn; return its answer, if any. In the ``last`` turn no tool is run."""
        activity = self._activity(number)
        activity.start()
        try:
            if last:
                self.state.conversation.add(Message(role="user", content=requests.LAST_TURN))
            await self._shortening.fit(number, activity, self._model_options(), last=last)
            key = f"turn/{number}/last" if last else f"turn/{number}"
            completion = await self._readable(key, activity)
            if completion.tool_calls:
                answer = await self._called(completion, number, activity, last=last)
            else:
                completion.require_complete()
                answer = self._output.of_text(completion.text)
            if answer is not None and answer.problem is not None:
                answer = await self._answer_again(answer, completion, number, activity)
            if answer is not None:
                self._take(answer)
        except Exception as error:
            error_class = getattr(error, "error_class", None) or class_of(error)
            activity.failed(error_class, message_of_error(error))
            activity.end()
            raise
        except BaseException:
            if not activity.is_handed_over:
                activity.end()
            raise
        activity.end()
        return answer

    def _take(self, answer: Answer) -> None:
        self.state.take(answer)
        if answer.valid is False and self._output.strict:
            raise OutputInvalidError(
                f"The answer is not what the agent must give. {answer.problem}"
            )

    # -- models --------------------------------------------------------------------------------

    def _activity(self, number: int) -> TurnActivity:
        return TurnActivity(self.context, number, self.offer.tool_of)

    async def _readable(self, key: str, activity: TurnActivity) -> Completion:
        """Call the model for a turn; retry once if the reply is unreadable or empty."""
        empty: Completion | None = None
        try:
            completion = await self._ask(key, "turn", activity, self._tools)
            if completion.incomplete is not Incomplete.EMPTY:
                return completion
            empty, name, complaint = completion, "empty", requests.EMPTY
        except CallFailedError as failed:
            if failed.error_class != ModelFault.UNREADABLE_REPLY or not self._tools:
                raise
            names = ", ".join(tool.name for tool in self._tools)
            name, complaint = "unreadable", requests.UNREADABLE.format(known=names)
        self.state.conversation.add(Message(role="user", content=complaint))
        try:
            return await self._ask(f"{key}/{name}", name, activity, self._tools)
        except BudgetExceededError as refused:
            if empty is None or refused.cause.interrupts:
                raise
            return empty

    async def _ask(
        self,
        key: str,
        name: str,
        activity: TurnActivity,
        tools: Sequence[ToolDefinition],
    ) -> Completion:
        """Call the model with the conversation; append its message unless it is empty."""
        window = self.state.conversation.window
        completion = await self._complete(key, name, activity, window, tools)
        if completion.incomplete is not Incomplete.EMPTY:
            self.state.conversation.add(completion.message)
        self.state.hear(completion)
        return completion

    async def _complete(
        self,
        key: str,
        name: str,
        activity: TurnActivity,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
    ) -> Completion:
        """Call the model and emit its answer while it is streamed.

        Raises:
            asyncio.CancelledError: the time limit expired before, and a tool ignored the
                cancellation.
        """
        if self.is_late():
            raise asyncio.CancelledError
        stream = activity.stream() if self.definition.model.stream else None
        call = LogicalCall(
            key=key,
            name=name,
            messages=messages,
            tools=tools,
            json_schema=None if tools else self._output.schema,
            on_delta=None if stream is None else stream.on_delta,
            charge=_ONE_TURN if name in ("turn", _WRAP_UP) else {},
            **self._model_options(),
        )
        try:
            completion = await self.context.service(ModelGateway).complete(self.context, call)
        except BaseException as ended:
            if text := activity.streamed_text():
                late = getattr(ended, "error_class", None) == "TimeoutError"
                self.state.raw_content = text
                self.state.incomplete = Incomplete.TIMEOUT if late else Incomplete.CANCELLED
            raise
        activity.answered(completion, name)
        self._capacity.answered(completion)
        return completion

    def _counted(self) -> tuple[Dimension, ...]:
        """Return the dimensions that count the model calls."""
        model = self.definition.model
        table = self.context.service(ModelGateway).table
        return table.counted(Tier(model.tier), model.name)

    def _model_options(self) -> dict[str, Any]:
        """Return the arguments common to all model calls."""
        return {
            **self.definition.model.options_for_call,
            "seed": self.context.service(RunFacts).seed,
        }

    async def _answer_again(
        self, answer: Answer, completion: Completion, number: int, activity: TurnActivity
    ) -> Answer:
        """Request the answer again in the required schema; keep the first one if there is no reply.

        Raises:
            Stop: a cancel request or the time limit ended it.
        """
        if not completion.tool_calls:
            complaint = self._output.complaint(answer.problem or "")
            self.state.conversation.add(Message(role="user", content=complaint))
        self.state.raw_content = answer.raw
        # Some protocols accept tool calls in messages only if a tool is offered.
        tools = (self._output.finish,) if self._tools else ()
        try:
            second = await self._ask(f"turn/{number}/reprompt", "reprompt", activity, tools)
        except CallFailedError:
            return answer  # the call node shows the failure
        except BudgetExceededError as refused:
            if refused.cause.interrupts:
                raise
            return answer
        answers = list[Answer]()
        for call in second.tool_calls:
            if call.name == FINISH and not _is_cut_off(call, second):
                self._finish(call, answers)
        second_answer = self._handed_in(answers, second)
        second.require_complete()
        if second_answer is None and second.text.strip():
            return self._output.of_text(second.text)
        return second_answer or answer

    # -- limits --------------------------------------------------------------------------------

    def _started_before(self, key: str, *, this_run_only: bool = False) -> bool:
        """Return whether an earlier execution started this turn, in any reply form.

        With ``this_run_only``, only executions of this run count, because they had the same limits.
        """
        path, journal = self.context.path.call(key), self.context.calls.journal
        records = (journal.recorded(f.text) for f in (path, path.call("json"), path.call("text")))
        return any(one is not None and not (this_run_only and one.imported) for one in records)

    async def _wrap_up(self) -> None:
        """Request a final answer without tools; on failure the state stays unchanged.

        Raises:
            Stop: a cancel request or the run's deadline ended it.
        """
        if not self._capacity.allows_wrap_up(self.state.turns):
            return
        request = Message(role="user", content=requests.WRAP_UP_REQUEST)
        messages = (*self.state.conversation.plain(), request)
        activity = self._activity(self.state.turns + 1)
        activity.start(last_answer=True)
        try:
            completion = await self._complete(_WRAP_UP, _WRAP_UP, activity, messages)
        except (CallFailedError, BudgetExceededError):
            return  # the call node shows the failure; a stop of the run takes precedence
        finally:
            if not activity.is_handed_over:
                activity.end()
        self.state.turns += 1
        self.state.hear(completion)
        if completion.incomplete is None:
            self.state.conversation.add(request, completion.message)
            self.state.take(self._output.of_text(completion.text))

    # -- tools ---------------------------------------------------------------------------------

    async def _called(
        self, completion: Completion, number: int, activity: TurnActivity, *, last: bool
    ) -> Answer | None:
        """Run the tool calls of a turn; return the answer if one of them calls ``finish``.

        A call that is not run gets an error result with the reason.
        """
        calls, answers = completion.tool_calls, list[Answer]()
        incomplete = completion.incomplete
        context = replace(self.context, trace_parent=completion.node_id)

        async def perform(index: int, call: ToolCall) -> ToolResult:
            if incomplete and _is_cut_off(call, completion):
                return failure(
                    requests.CUT_OFF.format(incomplete=incomplete.value), "incomplete_call"
                )
            if call.name == FINISH:
                return self._finish(call, answers)
            if last:
                return failure(requests.NOT_CALLED, "not_called")
            return await self.offer.call(context, f"turn/{number}/tool/{index}", call)

        def stored_as(index: int, call: ToolCall) -> str | None:
            journaled = self.offer.is_journaled(call.name)
            key = self.context.path.call(f"turn/{number}/tool/{index}")
            return key.text if journaled else None

        round_ = ToolRound(calls, activity, perform, stored_as)
        try:
            await round_.run(alone=lambda name: name == FINISH or self.offer.is_alone(name))
        finally:
            self.state.conversation.add(*round_.messages())
        if any(self.offer.is_end(name, result) for name, result in round_.results()):
            self.state.terminate_reason = REQUIRES_ACTION
            return Answer(None, completion.text, None)
        same = 0 if answers else self._rounds.same(round_.signature())
        if same >= SAME_ROUNDS:
            raise loop_stop(self.context, calls)
        if same > 1:
            self.state.conversation.add(Message(role="user", content=requests.REPEATED))
        return self._handed_in(answers, completion)

    def _handed_in(self, answers: Sequence[Answer], completion: Completion) -> Answer | None:
        """Return the last answer from ``finish`` calls, if any.

        Raises:
            ModelAnswerIncomplete: the reply with the call is incomplete; its text is kept in the
                state.
        """
        if not answers:
            return None
        self.state.raw_content = answers[-1].raw
        completion.require_complete()
        return answers[-1]

    def _finish(self, call: ToolCall, answers: list[Answer]) -> ToolResult:
        args = arguments_of(call)
        if args is None:
            return failure("The arguments are not a JSON object.", "invalid_arguments")
        answer = self._output.of_finish(args)
        if isinstance(answer, str):
            return failure(answer, "invalid_arguments")
        answers.append(answer)
        if answer.problem is None:
            return {"finished": True}
        return failure(self._output.complaint(answer.problem), "invalid_output")


def _is_cut_off(call: ToolCall, completion: Completion) -> bool:
    """Return whether the arguments of a call may be truncated."""
    written = call.arguments.strip() and arguments_of(call) is not None
    return completion.incomplete is not None and not written
