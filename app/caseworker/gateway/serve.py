"""The gateway: the way of a model call from its request to its reply.

The key of a request identifies a run and an attempt. The body of the request is admitted. Then the
session of the run replays a recorded reply, joins a call in flight, or makes a call, which is
reserved, journaled and settled like every call of the run. The reply is relayed while it arrives.
The call continues if its client disconnects, so that its reply is recorded and not paid twice.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any, Final, cast

from fastapi import Request, Response
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import ASGIApp

from caseworker.core.budget.stops import Stop
from caseworker.engine.call import CallFailedError
from caseworker.features.external.attempts import PendingReply, SupersededError
from caseworker.features.external.client_requests import (
    ON_REFUSAL,
    VALUES,
    AnsweredError,
    content_of,
)
from caseworker.features.external.clients import Clients
from caseworker.features.external.end import RunEndedError
from caseworker.features.external.key_sessions import (
    RUN_SCOPE,
    SessionRefusedError,
    UnknownKeyError,
)
from caseworker.features.external.session import GatewaySession
from caseworker.gateway.admission import (
    CallAdmission,
    ClientRequest,
    document_of,
    model_of,
    passed_on,
    unknown_model,
)
from caseworker.gateway.dialects.dialect import Dialect
from caseworker.gateway.dialects.mcp import MCP
from caseworker.gateway.dialects.offered import DIALECTS
from caseworker.gateway.refusals import (
    RELEASED,
    SUPERSEDED,
    Refusal,
    RefusedError,
    of_problem,
    provider_failed,
    refusal_of,
)
from caseworker.gateway.reservation import reservation
from caseworker.models.fields.table import RefusedBodyError
from caseworker.models.relay import Head
from caseworker.models.relayed_call import SUPERSEDED as NOT_NEWEST
from caseworker.models.relayed_call import is_success
from caseworker.models.run_models import UnknownModelError, WrongDialectError
from caseworker.platform.caller import REMOTE
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.http.deadline import DEADLINE
from caseworker.platform.http.forwarding import while_connected
from caseworker.platform.http.problems import UNAVAILABLE, ProblemError
from caseworker.platform.http.request import (
    ApiRequest,
    HttpContext,
)

MAX_LANE_CHARS: Final = 100

_UNKNOWN_KEY: Final = (
    "The key is unknown, expired or revoked. POST /runs with kind external returns a key, and POST "
    "/keys with kind agent creates one. The base URL for all other keys ends with /v1: they reach "
    "agents."
)
_ONE_RUN: Final = (
    "This is a ceiling of the service for one run (admission.max_*), not a budget of the key. The "
    "next call of the session opens another run."
)
_UNKNOWN_PATH: Final = "The gateway does not offer this path. It offers: {}."
_NO_WEBSOCKET: Final = "The gateway has no WebSockets. Send the request with POST."


_Interruption = Stop | CallFailedError | asyncio.CancelledError


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """Makes the model calls of agents outside of the service, and of code in its steps."""

    clients: Clients
    admission: CallAdmission
    linger_seconds: float
    """Seconds for which a call continues after its client has disconnected, so that its reply is
    recorded."""
    max_body_bytes: int

    async def serve(self, request: ApiRequest, dialect: Dialect) -> Response:
        """Answer a request for a model call."""
        client = await self.clients.identify(request)
        client_request = await _client_request(request, dialect)
        call_request = await self.admission.request(client.session, client_request)
        repetition = _repetition(request.headers)
        reply = await client.session.call(call_request, client.key, **repetition)
        return await relayed(
            request, dialect, client.session, reply, linger_seconds=self.linger_seconds
        )

    async def reply_to_step(
        self, session: GatewaySession, path: str, headers: Mapping[str, str], content: bytes
    ) -> tuple[int, Mapping[str, str], bytes | AsyncIterator[bytes]]:
        """Answer a request of the code of a step of this process, without a socket.

        Returns status, headers and body, which is an iterator for a stream. ``path`` is the path of
        an API below any base URL.
        """
        matches = ((each, match) for each in DIALECTS if (match := each.match(path)) is not None)
        dialect, match = next(matches, (DIALECTS[0], None))

        async def answer() -> Response:
            if match is None:
                return await refuse_path(self, None, dialect)
            client_request = ClientRequest(
                dialect=dialect,
                headers=headers,
                document=partial(dialect.document, content, json.loads),
                size_bytes=len(content),
                path_model=match.groupdict().get("model"),
            )
            call_request = await self.admission.request(session, client_request)
            reply = await session.call(call_request, None, **_repetition(headers))
            return await relayed(None, dialect, session, reply, linger_seconds=0)

        response = cast("Response", await shaped(answer(), dialect))
        if isinstance(response, StreamingResponse):
            parts = cast("AsyncIterator[bytes]", response.body_iterator)
            return response.status_code, response.headers, parts
        return response.status_code, response.headers, bytes(response.body)

    async def reserve(self, request: ApiRequest, dialect: Dialect) -> Response:
        """Answer with the reservation that a call would make; nothing is stored."""
        client = await self.clients.identify(request, drafts=True)
        session, client_request = client.session, await _client_request(request, dialect)
        call_request = await self.admission.request(session, client_request)
        limits = await self.clients.standing_keys.limits(session)
        try:
            preview = await session.preview(call_request, limits)
        except Stop as stop:
            raise RefusedError(_refusal(session, stop)) from None
        refusal = None
        if (error := client.refusal or preview.refusal) is not None:
            refusal = _refusal(session, error) if isinstance(error, Stop) else _refusal_in(error)
        run_id = None if session.is_draft else session.key.run_id
        view = reservation(run_id, call_request, preview, refusal, session.scope, limits)
        return JSONResponse(view.model_dump(mode="json"))

    async def count_tokens(self, request: ApiRequest, dialect: Dialect) -> Response:
        """Let the provider count the tokens of a body; this counts as an API call of the run.

        Raises:
            RefusedError: the call failed or was cancelled, or the run stopped.
        """
        client = await self.clients.identify(request)
        session, client_request = client.session, await _client_request(request, dialect)
        body = await self.admission.body(session, client_request)
        _, model = model_of(session, body.document["model"], dialect)
        await session.begin_call(client.key)
        counting = session.count_tokens(model, body, passed_on(request.headers), dialect.count_path)
        try:
            await asyncio.wait((counting,))
        finally:
            counting.cancel()
        try:
            return _passed_back(dialect, counting.result())
        except (Stop, CallFailedError, asyncio.CancelledError) as error:
            raise RefusedError(_refusal(session, error)) from None

    async def models(self, request: ApiRequest, dialect: Dialect) -> Response:
        """List the names of models that the run may call with an API, or return the named one."""
        models = await self.clients.models(request)
        if (name := request.path_params.get("name")) is None:
            return JSONResponse(dialect.models(models.names(dialect.provider)))
        try:
            models.model(name, dialect.provider)
        except (UnknownModelError, WrongDialectError):
            raise unknown_model(models, dialect) from None
        return JSONResponse(dialect.models([name])["data"][0])


def gateway_of(request: Request) -> Gateway:
    """Return the gateway of the process that received a request."""
    shared: HttpContext = request.app.state.shared
    return cast("Gateway", shared.services[Gateway])


async def _client_request(request: ApiRequest, dialect: Dialect) -> ClientRequest:
    """Receive the body of a request."""
    content = await content_of(request)
    return ClientRequest(
        dialect=dialect,
        headers=request.headers,
        document=partial(dialect.document, content, partial(document_of, request)),
        size_bytes=len(content),
        path_model=request.path_params.get("model"),
    )


def _repetition(headers: Mapping[str, str]) -> dict[str, Any]:
    """Return how a client marks repeated requests, as :meth:`GatewaySession.answer` takes it."""
    return {
        "call_key": headers.get("x-caseworker-call-key") or headers.get("idempotency-key"),
        "is_retry": headers.get("x-stainless-retry-count", "0") != "0",
        "lane": headers.get("x-caseworker-lane", "")[:MAX_LANE_CHARS],
        "replays": headers.get("x-caseworker-replay", "").lower() != "off",
    }


async def relayed(
    request: Request | None,
    dialect: Dialect,
    session: GatewaySession,
    reply: PendingReply,
    *,
    linger_seconds: float,
) -> Response:
    """Return the reply once its head has arrived; the call continues if the client disconnects.

    ``request`` is None for a client in this process, which disconnects by cancelling this task.

    Raises:
        RefusedError: the call failed before a reply arrived, or the run stopped.
    """
    head = reply.relay.head
    try:
        if request is None:
            await asyncio.wait((head,))
        else:
            await while_connected(request, head)
        reply_head = head.result()
    except (Stop, CallFailedError, asyncio.CancelledError) as error:
        if not head.done():  # this task was cancelled
            raise
        session.attempts.delivered(reply)
        if isinstance(error, CallFailedError) and reply.relay.refused is not None:
            return _passed_back(dialect, reply.relay.refused)
        raise RefusedError(_refusal(session, error)) from None
    finally:
        if not head.done():
            reply.leave(linger_seconds)
    if reply_head.content is not None:
        session.attempts.delivered(reply)
        return Response(reply_head.content, reply_head.status, dict(reply_head.headers))
    headers = {**reply_head.headers, "X-Accel-Buffering": "no"}
    parts = _stream(dialect, session, reply, linger_seconds)
    return StreamingResponse(parts, reply_head.status, headers)


async def _stream(
    dialect: Dialect, session: GatewaySession, reply: PendingReply, linger_seconds: float
) -> AsyncIterator[bytes]:
    """Yield the parts of a streamed reply; end an interrupted one with an error event."""
    is_whole, number = False, 0
    try:
        async for part in reply.relay.parts():
            yield part
            number += 1
        is_whole = True
    except (Stop, CallFailedError, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and not reply.task.done():
            raise  # this client is gone
        if not (isinstance(error, CallFailedError) and reply.relay.reports_failure):
            yield dialect.error_event(_refusal(session, error), number)
    finally:
        # After a complete or failed reply, no request joins it any more: a retry is another call.
        # An unfinished reply goes on for ``linger_seconds``, so that a retry joins it and the call
        # is not paid twice.
        if is_whole or reply.relay.failed:
            session.attempts.delivered(reply)
        else:
            reply.leave(linger_seconds)


def _refusal(session: GatewaySession, error: _Interruption) -> Refusal:
    """Return the refusal for a call that failed, or that its run or attempt has ended."""
    match error:
        case Stop():
            return _refusal_by_limit(session, error)
        case CallFailedError() if error.error_class != NOT_NEWEST:
            return provider_failed(str(error))
        case asyncio.CancelledError() if not session.is_open:
            return refusal_of(session.stop)
    return SUPERSEDED


def _refusal_by_limit(session: GatewaySession, stop: Stop) -> Refusal:
    """Return the refusal for a stop; say so if it ends only one run of a standing key's session."""
    refusal = refusal_of(stop)
    if session.is_continued and stop.is_limit and stop.cause.scope == RUN_SCOPE:
        return replace(refusal, message=f"{refusal.message}. {_ONE_RUN}")
    return refusal


