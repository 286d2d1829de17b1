"""Tools and child runs of external runs.

A client calls the service's tools through the gateway. They are executed in the name of the run's
step, as an agent's tools are. Its model calls report the tools that it executes itself.
"""

import asyncio
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from caseworker.core.budget.retry import ONE_ATTEMPT
from caseworker.engine.call import Answered, Call, CallFailedError, Reply
from caseworker.engine.context import FlowContext
from caseworker.engine.ports import CallOutcome
from caseworker.engine.step_path import StepPath
from caseworker.features.external.recorded import RecordedCall, RecordedCalls, call_named
from caseworker.models.gateway import ModelGateway
from caseworker.models.ports import ToolCall
from caseworker.nodes.agent.definition import ToolUse
from caseworker.nodes.agent.execution import Agents
from caseworker.nodes.agent.tools import ToolOffer
from caseworker.tools.ports import ONE_TOOL_CALL, ToolResult

CHILD: Final = "child_run_id"
"""Metadata of the node of a child run, and the kind in its key."""
_OFFERED: Final = "offered"
_ENDED: Final = (CallOutcome.RESULT, CallOutcome.FAILURE)
_MAX_PREFIXES: Final = 16


@dataclass(kw_only=True, eq=False)
class Reported(Call):
    """Work of the client; it is recorded and may be counted, but not done here."""

    result: Any

    async def send(self, attempt: int) -> Reply:
        """Return the result of the work."""
        return Reply({"result": self.result})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTool:
    """A tool call that a reply requests, and whose result no request has contained yet."""

    call: Mapping[str, Any]
    node_id: str
    """Node of the model call with the reply."""
    position: str
    """Key of the model call, and the place of the tool call in its reply."""


def reported_tool(context: FlowContext, requested: RequestedTool, result: Any) -> Reported:
    """Return the call for a tool call that a reply requested, and its result.

    Equal requests of two replies, or of one, are two calls.
    """
    name, arguments = str(requested.call["name"]), str(requested.call["arguments"])
    identity = [requested.position, requested.call["id"], name, arguments]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    displayed = context.service(ModelGateway).display(_read(arguments))
    return Reported(
        key=context.path.call("tool", digest),
        kind="tool",
        name=name,
        request_hash=digest,
        per_attempt=ONE_TOOL_CALL,
        external=False,
        retry=ONE_ATTEMPT,
        metadata={"reported": True, "args": displayed},
        result=result,
    )


def child_run(context: FlowContext, run_id: str) -> Reported:
    """Return the record of a child run, which costs nothing itself."""
    return Reported(
        key=context.path.call(CHILD, run_id),
        kind="tool",
        name="child run",
        request_hash=run_id,
        per_attempt={},
        external=False,
        retry=ONE_ATTEMPT,
        metadata={CHILD: run_id},
        result=run_id,
    )


