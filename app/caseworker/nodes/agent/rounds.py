"""The tool calls of one turn: run in order or concurrently, with results in call order."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence

from caseworker.core.budget.stops import Stop, StopCause, StopKind
from caseworker.engine.context import FlowContext
from caseworker.models.ports import Message, ToolCall
from caseworker.nodes.agent.activity import TurnActivity
from caseworker.nodes.agent.tools import arguments_of
from caseworker.nodes.templates import compact
from caseworker.tools.ports import ToolResult, failure, is_failure

SAME_ROUNDS = 3
"""Number of consecutive turns with equal calls and results at which the agent is considered to
loop."""
MAX_SIDE_BY_SIDE = 16
MAX_RESULT_CHARS = 100_000
"""Maximum length, in characters, of a tool result that is sent to a model."""
CUT_OFF = "cut_off"
"""Error code of a tool call that a stop interrupted."""


class Rounds:
    """Counts consecutive turns with the same calls and results."""

    def __init__(self) -> None:
        self._last, self._count = "", 0

    def same(self, signature: str) -> int:
        """Return the number of consecutive turns with this signature, including the current one."""
        self._count = self._count + 1 if signature == self._last else 1
        self._last = signature
        return self._count


class ToolRound:
    """The tool calls that a model requests in one turn, and their results."""

    def __init__(
        self,
        calls: Sequence[ToolCall],
        activity: TurnActivity,
        perform: Callable[[int, ToolCall], Awaitable[ToolResult]],
        stored_as: Callable[[int, ToolCall], str | None],
    ) -> None:
        """Prepare the calls; ``perform`` runs one, given its position from 1.

        ``stored_as`` returns the journal key of a call's result, or None if it is not journaled.
        """
        self._stored_as = stored_as
        self._calls = calls
        self._activity = activity
        self._perform = perform
        self._results: dict[int, ToolResult] = {}

    async def run(self, *, alone: Callable[[str], bool]) -> None:
        """Run the tool calls of the turn.

        Calls run concurrently. If ``alone`` returns True for a tool, each call to it runs by
        itself.

        Raises:
            Stop: a limit or a cancel request. After a limit, calls in flight finish first; calls
                that wait, for example for an approval, end at once.
        """
        for batch in self._batches(alone):
            if len(batch) == 1:
                await self._one(batch[0])
            else:
                await self._side_by_side(batch)

    async def _side_by_side(self, batch: Sequence[int]) -> None:
        stops: list[Stop] = []

        async def one(index: int) -> None:
            try:
                await self._one(index)
            except Stop as stop:
                stops.append(stop)
                stop_others(stop)

        with self._activity.stopping() as stop_others:
            async with asyncio.TaskGroup() as group:
                for index in batch:
                    group.create_task(one(index))
        if stops:
            raise stops[0]

    async def _one(self, index: int) -> None:
        call = self._calls[index - 1]
        self._activity.tool_started(index, call)
        try:
            result = await self._perform(index, call)
        except BaseException as ended:
            if not self._activity.is_handed_over:
                cut_off = failure(str(ended) or type(ended).__name__, CUT_OFF)
                self._activity.tool_ended(index, call, cut_off)
            raise
        self._results[index] = result
        self._activity.tool_ended(index, call, result, self._stored_as(index, call))

    def _batches(self, alone: Callable[[str], bool]) -> Iterator[list[int]]:
        batch: list[int] = []
        for index, call in enumerate(self._calls, 1):
            by_itself = alone(call.name)
            if batch and (by_itself or len(batch) == MAX_SIDE_BY_SIDE):
                yield batch
                batch = []
            if by_itself:
                yield [index]
            else:
                batch.append(index)
        if batch:
            yield batch

    def messages(self) -> Iterator[Message]:
        """Yield a message for each available result, in the order of the calls."""
        for index, call in enumerate(self._calls, 1):
            result = self._results.get(index)
            if result is not None:
                content = compact(result)
                is_complete = len(content) <= MAX_RESULT_CHARS and not is_failure(result)
                yield Message(
                    role="tool",
                    content=_cut(content),
                    tool_call_id=call.id,
                    tool_name=call.name,
                    result_of=self._stored_as(index, call) if is_complete else None,
                )

    def results(self) -> Iterator[tuple[str, ToolResult]]:
        """Yield the name of the tool and the result of each call that has one."""
        for index, result in self._results.items():
            yield self._calls[index - 1].name, result

    def signature(self) -> str:
        """Return a text that is the same for turns with equal calls and equal results."""
        calls_as_json = [
            [call.name, arguments_of(call), self._results.get(index)]
            for index, call in enumerate(self._calls, 1)
        ]
        return json.dumps(calls_as_json, sort_keys=True)


def _cut(text: str) -> str:
    if len(text) <= MAX_RESULT_CHARS:
        return text
    return f"{text[:MAX_RESULT_CHARS]} [cut: {len(text) - MAX_RESULT_CHARS:,} characters more]"


def loop_stop(context: FlowContext, calls: Sequence[ToolCall]) -> Stop:
    """Return the stop for an agent whose turns repeat the same calls with the same results."""
    names = ", ".join(call.name for call in calls)[:200]
    cause = StopCause(
        kind=StopKind.LOOP,
        scope=context.scope.name,
        step_id=context.path.text,
        reason=f"The same calls brought the same results {SAME_ROUNDS} times in a row: {names}.",
    )
    return Stop(cause)