def _passed_back(dialect: Dialect, head: Head) -> Response:
    """Return a whole reply; hide one about the service's own key or URL, or of no known status."""
    if head.status in (401, 403) or 300 <= head.status < 400:
        message = f"The provider refused the request of the service (HTTP {head.status})."
        return refused(provider_failed(message), dialect)
    if not (is_success(head.status) or 400 <= head.status < 600):
        message = f"The status of the provider's reply is unknown (HTTP {head.status})."
        return refused(provider_failed(message), dialect)
    return Response(head.content, head.status, dict(head.headers))


def in_shape(
    answer: Callable[[Gateway, ApiRequest, Dialect], Awaitable[ASGIApp]], dialect: Dialect
) -> Callable[[Request], Awaitable[ASGIApp]]:
    """Return a route function whose errors have the form of a dialect."""

    async def answered(request: Request) -> ASGIApp:
        if (deadline := request.scope.get(DEADLINE)) is not None:
            deadline.form = lambda problem: refused(of_problem(problem), dialect)
            deadline.extend()
        request.scope[VALUES] = dialect.value_bytes
        api_request, gateway = ApiRequest(request, REMOTE), gateway_of(request)
        limits = api_request.limits if dialect is MCP else gateway
        api_request.limits = replace(
            api_request.limits, max_body_bytes=limits.max_body_bytes, max_graph_bytes=0
        )
        owned_answer = owned(partial(answer, gateway, api_request, dialect))
        return await shaped(_counted(request, owned_answer), dialect)

    return answered


