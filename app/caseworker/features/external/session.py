"""The calls that a client of the gateway makes in the name of a step.

An external run executes a graph with one step. The step only waits: for the client to finish the
run, for a stop, or for the end of its idle time. While it waits, the gateway makes the client's
calls in the name of the step, so that they share its budget, its journal and its trace. The code of
a step of this process makes its calls in the same way.
"""

import asyncio
import hashlib
import json
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar, cast

from pydantic import Field

from caseworker.core.budget.accounts import AccountLimit
from caseworker.core.budget.budget import json_number
from caseworker.core.budget.ledger import Scope
from caseworker.core.budget.stops import HandOver, Stop
from caseworker.engine.call import Answered, Call, CallFailedError
from caseworker.engine.call_maximum import Preview, preview
from caseworker.engine.context import FlowContext
from caseworker.engine.events import REPLAY_DIVERGED, Event
from caseworker.engine.step_path import StepPath
from caseworker.features.external.attempts import AttemptKey, Attempts, PendingReply
from caseworker.features.external.end import RunEndedError, SessionEnd, SessionWork
from caseworker.features.external.recorded import RecordedCall, StoredPrompts, model_calls
from caseworker.features.external.tools import CHILD, OfferedTools, child_run
from caseworker.models.client_bodies import ClientBody
from caseworker.models.embeddings import VECTORS, replayed
from caseworker.models.gateway import ChatModel, ModelGateway, explained
from caseworker.models.relay import OBJECTS, WIRE, Head, Relay, is_recorded, restored
from caseworker.models.run_models import RunModels, table_of
from caseworker.nodes.agent.definition import ToolUses
from caseworker.nodes.agent.execution import Agents
from caseworker.nodes.agent.tools import ToolOffer
from caseworker.nodes.strict_parsing import StepData
from caseworker.runs.run import RunKey
from caseworker.tools.ports import ToolResult

HASH_CHARS: Final = 16

T = TypeVar("T")


class StandingClient(StepData):
    """The client whose standing key has opened a run."""

    account: str
    """ID under which the calls of the key are counted."""
    session: str
    """Hash of the name of the session; empty for the unnamed one."""
    key_id: str
    conversation: str | None = None
    """Name of the session, without secrets and personal data."""
    user_agent: str | None = None


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
    client: StandingClient | None = None
    """None for a run that was not opened by a standing key."""


class ProviderObjects:
    """Knows which objects at a provider the replies to a tenant have named."""

    record: Callable[[RunKey, Sequence[str], int], Awaitable[None]]
    """Stores that a reply to a run has named these objects at the provider, and its tokens."""
    tokens_of: Callable[[str, Sequence[str]], Awaitable[Mapping[str, int | None]]]
    """Returns which of these objects a reply to a tenant has named, with the reply's tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRequest:
    """A request for a model call."""

    path: str
    """Path of the API below the base URL of a provider."""
    alias: str
    """Configured name of the model."""
    model: ChatModel
    body: ClientBody
    provider_body: Mapping[str, Any]
    """The document that the provider receives."""
    hides_usage: bool
    """Whether to keep the stream's token counts from the client, which did not request them."""
    limit_fields: tuple[str, ...]
    """Body fields that limit the number of output tokens."""
    headers: Mapping[str, str]
    """Headers of the client that the provider receives."""
    objects_in: Callable[[Mapping[str, Any]], Iterable[Any]]
    """Returns the IDs of the objects at the provider that a document of the reply names."""

    @property
    def call_fields(self) -> Mapping[str, Any]:
        """Fields of the call that is made for the request."""
        return {
            "path": self.path,
            "body": self.provider_body,
            "headers": self.headers,
            "limit_fields": self.limit_fields,
            "hides_usage": self.hides_usage,
            "objects_in": self.objects_in,
        }

    def digest(self, tenant: str) -> str:
        """Return the keyed hash by which a repeated request is recognised."""
        body = self.body
        hashes = [*sorted(body.hashes.items()), *body.item_hashes]
        identity = json.dumps([self.path, self.alias, hashes]).encode()
        secret = tenant.encode()[:64]
        return hashlib.blake2b(identity, key=secret, digest_size=HASH_CHARS).hexdigest()


