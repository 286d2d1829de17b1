"""Runs behind requests of OpenAI's API: they are accepted, followed, and cancelled."""

import asyncio
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from fastapi import Request, Response
from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from caseworker.engine.events import REQUIRED_ACTION
from caseworker.engine.waiting_calls import Author
from caseworker.faces.openai_api.bodies import METADATA_KEY, AgentCall, unknown_agent
from caseworker.faces.openai_api.transcript import Transcript
from caseworker.features.definitions.definitions import Definitions
from caseworker.features.definitions.registration import DefinitionNotFoundError
from caseworker.features.waiting_calls.waiting_calls import Approval, RunWaitingCalls
from caseworker.gateway.dialects.dialect import Dialect
from caseworker.gateway.refusals import Refusal, RefusedError, of_problem
from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.caller import AccessRefusedError, KeyScope
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.http.deadline import lift_deadline
from caseworker.platform.http.forwarding import while_connected
from caseworker.platform.http.problems import (
    INVALID_REQUEST,
    ProblemError,
    violations_of,
)
from caseworker.platform.http.request import ApiRequest
from caseworker.runs.errors import GraphRefusedError, RunNotFoundError
from caseworker.runs.http.body import idempotency_key
from caseworker.runs.http.events import EventStreams
from caseworker.runs.http.kinds import Admissions, body_of_kind
from caseworker.runs.run import DefinitionRef, EventRecord, Run, RunKey, RunKind, RunStatus
from caseworker.runs.service import RunService

WAIT_SECONDS: Final = 60.0
"""Longest wait for a run before the key of the client is checked again."""
SILENT_SECONDS: Final = 15.0
"""Seconds without an event after which a stream sends a comment."""
DISCONNECTED: Final = "The client disconnected."

LOOK_SECONDS: Final = (0.02, 0.5)
"""First and longest interval at which a run is read that is about to wait for its client."""

_TOOL: Final = re.compile(r"client_tools\.([0-9]+)\.")
"""Beginning of the name of a field in a tool of the client."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Step:
    """New events of a run, and its state if it has ended or waits for its client."""

    events: Sequence[EventRecord]
    run: Run | None = None
    """The run, if a request for it ends now."""
    calls: Sequence[Approval] = ()
    """The calls for which it waits."""


async def accept(
    request: ApiRequest,
    call: AgentCall,
    *,
    earlier: Iterable[Mapping[str, str]] = (),
    appends_system: bool,
    about: Mapping[str, Any],
) -> Run:
    """Accept the run of a request; see :meth:`AgentCall.run_body`.

    Raises:
        RefusedError: no such agent is registered.
        ProblemError: the body is invalid for this service, or a quota refuses the run.
    """
    document = call.run_body(tuple(earlier), appends_system=appends_system, about=about)
    key = idempotency_key(request.headers)
    try:
        body = await request.computed(partial(body_of_kind, document))
        new = await request.service(Admissions).new_run(body, request, idempotency_key=key)
        return (await request.service(RunService).accept(new)).run
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        violations = [
            replace(each, field=_TOOL.sub(r"tools[\1].function.", each.field))
            for each in violations_of(errors)
        ]
        raise ProblemError(INVALID_REQUEST, violations=violations) from None
    except GraphRefusedError:
        await require_agent(request, call.agent)
        raise


async def require_agent(request: ApiRequest, agent: Mapping[str, Any]) -> str:
    """Return the name of a registered agent as a model.

    Raises:
        RefusedError: it is not registered.
    """
    ref = DefinitionRef(agent["name"], agent.get("version"), DefinitionKind.AGENT)
    name = ref.name if ref.version is None else f"{ref.name}@{ref.version}"
    try:
        await request.service(Definitions).get(request.caller.tenant, ref)
    except DefinitionNotFoundError:
        raise unknown_agent(name) from None
    return name


def is_of_api(run: Run) -> bool:
    """Return whether a run answers as a response: every run of an agent does."""
    return run.kind is RunKind.AGENT


def about_of(run: Run) -> Mapping[str, Any]:
    """Return the fields of a run's metadata that this API has stored."""
    about = run.metadata.get(METADATA_KEY)
    return about if isinstance(about, Mapping) else {}


async def ended(request: ApiRequest, run: Run) -> Run:
    """Wait until a run has ended; cancel it if the client disconnects.

    Raises:
        ClientDisconnect: the client is gone.
        RefusedError: this process shuts down; the run continues.
    """
    return await _while_connected(request, run.key, _ended(request, run))


async def answered(
    request: ApiRequest, key: RunKey, transcript: Transcript, *, after: int
) -> tuple[Run, Sequence[Approval]]:
    """Wait until a run has ended or waits for its client; cancel it if the client disconnects.

    ``transcript`` reads the events after the sequence number ``after``. Returns the run, and the
    calls that it waits for.

    Raises:
        ClientDisconnect: the client is gone.
        RefusedError: this process shuts down; the run continues.
    """
    return await _while_connected(request, key, _answered(request, key, transcript, after))