async def _counted(request: Request, answer: Awaitable[ASGIApp]) -> ASGIApp:
    """Await an answer; count the refusal of a call of a standing key."""
    try:
        return await answer
    except _ERRORS as error:
        status = _refusal_in(error).status
        if status < HTTPStatus.INTERNAL_SERVER_ERROR and ON_REFUSAL in request.scope:
            request.scope[ON_REFUSAL]()
        raise


async def owned(answer: Callable[[], Awaitable[ASGIApp]]) -> ASGIApp:
    """Answer a request; if the run is released before its call starts, by its next owner."""
    while True:
        try:
            return await answer()
        except (RefusedError, RunEndedError) as error:
            if _refusal_in(error) is not RELEASED:
                raise


async def shaped(answer: Awaitable[ASGIApp], dialect: Dialect) -> ASGIApp:
    """Await an answer; return its errors in the form of a dialect."""
    try:
        return await answer
    except AnsweredError as answered:
        return answered.response
    except _ERRORS as error:
        return refused(_refusal_in(error), dialect)


def _refusal_in(error: Exception) -> Refusal:
    """Return the refusal for an error."""
    match error:
        case RefusedError():
            return error.refusal
        case RunEndedError():
            return refusal_of(error.stop)
        case UnknownKeyError():
            return Refusal(status=401, code="invalid_api_key", message=_UNKNOWN_KEY)
        case RefusedBodyError():
            return Refusal(code=error.code, message=str(error), field=error.field)
        case SessionRefusedError():
            return Refusal(code=error.code, message=str(error), resets_at=error.resets_at)
        case ProblemError():
            return of_problem(error)
        case StoreUnavailableError():
            return of_problem(ProblemError(UNAVAILABLE))
    return SUPERSEDED


