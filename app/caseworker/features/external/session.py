"""The process's side of external runs: their calls, their end and their idle time.

An external run executes a graph with one step. The step only waits: for the client to finish the
run, for a stop, or for the end of its idle time. While it waits, the gateway makes the client's
calls in the name of the step, so that they share its budget, its journal and its trace.
"""

import asyncio
import hashlib
import json
import secrets
from collections import defaultdict
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
)
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import zip_longest
from typing import Any, Final, TypeVar, cast

from pydantic import Field

from caseworker.core.budget.budget import json_number
from caseworker.core.budget.stops import HandOver, Stop, StopCause, StopKind
from caseworker.core.budget.usage import BudgetExceededError
from caseworker.engine.call import Answered, Call, CallFailedError
from caseworker.engine.context import FlowContext
from caseworker.engine.events import REPLAY_DIVERGED, Event
from caseworker.engine.ports import CallOutcome
from caseworker.engine.report import RecordedFailureError
from caseworker.engine.step_path import StepPath
from caseworker.engine.supervision import forget_failure, until_done
from caseworker.features.external.dialects import Dialect
from caseworker.features.external.objects import ProviderObjects
from caseworker.features.external.recorded import RecordedCall, RecordedCalls, call_named
from caseworker.features.external.tools import (
    CHILD,
    OfferedTools,
    RequestedTool,
    child_run,
    reported_tool,
)
from caseworker.models.client_bodies import ClientBody
from caseworker.models.gateway import ChatModel, ModelGateway
from caseworker.models.message_log import StoredPrompt
from caseworker.models.relay import OBJECTS, WIRE, Head, Relay, RelayedCall, restored
from caseworker.models.table import AllowedModels, ModelTable
from caseworker.nodes.agent.definition import ToolUses
from caseworker.nodes.agent.execution import Agents
from caseworker.nodes.agent.tools import ToolOffer
from caseworker.nodes.reading import StepData
from caseworker.platform.logs.errors import message_of_error
from caseworker.runs.run import RunKey
from caseworker.tools.ports import ToolResult

ANY_NAME: Final = "*"
HASH_CHARS: Final = 16
MAX_FIELDS: Final = 20
"""Number of fields that an event names at most."""
SHORT_HASH_CHARS: Final = 6
"""Length of hashes that only serve to show how two requests differ."""

NAMED_ONLY: Final = (
    "The request only names a document or an object at the provider, so that its largest possible"
    " size is reserved; sent inline, a document costs less."
)

T = TypeVar("T")


class ExternalData(StepData):
    """The settings of an external run."""

    name: str | None = None
    """Name of the agent."""
    models: list[str] | dict[str, str] | None = None
    """Models that the agent may call; a map names them by the names that the agent sends."""
    idle_seconds: float = 600
    """Seconds without a call or heartbeat after which the run fails."""
    replay: bool = True
    """Whether recorded replies are repeated to later attempts."""
    parent: str | None = None
    """ID of the run whose budget this one shares."""
    tools: ToolUses = Field(default_factory=list)
    """Tools that the service offers to the agent."""


class UnknownModelError(LookupError):
    """The run may not call a model of this name, or it does not exist."""


class WrongDialectError(Exception):
    """The model can only be called through another API; ``provider`` is the name of its kind."""

    def __init__(self, provider: str) -> None:
        super().__init__(provider)
        self.provider = provider


@dataclass(slots=True)
class _Waiting:
    """The end that a client reported: an output, or an error."""

    output: Any = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRequest:
    """A request for a model call."""

    dialect: Dialect
    alias: str
    """Configured name of the model."""
    model: ChatModel
    body: ClientBody
    headers: Mapping[str, str]
    """Headers of the client that the provider receives."""

    def digest(self, tenant: str) -> str:
        """Return the keyed hash by which a repeated request is recognised."""
        body = self.body
        hashes = [*sorted(body.hashes.items()), *body.item_hashes]
        identity = json.dumps([self.dialect.path, self.alias, hashes]).encode()
        secret = tenant.encode()[:64]
        return hashlib.blake2b(identity, key=secret, digest_size=HASH_CHARS).hexdigest()


