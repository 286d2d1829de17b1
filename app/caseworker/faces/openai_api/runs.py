"""Runs behind requests of OpenAI's API: they are accepted, followed, and cancelled."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final

from fastapi import Request, Response
from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from caseworker.faces.openai_api.bodies import METADATA_KEY, AgentCall, unknown_agent
from caseworker.features.definitions.definitions import Definitions
from caseworker.features.definitions.registration import DefinitionNotFoundError
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
from caseworker.runs.run import DefinitionRef, EventRecord, Run, RunKey, RunKind
from caseworker.runs.service import RunService

WAIT_SECONDS: Final = 60.0
"""Longest wait for a run before the key of the client is checked again."""
RETRY_SECONDS: Final = 1.0
"""Interval between attempts to follow a run while the database is unavailable."""
SILENT_SECONDS: Final = 15.0
"""Seconds without an event after which a stream sends a comment."""
DISCONNECTED: Final = "The client disconnected."

Frames = Callable[[Iterable[EventRecord], Run | None], bytes]
"""Returns the encoded events of a stream for events of a run. The run is passed once it has
ended."""


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
        raise ProblemError(INVALID_REQUEST, violations=violations_of(errors)) from None
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
    lift_deadline(request.scope)
    waiting = asyncio.ensure_future(_ended(request, run))
    try:
        return await while_connected(request, waiting)
    except ClientDisconnect:
        abandon(request, run.key)
        raise
    finally:
        waiting.cancel()


async def _ended(request: ApiRequest, run: Run) -> Run:
    runs = request.service(RunService)
    while not run.finished:
        try:
            current = await runs.wait(run.key, seconds=WAIT_SECONDS)
            await request.require_still(KeyScope.READ)
            run = current
        except StoreUnavailableError:
            await asyncio.sleep(RETRY_SECONDS)
        if runs.is_closing and not run.finished:
            raise RefusedError(_closing(run.key))
    return run


def abandon(request: ApiRequest, key: RunKey) -> None:
    """Cancel a run whose client has disconnected."""
    request.service(RunService).abandon(key, by=request.caller.name, reason=DISCONNECTED)


def _closing(key: RunKey) -> Refusal:
    message = f"The service is restarting. The run {key.run_id} continues: GET /runs/{key.run_id}."
    return Refusal(status=503, code="unavailable", message=message)


class ReplyStream(Response):
    """Streams the answer of a run; if its client disconnects, the run is cancelled or continues."""

    media_type = "text/event-stream"

    def __init__(
        self, request: ApiRequest, key: RunKey, frames: Frames, dialect: Dialect, *, abandons: bool
    ) -> None:
        """``abandons`` is whether the run is cancelled when the client disconnects."""
        super().__init__(headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._request = request
        self._key = key
        self._frames = frames
        self._dialect = dialect
        self._abandons = abandons

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        sending = asyncio.ensure_future(self._send(send))
        try:
            await while_connected(Request(scope, receive), sending)
        except (ClientDisconnect, OSError):
            if self._abandons:
                abandon(self._request, self._key)
            raise ClientDisconnect from None
        finally:
            sending.cancel()

    async def _send(self, send: Send) -> None:
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        clock = asyncio.get_running_loop().time
        spoke_at = clock()
        async with aclosing(self._parts()) as parts:
            async for part in parts:
                if not part and clock() - spoke_at >= SILENT_SECONDS:
                    part = b": keep-alive\n\n"
                if part:
                    spoke_at = clock()
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _parts(self) -> AsyncGenerator[bytes]:
        """Yield parts of the stream until the run has ended; b"" after a silence.

        The stream outlives a database outage, because most clients cannot resume it.
        """
        request, key, number, after = self._request, self._key, 0, 0
        runs, refusal = request.service(RunService), None
        while refusal is None:
            try:
                async with aclosing(runs.follow(key, after=after)) as batches:
                    async for batch in batches:
                        await request.require_still(KeyScope.READ)
                        run = await runs.get(key) if batch.is_last else None
                        yield self._frames(batch.events, run)
                        number, after = number + 1, batch.until
                        if batch.is_last:
                            return
                refusal = _closing(key)
            except StoreUnavailableError:
                yield b""
                await asyncio.sleep(RETRY_SECONDS)
            except (RunNotFoundError, AccessRefusedError) as error:
                refusal = of_problem(request.problem_of(error))
            except ProblemError as error:
                refusal = of_problem(error)
        yield self._dialect.error_event(refusal, number)


async def enter_stream(request: ApiRequest) -> None:
    """Acquire the slot of a stream.

    Raises:
        ProblemError: all are in use.
    """
    await request.service(EventStreams).enter(request.caller.tenant, request.scope)