async def _answered(
    request: ApiRequest, key: RunKey, transcript: Transcript, after: int
) -> tuple[Run, Sequence[Approval]]:
    async for step in steps(request, key, after=after, asks_client=True):
        for _ in transcript.read(step.events):
            pass
        if (run := step.run) is not None:
            for _ in () if step.calls else transcript.finish(run):
                pass
            return run, step.calls
    raise RefusedError(_closing(key))


async def _while_connected(
    request: ApiRequest, key: RunKey, work: Coroutine[Any, Any, Result]
) -> Result:
    lift_deadline(request.scope)
    waiting = asyncio.ensure_future(work)
    try:
        return await while_connected(request, waiting)
    except ClientDisconnect:
        await abandon(request, key)
        raise
    finally:
        waiting.cancel()


async def _ended(request: ApiRequest, run: Run) -> Run:
    runs = request.service(RunService)
    while not run.finished:
        run = await runs.wait(run.key, seconds=WAIT_SECONDS)
        await request.require_still(KeyScope.READ)
        if runs.is_closing and not run.finished:
            raise RefusedError(_closing(run.key))
    return run


async def abandon(request: ApiRequest, key: RunKey) -> None:
    """Cancel a run whose client has disconnected."""
    runs = request.service(RunService)
    if not runs.is_closing:
        await runs.cancel(key, by=request.caller.name, reason=DISCONNECTED)


def _closing(key: RunKey) -> Refusal:
    message = f"The service is restarting. The run {key.run_id} continues: GET /runs/{key.run_id}."
    return Refusal(status=503, code="unavailable", message=message)


async def steps(
    request: ApiRequest, key: RunKey, *, after: int, asks_client: bool
) -> AsyncGenerator[Step, None]:
    """Yield the progress of a run until it has ended.

    With ``asks_client``, the steps also end when it waits for its client. Steps without events are
    yielded while there are none. The steps end early if this process shuts down.
    """
    runs = request.service(RunService)
    async with aclosing(runs.follow(key, after=after)) as batches:
        async for batch in batches:
            await request.require_still(KeyScope.READ)
            step = Step(batch.events, await runs.get(key) if batch.is_last else None)
            asks = any(each.type == REQUIRED_ACTION for each in batch.events)
            if asks_client and asks and step.run is None:
                step = replace(await _waiting(request, key), events=batch.events)
            yield step
            if step.run is not None:
                return


async def _waiting(request: ApiRequest, key: RunKey) -> Step:
    """Return the run once it waits for its client alone; an empty step if it does not."""
    runs, (delay, longest) = request.service(RunService), LOOK_SECONDS
    while True:
        calls = [each for each in await calls_of_client(request, key) if each.open]
        run = await runs.get(key)
        if run.finished or not calls:
            return Step(())
        if run.status is RunStatus.WAITING:
            return Step((), run, calls)
        await asyncio.sleep(delay)
        delay = min(2 * delay, longest)


async def calls_of_client(request: ApiRequest, key: RunKey) -> list[Approval]:
    """Return the calls of a run that its client answers, oldest first."""
    calls = await request.service(RunWaitingCalls).of_run(key)
    return [each for each in calls if each.question.author is Author.CLIENT]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSource:
    """The events of a run, encoded as those of an API."""

    request: ApiRequest
    key: RunKey
    frames: Callable[[Step], bytes]
    """Returns the encoded events of a stream for a step of the run."""
    dialect: Dialect
    after: int = 0
    """Sequence number of the event of the run after which the stream begins."""
    asks_client: bool = False
    """Whether the stream ends if the run waits for its client."""

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield parts of the stream until the run has ended; b"" after a silence."""
        request, number = self.request, 0
        try:
            progress = steps(request, self.key, after=self.after, asks_client=self.asks_client)
            async with aclosing(progress):
                async for step in progress:
                    yield self.frames(step)
                    number += 1
                    if step.run is not None:
                        return
            refusal = _closing(self.key)
        except (StoreUnavailableError, RunNotFoundError, AccessRefusedError) as error:
            refusal = of_problem(request.problem_of(error))
        yield self.dialect.error_event(refusal, number)


class ReplyStream(Response):
    """Streams the answer of a run; if its client disconnects, the run is cancelled or continues."""

    media_type = "text/event-stream"

    def __init__(self, source: FrameSource, *, abandons: bool) -> None:
        """``abandons`` is whether the run is cancelled when the client disconnects."""
        super().__init__(headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._source = source
        self._abandons = abandons

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        sending = asyncio.ensure_future(self._send(send))
        try:
            await while_connected(Request(scope, receive), sending)
        except (ClientDisconnect, OSError):
            if self._abandons:
                await abandon(self._source.request, self._source.key)
            raise ClientDisconnect from None
        finally:
            sending.cancel()

    async def _send(self, send: Send) -> None:
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        clock = asyncio.get_running_loop().time
        spoke_at = clock()
        async with aclosing(self._source.parts()) as parts:  # type: ignore[type-var]
            async for part in parts:
                if not part and clock() - spoke_at >= SILENT_SECONDS:
                    part = b": keep-alive\n\n"
                if part:
                    spoke_at = clock()
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def enter_stream(request: ApiRequest) -> None:
    """Acquire the slot of a stream.

    Raises:
        ProblemError: all are in use.
    """
    await request.service(EventStreams).enter(request.caller.tenant, request.scope)