class Flight:
    """A request that is being answered, and the clients that wait for its reply."""

    task: "asyncio.Task[None]"

    def __init__(self, digest: str, call_key: str | None) -> None:
        self.digest = digest
        """Hash of the request."""
        self.relay = Relay()
        self._call_key = call_key
        self._clients = 1
        self._lingering: asyncio.TimerHandle | None = None

    def is_repeated_by(self, call_key: str | None, *, is_retry: bool) -> bool:
        """Return whether a request with equal content is this request again."""
        if self.relay.failed or (self.task.done() and not self.relay.has_started):
            return False
        if call_key is not None or self._call_key is not None:
            return call_key == self._call_key
        return is_retry or self._clients == 0

    def join(self) -> None:
        """Add a client."""
        self._clients += 1
        if self._lingering is not None:
            self._lingering.cancel()

    def leave(self, linger_seconds: float) -> None:
        """Remove a client whose connection was closed; without clients, the call ends later."""
        self._clients -= 1
        if self._clients == 0 and not self.task.done():
            loop = asyncio.get_running_loop()
            self._lingering = loop.call_later(linger_seconds, self.task.cancel)


class Session:
    """The calls that the code of a step makes: a client, or a function of this process."""

    def __init__(
        self,
        data: ExternalData,
        context: FlowContext,
        agents: Agents | None = None,
        parent: "Session | None" = None,
    ) -> None:
        self.depth: int = 0 if parent is None else parent.depth + 1
        """Number of the run's ancestors."""
        self._activity = context.calls.activity
        self._parent = parent
        self._open_children: set[Session] = set()
        self.key = RunKey(context.run.tenant, context.run_id)
        if parent is not None:  # a parent is released after its children
            parent._open_children.add(self)
            parent._activity.working[self] = parent._context.path.call(CHILD, self.key.run_id)
        self.scope = context.scope
        self._data = data
        self._context: FlowContext = context
        self.ended: asyncio.Future[_Waiting] = asyncio.get_running_loop().create_future()
        """The end that the client reported, or the limit that was reached."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._attempt = 0
        self.newest_attempt = 0
        """Number of the newest attempt that was opened, as far as this process knows."""
        self.opening = asyncio.Lock()
        """Held while the client opens an attempt."""
        self._flights: defaultdict[str, list[Flight]] = defaultdict(list)
        """Requests whose replies no client has received yet, by the hash of their content."""
        self._calls = RecordedCalls(self._recorded())
        allowed = data.tools if parent is None else parent.tools.uses
        uses = [each for each in data.tools if each in allowed]
        self.tools: OfferedTools = OfferedTools(agents, uses, context)
        self._prompts: dict[tuple[str, str], tuple[StoredPrompt | None, str]] = {}
        """Conversations that a call has stored, with its key, by their lane and hash."""
        self._requested: defaultdict[str, list[RequestedTool]] = defaultdict(list)
        """Tool calls whose results are not reported yet, by ID; some models repeat their IDs."""
        self.journaled_tools: set[str] = set()
        """Names of tools whose calls are counted when they are made, so that none is reported."""
        self._diverged = False
        self._children: set[str] = set()
        self._stop: Stop | None = None
        self._is_closed = False
        self._heard_at = asyncio.get_running_loop().time()
        self.opened_at = datetime.now(UTC)

    @property
    def stop(self) -> Stop | None:
        """The stop of the run, or the limit that it has reached; None if it may continue."""
        return self._context.token.stop or self._stop

    @property
    def is_open(self) -> bool:
        """Whether calls can be made: the step has no stop and has not ended."""
        return self.stop is None and not self._is_closed

    @property
    def is_leaving(self) -> bool:
        """Whether no call can start any more, because another process owns the run or will own it.

        The process shuts down, or has lost the run.
        """
        return self._activity.is_held or isinstance(self._context.token.stop, HandOver)

    @property
    def attempt(self) -> int:
        """Number of the newest attempt whose client has made a call; 0 if none has."""
        return self._attempt

    def remaining_limits(self) -> dict[str, Any]:
        """Return the rest of each limit of the run, by its JSON name; None is unlimited."""
        limits = self.scope.tightest_limits()
        remaining = {name.value: json_number(self.scope.remaining(name)) for name in limits}
        seconds = self.scope.remaining_seconds()
        return (
            remaining if seconds is None else {**remaining, "seconds": round(max(0.0, seconds), 3)}
        )

    def touch(self) -> None:
        """Note a sign of life of the client, which is also one of its parents."""
        self._heard_at = asyncio.get_running_loop().time()
        if self._parent is not None:
            self._parent.touch()

    @property
    def _is_busy(self) -> bool:
        """Whether a call of the run or of a child is in flight."""
        return bool(self._tasks) or any(child._is_busy for child in self._open_children)

    def opened(self, attempt: int, *, first_use: bool) -> None:
        """Note that the client works in this attempt; a later one restarts the replay.

        ``first_use`` is whether this is the attempt's first call. An attempt that continues after
        this process took over the run has had its replies, so it gets none.
        """
        if attempt > self._attempt:
            replays = self._data.replay and first_use
            self._attempt, self._diverged = attempt, False
            self._calls.opened(attempt, replays=replays)
            self.tools.opened(attempt, replays=replays)
            self._flights.clear()
            for task in self._tasks - self.tools.running.keys():  # a tool may not be repeatable
                task.cancel()

    def reopened(self) -> None:
        """Note that the code of the step is executed, from its start, with the recorded replies."""
        latest = max((call.attempt for call in self._calls.every), default=0)
        self.opened(latest + 1, first_use=True)

    def model_named(self, name: str, dialect: Dialect) -> tuple[str, ChatModel]:
        """Return the configured name and the model for a name that the client sent.

        Raises:
            UnknownModelError: the run may not call a model of this name.
            WrongDialectError: the model has another API.
        """
        table, names = self._models()
        alias = names.get(name) or names.get(ANY_NAME)
        if alias is None:
            raise UnknownModelError(name)
        if not _speaks(table[alias], dialect):
            raise WrongDialectError(table[alias].provider.name)
        return alias, table[alias]

    def model_names(self, dialect: Dialect) -> list[str]:
        """Return the names of models that the client may call with an API.

        Any other name is mapped to a configured one, which is listed too.
        """
        table, names = self._models()
        return [
            *dict.fromkeys(
                alias if name == ANY_NAME else name
                for name, alias in names.items()
                if _speaks(table[alias], dialect)
            )
        ]

    def _models(self) -> tuple[ModelTable, Mapping[str, str]]:
        """Return the models of the tenant, and the configured name for each name to send."""
        gateway, allowed = self._context.service(ModelGateway), self._data.models
        table: ModelTable = gateway.table.restricted(self._context.services.get(AllowedModels))
        if self._parent is not None:
            table = table.restricted(AllowedModels(tuple(self._parent._models()[1].values())))
        if isinstance(allowed, dict):
            return table, {name: alias for name, alias in allowed.items() if alias in table}
        aliases = [alias for alias in table if allowed is None or alias in allowed]
        by_model_name = {table[alias].model: alias for alias in reversed(aliases)}
        return table, {
            **dict.fromkeys(aliases, ""),
            **by_model_name,
            **{alias: alias for alias in aliases},
        }

    def answer(
        self,
        call_request: GatewayRequest,
        *,
        call_key: str | None,
        is_retry: bool,
        lane: str = "",
        replays: bool = True,
    ) -> Flight:
        """Begin to answer a request, or join it to the one that it repeats.

        ``lane`` separates parallel branches of the client. ``replays`` is False if the request must
        not get a recorded reply.

        It joins a request with the same ``call_key``. Without a key, it joins an equal request if
        the client marks it with ``is_retry``, or if the connection of that one was closed. Two open
        requests with equal content are two calls.
        """
        self.touch()
        digest = call_request.digest(self.key.tenant)
        for flight in self._flights[digest]:
            if flight.is_repeated_by(call_key, is_retry=is_retry):
                flight.join()
                return flight
        diverged = partial(self._note_divergence, lane, call_request.body)
        entry = self._calls.call_for(digest, lane, replays=replays, diverged=diverged)
        flight = Flight(digest, call_key)
        work = self._call(call_request, entry, flight)
        path = self._context.path.call("llm", entry.key)
        flight.task = self._started(self._relayed(work, flight.relay), path)
        self._flights[digest].append(flight)
        return flight

    def call_tool(
        self, offer: ToolOffer, name: str, args: Mapping[str, Any]
    ) -> "tuple[RecordedCall, asyncio.Task[ToolResult]]":
        """Call a tool, or join the call of an equal request; return the call and its task."""
        self.touch()
        call = self.tools.call_for(name, args)
        if call.answered is None:
            work = self.tools.result(offer, call, name, args)
            path = self.tools.path_of(call)
            call.answered, call.is_complete = self._started(self._limited(work), path), True
            self.tools.note_start(call)
        return call, call.answered

    def _started(self, work: Coroutine[Any, Any, T], path: StepPath) -> "asyncio.Task[T]":
        """Work for the client in a task; the run is not idle until the task ends.

        ``path`` is the path of the call that the task makes.
        """
        task = asyncio.create_task(work, name=f"gateway {self.key.run_id}")
        self._tasks.add(task)
        self._activity.working[task] = path
        task.add_done_callback(self._on_call_end)
        return task

    async def _limited(self, work: Awaitable[T]) -> T:
        """Return the result of work; make it durable before the client receives it.

        Raises:
            Stop: a limit or a cancel request refused or interrupted the work.
        """
        try:
            result = await work
        except Stop as stop:
            if stop.is_limit:
                self._stop = stop
            raise
        # A reply that the client has received whole must not be lost with this process.
        await self._context.calls.journal.barrier(external=True)
        return result

    def delivered(self, flight: Flight) -> None:
        """Note that a client has received its whole reply, so that no request joins it."""
        flights = self._flights[flight.digest]
        if flight in flights:
            flights.remove(flight)
        if not flights:
            del self._flights[flight.digest]

    async def _call(
        self, call_request: GatewayRequest, entry: RecordedCall, flight: Flight
    ) -> None:
        """Make a client's call, or replay it; its reply goes to the relay of ``flight``.

        Raises:
            CallFailedError: every attempt failed, and no part of a reply was passed on.
            Stop: a limit or a cancel request refused or interrupted the call.
        """
        relay = flight.relay
        if self._stop is not None:
            raise self._stop
        if entry.answered is None:
            entry.answered = await self._limited(self._perform(call_request, entry, flight))
            entry.is_complete = True
            value = entry.answered.value
            if objects := value[WIRE].get(OBJECTS):
                tokens = value["tokens_in"] + value["tokens_out"]
                await self._context.service(ProviderObjects).note(self.key, objects, tokens)
        for at, tool in enumerate(entry.answered.value.get("tool_calls", ())):
            if tool["name"] not in self.journaled_tools:
                node_id, position = entry.answered.node_id, f"{entry.key}/{at}"
                requested = RequestedTool(call=tool, node_id=node_id, position=position)
                self._requested[tool["id"]].append(requested)
        if not relay.is_taken:  # it was recorded earlier
            replayed = {"replayed_in": self._attempt}
            self._context.run.trace.annotate(entry.answered.node_id, replayed)
            head = restored(entry.answered.value[WIRE])
            relay.begin(head)
            relay.write(head.content or b"")

    async def _perform(
        self, call_request: GatewayRequest, entry: RecordedCall, flight: Flight
    ) -> Answered:
        await self._report_tools(call_request.body)
        call, note_stored = await self._call_to(call_request, entry, flight)
        try:
            answered = await self._context.calls.perform(
                call, parent=self._context.trace_parent, scope=self.scope
            )
        except BudgetExceededError as refused:
            if call.content is None or not call.content.fills_context:
                raise
            reason = f"{refused}. {NAMED_ONLY}"
            raise Stop(replace(refused.cause, reason=reason)) from None
        note_stored()
        return answered

    def count_tokens(
        self, model: ChatModel, body: ClientBody, headers: Mapping[str, str], path: str
    ) -> "asyncio.Task[Head]":
        """Let the provider count the tokens of a body in a task; this is an API call of the run.

        The task raises:
            Stop: a limit or a cancel request refused the call.
            CallFailedError: the provider did not reply.
        """
        self.touch()
        attempt = self._attempt
        call = self._context.service(ModelGateway).token_count(
            self._context,
            model,
            key=secrets.token_hex(16),
            body=body.document,
            headers=headers,
            path=path,
            is_superseded=lambda: attempt < self.newest_attempt,
        )

        async def counted() -> Head:
            await self.perform(call)
            return cast("Head", call.reply)

        return self._started(counted(), call.key)

    async def perform(self, call: Call) -> Answered:
        """Make a call of the step, or replay it; a limit that it reaches ends the step.

        Raises as :meth:`Calls.perform`.
        """
        parent = self._context.trace_parent
        return await self._limited(
            self._context.calls.perform(call, parent=parent, scope=self.scope)
        )

    async def _report_tools(self, body: ClientBody) -> None:
        """Record and count the tool calls whose results a body contains for the first time.

        Raises:
            Stop: the limit of tool calls is exceeded.
        """
        # From the end: earlier results of a repeated ID have been reported before.
        for call_id, result in reversed(body.results):
            if not (pending := self._requested.get(call_id)):
                continue
            requested = pending.pop()
            name, arguments = requested.call["name"], requested.call["arguments"]
            if not self.tools.has_called(name, arguments):
                with suppress(CallFailedError):  # too large to be recorded
                    await self._context.calls.perform(
                        reported_tool(self._context, requested, result),
                        parent=requested.node_id,
                        scope=self.scope,
                    )

    async def _relayed(self, work: Coroutine[Any, Any, None], relay: Relay) -> None:
        """Do the work of a call; the relay ends with it, and with its error."""
        try:
            await work
        except asyncio.CancelledError:
            relay.end(self.stop or asyncio.CancelledError())
            raise
        except (Stop, CallFailedError) as refused:
            relay.end(refused)
        except Exception as broken:
            relay.end(broken)
            raise
        else:
            relay.end()

    async def adopt(self, run_id: str) -> None:
        """Record durably, and once, that a run is a child of this one."""
        calls = self._context.calls
        if run_id not in self._children:
            self._children.add(run_id)
            call = child_run(self._context, run_id)
            await calls.perform(call, parent=self._context.trace_parent, scope=self._context.scope)
        await calls.journal.barrier(external=True)

    def finish(self, output: Any, error: Exception | None = None) -> None:
        """End the run with an output or an error; calls in flight are cancelled."""
        if not self.ended.done():
            self.ended.set_result(_Waiting(output, error))
            if error is not None:
                reason = message_of_error(error)
                self._stop = Stop(StopCause(kind=StopKind.ERROR, reason=reason))

    async def wait(self) -> Mapping[str, Any]:
        """Wait until the client finishes the run; return its result.

        Raises:
            Stop: a limit was reached, or the client sent nothing for too long.
            RecordedFailureError: the client reported an error.
        """
        client = self._context.path.call("client")
        self._activity.working[self] = client  # no approval suspends the run of a client
        try:
            async with self._activity.waits(client):
                await self._wait()
            ended = self.ended.result()
        finally:
            await self.close()
        if ended.error is not None:
            raise ended.error
        return {
            "output": ended.output,
            "replayed_calls": self._calls.replayed + self.tools.calls.replayed,
            "unused_calls": self._calls.unused + self.tools.calls.unused,
        }

    async def _wait(self) -> None:
        """Wait until the client finishes the run, or a limit is reached.

        Raises:
            Stop: the client sent nothing for too long.
        """
        clock = asyncio.get_running_loop().time
        while not self.ended.done():
            idle_seconds_left = self._heard_at + self._data.idle_seconds - clock()
            if idle_seconds_left <= 0 and not self._tasks and self._is_busy:
                self.touch()  # look again after the idle time
                continue
            if idle_seconds_left <= 0 and not self._tasks:
                self._stop = _abandoned(self._data.idle_seconds)
                raise self._stop
            await asyncio.wait(
                (self.ended, *self._tasks),
                timeout=idle_seconds_left if idle_seconds_left > 0 else None,
                return_when=asyncio.FIRST_COMPLETED,
            )

    async def close(self) -> None:
        """Refuse further calls, cancel those in flight, and wait for their ends."""
        self._is_closed = True
        if (parent := self._parent) is not None:
            parent._open_children.discard(self)
            parent._activity.working.pop(self, None)
            parent._activity.changed()
        for task in self._tasks:
            task.cancel()
        await until_done(tuple(self._tasks), self._context.run.grace_seconds)

    def _on_call_end(self, task: "asyncio.Task[Any]") -> None:
        """Note the end of a call; halt the run if it was the last one below a reached limit."""
        forget_failure(task)
        self._tasks.discard(task)
        del self._activity.working[task]
        self._activity.changed()
        self.touch()
        if self._stop is not None and not self._tasks and not self.ended.done():
            self.ended.set_exception(self._stop)
            self.ended.exception()  # mark as retrieved: the run may have ended already

    def _recorded(self) -> Iterator[RecordedCall]:
        """Yield the model calls of earlier executions."""
        prefix = self._context.path.call("llm", "").text
        recorded = self._context.calls.journal.recorded_below(prefix)
        for place, (key, one) in enumerate(recorded.items()):
            is_complete = one.outcome is CallOutcome.RESULT
            wire = one.value[WIRE] if is_complete else {}
            yield call_named(
                key.removeprefix(prefix),
                attempt=0 if one.taken_over else wire.get("attempt", 0),
                lane=wire.get("lane", ""),
                is_complete=is_complete,
                is_open=one.outcome is CallOutcome.UNKNOWN,
                place=place,
                content=wire.get("content", {}),
            )

    def _note_divergence(self, lane: str, body: ClientBody) -> None:
        """Emit an event, once in each attempt."""
        calls = self._calls
        if not self._diverged and self._context.run.events is not None:
            self._diverged = True
            about: dict[str, Any] = {
                "attempt": self._attempt,
                "position": calls.used,
                "unused": calls.unused,
            }
            for expected in (each for each in calls.every if calls.may_repeat(each, lane)):
                about["fields"] = self._differences(body, expected)
                break
            if lane:
                about["lane"] = lane
            self._context.run.events.emit(
                Event(type=REPLAY_DIVERGED, step_id=self._context.node_id, data=about)
            )

    def _differences(self, body: ClientBody, recorded: RecordedCall) -> list[str]:
        """Return the fields of a body that differ from those of a recorded request.

        For the conversation, it is the first message that differs.
        """
        fields, now = recorded.content.get("fields", {}), _short(body.hashes)
        different = {name for name in fields | now if fields.get(name) != now.get(name)}
        of = {each.key: each.content for each in self._calls.every}
        content, items = recorded.content, list[str]()
        while content:
            items[:0] = content["items"].split()
            content = of.get(content["after"], {})
        pairs = zip_longest(items, map(_shortened, body.item_hashes))
        at = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
        return sorted(different)[:MAX_FIELDS] + ([] if at is None else [f"{body.field}[{at}]"])

    def _stored_before(
        self, body: ClientBody, entry: RecordedCall
    ) -> tuple[StoredPrompt | None, Callable[[], None]]:
        """Return which messages of a body an earlier call has stored, and describe the request.

        A stored conversation is continued by one call, so that its calls are a sequence. The
        function notes that the call has stored the other messages.
        """
        *beginnings, conversation = ((entry.lane, each) for each in body.beginnings)
        longest = next((each for each in reversed(beginnings) if each in self._prompts), ("", ""))
        stored, after = self._prompts.pop(longest, (None, ""))
        if not entry.is_complete:
            root = self._context.path.call("llm", entry.key).text
            items = body.item_hashes[beginnings.index(longest) if stored else 0 :]
            entry.content = {
                "fields": _short(body.hashes),
                "items": " ".join(map(_shortened, items)),
                "after": after,
                "root": stored.call_key if stored else root,
            }

        def note() -> None:
            if entry.attempt and (root := entry.content.get("root")):
                prompt = StoredPrompt(root, len(body.messages), body.hashes)
                self._prompts[conversation] = prompt, entry.key

        return stored, note

    async def _call_to(
        self, call_request: GatewayRequest, entry: RecordedCall, flight: Flight
    ) -> tuple[RelayedCall, Callable[[], None]]:
        """Return the call for a request, and the function to call after it."""
        stored, note_stored = self._stored_before(call_request.body, entry)
        provider_body, hides_usage = (
            {**call_request.body.document, "model": call_request.model.model},
            False,
        )
        if provider_body.get("stream") and call_request.dialect.needs_usage_option:
            options = provider_body.get("stream_options") or {}
            hides_usage = not options.get("include_usage")
            provider_body["stream_options"] = {**options, "include_usage": True}
        call = await self._context.service(ModelGateway).relayed(
            self._context,
            call_request.model,
            alias=call_request.alias,
            key=entry.key,
            made_in={"attempt": entry.attempt, "lane": entry.lane, "content": entry.content},
            stored=stored,
            path=call_request.dialect.path,
            request_hash=flight.digest,
            body=call_request.body,
            provider_body=provider_body,
            headers=call_request.headers,
            relay=flight.relay,
            limit_fields=call_request.dialect.limit_fields,
            hides_usage=hides_usage,
            is_superseded=lambda: entry.attempt < self.newest_attempt,
        )

        def note_begun(_: object) -> None:
            call.repeatable = False  # the client would get parts of two replies

        flight.relay.head.add_done_callback(note_begun)
        return call, note_stored


def reported(error_class: str, message: str) -> RecordedFailureError:
    """Return the error with which a client finishes its run."""
    return RecordedFailureError(message, error_class=error_class)


def _abandoned(seconds: float) -> Stop:
    reason = f"The client sent no call and no heartbeat for {seconds:g} seconds."
    return Stop(StopCause(kind=StopKind.ABANDONED, reason=reason))


def _shortened(digest: str) -> str:
    return digest[:SHORT_HASH_CHARS]


def _short(hashes: Mapping[str, str]) -> dict[str, str]:
    return {name: _shortened(digest) for name, digest in hashes.items()}


def _speaks(model: ChatModel, dialect: Dialect) -> bool:
    """Return whether a model can be called with an API."""
    return model.provider.name == dialect.provider and hasattr(model.provider, "relay")