class GatewaySession:
    """Answers the calls of one step whose code is an external client or a local function."""

    def __init__(
        self,
        data: ExternalData,
        context: FlowContext,
        agents: Agents | None = None,
        parent: "GatewaySession | None" = None,
        *,
        is_draft: bool = False,
    ) -> None:
        """``is_draft`` is whether the run is not stored: its calls are only previewed."""
        self.is_draft = is_draft
        self.key = RunKey(context.run.tenant, context.run_id)
        self.opened_at = datetime.now(UTC)
        self._context: FlowContext = context
        self._idle_seconds = data.idle_seconds
        self._is_continued = data.client is not None
        """Whether another run continues this one after its idle time, so that it completes."""
        self._children: set[str] = set()
        """IDs of the children that are recorded durably."""
        allowed = data.tools if parent is None else parent.tools.uses
        uses = [each for each in data.tools if each in allowed]
        self.tools: OfferedTools = OfferedTools(agents, uses, context)
        self.models: RunModels = RunModels(
            partial(table_of, context), data.models, None if parent is None else parent.models
        )
        self.attempts = Attempts(model_calls(context), replays=data.replay)
        self._prompts = StoredPrompts()
        self._end = SessionEnd(context.token)
        parent_work = None
        if parent is not None:
            parent_work = parent._work, parent._context.path.call(CHILD, self.key.run_id)
        self._work: SessionWork = SessionWork(self.key.run_id, context.calls.activity, parent_work)
        if self._is_continued:
            self.start_next_attempt()  # a standing key opens no attempts

    @property
    def is_continued(self) -> bool:
        """Whether another run continues this one after its end: it was opened by a standing key."""
        return self._is_continued

    @property
    def scope(self) -> Scope:
        """The budget of the calls."""
        return self._context.scope

    @property
    def accounts(self) -> tuple[str, ...]:
        """Names of the accounts above the run, in which its calls reserve."""
        accounts = self._context.calls.accounts
        return () if accounts is None else accounts.names

    @property
    def depth(self) -> int:
        """Number of the run's ancestors."""
        return self._work.depth

    @property
    def stop(self) -> Stop | None:
        """The stop of the run, or the limit that it has reached; None if it may continue."""
        return self._end.stop

    @property
    def is_open(self) -> bool:
        """Whether calls can be made: the step has no stop and has not ended."""
        return self._end.is_open

    @property
    def is_leaving(self) -> bool:
        """Whether no call can start any more, because another process owns the run or will own it.

        The process shuts down, or has lost the run.
        """
        return self._work.is_held or isinstance(self._context.token.stop, HandOver)

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
        self._work.touch()

    def require_open(self) -> None:
        """Raise RunEndedError if no calls can be made."""
        if not self.is_open:
            is_continued = self._is_continued and self.stop is None
            raise RunEndedError(HandOver("Another run continues.") if is_continued else self.stop)

    async def begin_call(self, key: AttemptKey | None) -> None:
        """Note that the client makes a call; the first one of an attempt starts the replay again.

        ``key`` is None for the code of a step, which has no attempts.

        Raises:
            RunEndedError: the run ended while the body of the request arrived.
            SupersededError: a later attempt was opened since then.
        """
        if key is not None:
            await self.attempts.use(key, self.start_attempt)
        self.require_open()

    def start_attempt(self, attempt: int, *, first_use: bool) -> None:
        """Start an attempt, and the replay again; calls of an earlier attempt are cancelled.

        ``first_use`` is whether this is the attempt's first call.
        """
        replays = self.attempts.start(attempt, first_use=first_use)
        self.tools.opened(attempt, replays=replays)
        self._work.cancel(except_for=self.tools.running.keys())  # a tool may not be repeatable

    def start_next_attempt(self) -> None:
        """Note that the code of the step is executed, from its start, with the recorded replies."""
        latest = max((call.attempt for call in self.attempts.calls.every), default=0)
        self.start_attempt(latest + 1, first_use=True)

    async def call(
        self, call_request: GatewayRequest, key: AttemptKey | None, **repetition: Any
    ) -> PendingReply:
        """Begin a call and return its reply; ``repetition`` as for :meth:`answer`.

        Raises:
            RunEndedError: the run ended while the body of the request arrived.
            SupersededError: a later attempt was opened since then.
        """
        await self.begin_call(key)
        return self.answer(call_request, **repetition)

    def answer(
        self,
        call_request: GatewayRequest,
        *,
        call_key: str | None,
        is_retry: bool,
        lane: str = "",
        replays: bool = True,
    ) -> PendingReply:
        """Start to answer a request, or join it to the one that it repeats.

        ``lane`` separates parallel branches of the client. ``replays`` is False if the request must
        not get a recorded reply.

        It joins a request with the same ``call_key``. Without a key, it joins an equal request if
        the client marks it with ``is_retry``, or if the connection of that one was closed. Two open
        requests with equal content are two calls.
        """
        self.touch()
        digest = call_request.digest(self.key.tenant)
        if (joined := self.attempts.joined(digest, call_key, is_retry=is_retry)) is not None:
            return joined
        diverged = partial(self._emit_divergence, lane, call_request.body)
        entry = self.attempts.calls.call_for(digest, lane, replays=replays, diverged=diverged)
        reply = PendingReply(digest, call_key)
        work = self._relayed(self._call(call_request, entry, reply), reply.relay)
        reply.task = self._start(work, self._context.path.call("llm", entry.key))
        self.attempts.add(reply)
        return reply

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

    async def _call(
        self, call_request: GatewayRequest, entry: RecordedCall, reply: PendingReply
    ) -> None:
        """Make a client's call, or replay it; its reply goes to the relay of ``reply``.

        Raises:
            CallFailedError: every attempt failed, and no part of a reply was passed on.
            Stop: a limit or a cancel request refused or interrupted the call.
        """
        relay = reply.relay
        self._end.check()
        if entry.answered is None:
            entry.answered = await self._finish_durably(self._perform(call_request, entry, reply))
            value = entry.answered.value
            entry.is_complete = is_recorded(value[WIRE])
            if objects := value[WIRE].get(OBJECTS):
                tokens = value["tokens_in"] + value["tokens_out"]
                await self._context.service(ProviderObjects).record(self.key, objects, tokens)
        self.tools.note_requested(entry.answered, entry)
        if not relay.is_taken:  # it was recorded earlier
            about = {"replayed_in": self.attempts.current}
            self._context.run.trace.annotate(entry.answered.node_id, about)
            recorded = entry.answered.value
            if VECTORS in recorded[WIRE]:
                head = await asyncio.to_thread(replayed, recorded)
            else:
                head = restored(recorded[WIRE])
            relay.begin(head)
            relay.write(head.content or b"")

    async def _perform(
        self, call_request: GatewayRequest, entry: RecordedCall, reply: PendingReply
    ) -> Answered:
        """Report the tools whose results a request contains, and make its call.

        Raises:
            CallFailedError: every attempt failed, and no part of a reply was passed on.
            Stop: a limit or a cancel request refused or interrupted the call.
        """
        await self.tools.report(call_request.body.results)
        root = self._context.path.call("llm", entry.key).text
        stored, note_stored = self._prompts.continued(call_request.body, entry, root)
        answered = await self._context.service(ModelGateway).relay(
            self._context,
            call_request.model,
            call_request.body,
            alias=call_request.alias,
            key=entry.key,
            made_in={"attempt": entry.attempt, "lane": entry.lane, "content": entry.content},
            stored=stored,
            request_hash=reply.digest,
            relay=reply.relay,
            **call_request.call_fields,
            is_superseded=lambda: entry.attempt < self.attempts.newest,
        )
        note_stored()
        return answered

    async def preview(
        self, call_request: GatewayRequest, limits: Sequence[AccountLimit]
    ) -> Preview:
        """Return the reservation that a call would make now; nothing stays reserved.

        ``limits`` are those of the accounts above the run.

        Raises:
            RunEndedError: the run has ended.
            Stop: the call would be refused because its price is unknown, or the run has reached a
                limit.
        """
        self.require_open()
        self._end.check()
        call = await self._context.service(ModelGateway).relayed(
            self._context,
            call_request.model,
            call_request.body,
            alias=call_request.alias,
            key="preview",
            made_in={},
            request_hash="",
            relay=Relay(),
            **call_request.call_fields,
        )
        if call.refusal is not None:
            raise call.refusal
        accounts = self._context.calls.accounts
        cached = None if accounts is None else accounts.free_amounts()
        shown = preview(call, self.scope, cached, limits)
        if shown.refusal is None:
            return shown
        return replace(shown, refusal=explained(shown.refusal, call))

    async def _finish_durably(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of work; make it durable before the client receives it.

        Raises:
            Stop: a limit or a cancel request refused or interrupted the work.
        """
        try:
            result = await work
        except Stop as stop:
            if stop.is_limit:
                self._end.reach(stop)
            raise
        # A reply that the client has received whole must not be lost with this process.
        await self._context.calls.journal.barrier(external=True)
        return result

    def _start(self, work: Coroutine[Any, Any, T], path: StepPath) -> "asyncio.Task[T]":
        """Work for the client in a task; a reached limit ends the run after the last task."""
        return self._work.start(work, path, self._end.halt_if_reached)

    def call_tool(
        self, offer: ToolOffer, name: str, args: Mapping[str, Any]
    ) -> "tuple[RecordedCall, asyncio.Task[ToolResult]]":
        """Call a tool, or join the call of an equal request; return the call and its task."""
        self.touch()
        call = self.tools.call_for(name, args)
        if call.answered is None:
            work = self._finish_durably(self.tools.result(offer, call, name, args))
            call.answered = self._start(work, self.tools.path_of(call))
            call.is_complete = True
            self.tools.note_start(call)
        return call, call.answered

    def count_tokens(
        self, model: ChatModel, body: ClientBody, headers: Mapping[str, str], path: str
    ) -> "asyncio.Task[Head]":
        """Let the provider count the tokens of a body in a task; this is an API call of the run.

        The task raises:
            Stop: a limit or a cancel request refused the call.
            CallFailedError: the provider did not reply.
        """
        self.touch()
        attempt = self.attempts.current
        call = self._context.service(ModelGateway).token_count(
            self._context,
            model,
            key=secrets.token_hex(16),
            body=body.document,
            headers=headers,
            path=path,
            is_superseded=lambda: attempt < self.attempts.newest,
        )

        async def counted() -> Head:
            await self.perform(call)
            return cast("Head", call.reply)

        return self._start(counted(), call.key)

    async def perform(self, call: Call) -> Answered:
        """Make a call of the step, or replay it; a limit that it reaches ends the step.

        Raises:
            CallFailedError: the call failed, and its retries are exhausted or it is not retryable.
            OutcomeUnknownError: an earlier attempt may have taken effect and must not be repeated.
            Stop: a limit or a cancel request refused or interrupted the call.
        """
        parent = self._context.trace_parent
        return await self._finish_durably(
            self._context.calls.perform(call, parent=parent, scope=self.scope)
        )

    async def adopt(self, run_id: str) -> None:
        """Record durably, and once, that a run is a child of this one."""
        calls = self._context.calls
        if run_id not in self._children:
            self._children.add(run_id)
            call = child_run(self._context, run_id)
            await calls.perform(call, parent=self._context.trace_parent, scope=self.scope)
        await calls.journal.barrier(external=True)

    def finish(self, output: Any, error: Exception | None = None) -> None:
        """End the run with an output or an error; calls in flight are cancelled."""
        self._end.report(output, error)

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after the client has finished the run or a limit has ended it."""
        self._end.on_end(callback)

    async def wait(self) -> Mapping[str, Any]:
        """Wait until the client finishes the run; return its result.

        Raises:
            Stop: a limit was reached, or the client sent nothing for too long.
            RecordedFailureError: the client reported an error.
        """
        try:
            async with self._work.waits(self._context.path.call("client")):
                report = await self._end.wait(
                    self._work, self._idle_seconds, completes=self._is_continued
                )
        finally:
            await self.close()
        if report.error is not None:
            raise report.error
        recorded = (self.attempts.calls, self.tools.calls)
        return {
            "output": report.output,
            "replayed_calls": sum(each.replayed for each in recorded),
            "unused_calls": sum(each.unused for each in recorded),
        }

    async def close(self) -> None:
        """Refuse further calls, cancel those in flight, and wait for their ends."""
        self._end.close()
        await self._work.close(self._context.run.grace_seconds)

    def _emit_divergence(self, lane: str, body: ClientBody) -> None:
        """Emit an event, once in each attempt."""
        events = self._context.run.events
        if events is not None and (data := self.attempts.divergence(lane, body)) is not None:
            events.emit(Event(type=REPLAY_DIVERGED, step_id=self._context.node_id, data=data))