def _read(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


class OfferedTools:
    """The tools that the service executes for the client of an external run.

    A tool whose call was in flight is never called again, unless it is idempotent: an equal request
    of the same process joins the call, and a later process reports that its outcome is unknown.
    """

    def __init__(
        self, agents: Agents | None, uses: Sequence[ToolUse], context: FlowContext
    ) -> None:
        self._agents = agents
        self.uses = uses
        """The entries of the run's ``tools`` that its parent has as well."""
        self._context = context
        self._offer: ToolOffer | None = None
        self._resolving, self._alone = asyncio.Lock(), asyncio.Lock()
        self.calls = RecordedCalls(self._recorded())
        self.running: dict[asyncio.Task[ToolResult], RecordedCall] = {}
        """The calls in flight by their tasks, which continue if their client disconnects."""
        self._requests: dict[tuple[str, str | int], asyncio.Task[ToolResult]] = {}
        """The tasks that open requests wait for, by the client's session and the request's ID."""
        self._unreported: defaultdict[str, list[RequestedTool]] = defaultdict(list)
        """Tool calls without a reported result, by ID; some models repeat their IDs."""
        self._journaled: set[str] = set()

    async def offer(self) -> ToolOffer:
        """Return the run's tools by the names that the client uses.

        Raises:
            LookupError: a tool does not exist any more.
            ServerUnavailableError: a server's tool list is unavailable.
        """
        async with self._resolving:
            if self._agents is None:
                return ToolOffer(())
            if self._offer is None:
                self._offer = await self._agents.offer(self.uses, None, self._context)
            return self._offer

    def opened(self, attempt: int, *, replays: bool) -> None:
        """Start the replay again for a new attempt, which may join the calls in flight."""
        self.calls.opened(attempt, replays=replays)
        for call in self.running.values():
            call.is_open = True

    def call_for(self, name: str, args: Mapping[str, Any]) -> RecordedCall:
        """Return the recorded call that answers a request, or a new one."""
        return self.calls.call_for(_digest_of(name, args))

    def note_start(self, call: RecordedCall) -> None:
        """Note that a call is in flight until the task in its ``answered`` ends."""
        self.running[call.answered] = call
        call.answered.add_done_callback(self.running.pop)

    @contextmanager
    def requested(
        self, request: tuple[str, str | int], task: asyncio.Task[ToolResult]
    ) -> Iterator[None]:
        """Let the client cancel the task of a call during the block."""
        self._requests[request] = task
        try:
            yield
        finally:
            if self._requests.get(request) is task:
                del self._requests[request]

    def cancel(self, request: tuple[str, str | int]) -> None:
        """Cancel the call of an open request; an equal request is another call."""
        task = self._requests.get(request)
        call = None if task is None else self.running.get(task)
        if task is not None and call is not None:
            call.is_complete = False
            task.cancel()

    async def result(
        self, offer: ToolOffer, call: RecordedCall, name: str, args: Mapping[str, Any]
    ) -> ToolResult:
        """Execute a call, or return its recorded result.

        Raises:
            Stop: a limit or a cancel request prevented or ended the call.
        """
        tool_call = ToolCall(id=call.key, name=name, arguments=json.dumps(args))
        async with AsyncExitStack() as stack:
            if offer.is_alone(name):
                async with self._context.calls.activity.waits(self.path_of(call)):
                    await stack.enter_async_context(self._alone)
            return await offer.call(self._context, _key_of(call), tool_call)

    def note_journaled(self, name: str) -> None:
        """Report no calls of a function, which are journaled when they are made."""
        self._journaled.add(name)

    def note_requested(self, answered: Answered, call: RecordedCall) -> None:
        """Note the tool calls that the reply to a model call requests."""
        for at, tool in enumerate(answered.value.get("tool_calls", ())):
            if tool["name"] not in self._journaled:
                position = f"{call.key}/{at}"
                requested = RequestedTool(call=tool, node_id=answered.node_id, position=position)
                self._unreported[tool["id"]].append(requested)

    async def report(self, results: Sequence[tuple[str, Any]]) -> None:
        """Record and count the tool calls whose results a body contains for the first time.

        Raises:
            Stop: the limit of tool calls is exceeded.
        """
        # From the end: earlier results of a repeated ID have been reported before.
        for call_id, result in reversed(results):
            if not (pending := self._unreported.get(call_id)):
                continue
            requested = pending.pop()
            if not self._has_called(requested.call["name"], requested.call["arguments"]):
                call, context = reported_tool(self._context, requested, result), self._context
                with suppress(CallFailedError):  # too large to be recorded
                    await context.calls.perform(call, parent=requested.node_id, scope=context.scope)

    def abandon(self, call: RecordedCall) -> None:
        """Let an equal request get the result that the client of a call did not get."""
        call.is_open = True

    def path_of(self, call: RecordedCall) -> StepPath:
        """Return the path of a call in the run."""
        return self._context.path.call(_key_of(call))

    def _has_called(self, name: str, arguments: str) -> bool:
        """Return whether the client made a call here; frameworks add prefixes to the names."""
        if not self.uses:
            return False
        args, ends = _read(arguments), islice(re.finditer("[_.-]", name), _MAX_PREFIXES)
        starts = (0, *(each.end() for each in ends))
        return any(_digest_of(name[start:], args) in self.calls for start in starts)

    def _recorded(self) -> Iterable[RecordedCall]:
        """Return the calls of earlier executions; a sub-agent's call is recorded as a step."""
        path, calls = self._context.path.call(_OFFERED, ""), dict[str, RecordedCall]()
        for prefix in (path.text, path.record_key):
            for key, one in self._context.calls.journal.recorded_below(prefix).items():
                made_in, name, *inner = key.removeprefix(prefix).split("/")
                attempt = 0 if one.imported else int(made_in)
                call = call_named(name, attempt=attempt, made_in=int(made_in), is_open=True)
                call = calls.setdefault(f"{made_in}/{name}", call)
                if one.outcome in _ENDED and not inner:
                    call.is_complete, call.is_open = True, False
        return calls.values()


def _key_of(call: RecordedCall) -> str:
    return f"{_OFFERED}/{call.made_in}/{call.key}"


def _digest_of(name: str, args: Any) -> str:
    """Return the hash by which a repeated request is recognised."""
    request = json.dumps([name, args], sort_keys=True).encode()
    return hashlib.blake2b(request, digest_size=16).hexdigest()