_ERRORS: Final = (
    *(RefusedError, RunEndedError, SupersededError, UnknownKeyError),
    *(RefusedBodyError, SessionRefusedError, ProblemError, StoreUnavailableError),
)


def refused(refusal: Refusal, dialect: Dialect) -> Response:
    """Return the response for a refusal, in the form of a dialect."""
    return JSONResponse(dialect.error(refusal), refusal.status, refusal.headers)


def refuse_websocket(request: Request) -> None:
    """Refuse a WebSocket, after which Codex sends its request with POST.

    Raises:
        RefusedError: with status 426, if the request opens a WebSocket.
    """
    if request.headers.get("upgrade", "").lower() == "websocket":
        raise RefusedError(Refusal(status=426, code="no_websocket", message=_NO_WEBSOCKET))


async def refuse_path(_: Gateway, request: Request | None, dialect: Dialect) -> Response:
    """Refuse a path that the gateway does not offer.

    Raises:
        RefusedError: always; with status 404, or 426 for a WebSocket.
    """
    if request is not None:
        refuse_websocket(request)
    same = [each for each in DIALECTS if each.base == dialect.base]
    paths = [path for each in same for path in (each.path, each.count_path, each.models_path)]
    offered = dict.fromkeys(dialect.base + path for path in paths if path)
    message = _UNKNOWN_PATH.format(", ".join(offered))
    raise RefusedError(Refusal(status=404, code="unknown_path", message=message))
