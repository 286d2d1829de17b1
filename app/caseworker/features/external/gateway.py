"""Routes of the gateway: the model calls and tool calls of external runs."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, Final, cast

from fastapi import Request, Response
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import ASGIApp, Message

from caseworker.core.budget.stops import HandOver, Stop
from caseworker.engine.call import CallFailedError
from caseworker.features.external.attempts import AttemptKey, PendingReply
from caseworker.features.external.dialects import (
    DIALECTS,
    MAX_VALUES,
    MCP,
    Dialect,
    references_in,
    require_known,
    require_readable,
    too_many_values,
)
from caseworker.features.external.owners import NOT_OWNED, Owners
from caseworker.features.external.postgres import AttemptState, sha256_of
from caseworker.features.external.refusals import (
    SUPERSEDED,
    Refusal,
    RefusedError,
    ended,
    of_problem,
    provider_failed,
)
from caseworker.features.external.run_models import UnknownModelError, WrongDialectError
from caseworker.features.external.session import (
    GatewayRequest,
    GatewaySession,
)
from caseworker.features.external.sessions import Sessions
from caseworker.features.external.step_keys import KEY_PREFIX
from caseworker.models.client_bodies import ClientBody, read_body
from caseworker.models.fields.provider_tools import limited_uses, priced_tools
from caseworker.models.fields.table import RefusedBodyError
from caseworker.models.gateway import BYTES_PER_CHAR
from caseworker.models.relay import SUPERSEDED as NOT_NEWEST
from caseworker.models.relay import Head, Relay, is_success
from caseworker.models.table import ChatModel
from caseworker.platform.caller import ANYBODY, InvalidCredentialError
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.fair_slots import TENANT
from caseworker.platform.http.bodies import has_more_values, is_unicode, memory_of
from caseworker.platform.http.deadline import DEADLINE
from caseworker.platform.http.forwarding import while_connected
from caseworker.platform.http.problems import UNAVAILABLE, ProblemError
from caseworker.platform.http.request import (
    IDENTIFIED,
    RELEASES,
    ApiRequest,
    HttpContext,
    LabelledRoute,
    shown_credential,
    shown_run_key,
    wait_connected,
)
from caseworker.runs.run import TERMINAL

PASSED_ON: Final = frozenset(
    {"accept", "user-agent", "anthropic-version", "anthropic-beta", "openai-beta"}
)
"""Headers of a client that the provider receives; the content type is always JSON."""
MAX_LANE_CHARS: Final = 100

_V1: Final = "/v1"
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_COUNTED: Final = "caseworker.counted"
"""ASGI scope key of a request whose body was counted."""
_UNKNOWN_KEY = "The key is unknown. POST /runs with kind external returns a key."
_UNKNOWN_MODEL = (
    "The run may not call a model of this name. It may call: {}. To map other names, create the "
    'run with "models": {{"NAME": "CONFIGURED"}} or `caseworker exec --model NAME=CONFIGURED`.'
)
_NO_MODEL = (
    "The run may not call a model of this name, and no model of the provider {} is available. "
    "The operator configures one, for example with MODELS_SMALL_BASE_URL and MODELS_SMALL_MODEL."
)
_RELEASED: Final = of_problem(ProblemError(NOT_OWNED))
"""Another process owns the run now, or will own it."""
_UNKNOWN_PATH = "The gateway does not offer this path. It offers: {}."

_Answer = Callable[[ApiRequest, Dialect], Awaitable[ASGIApp]]


class _AnsweredError(Exception):
    """Another process, which owns the run, has answered the request."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """Limits of the gateway."""

    linger_seconds: float
    """Seconds for which a call continues after its client has disconnected, so that its reply is
    recorded."""
    max_body_bytes: int


def _response(refusal: Refusal, dialect: Dialect) -> Response:
    return JSONResponse(dialect.error(refusal), refusal.status, refusal.headers)


def _in_shape(answer: _Answer, dialect: Dialect) -> Callable[[Request], Awaitable[ASGIApp]]:
    """Return a route function whose errors have the form of a dialect."""

    async def answered(request: Request) -> ASGIApp:
        if (deadline := request.scope.get(DEADLINE)) is not None:
            deadline.form = lambda problem: _response(of_problem(problem), dialect)
            deadline.extend()
        api_request = ApiRequest(request, ANYBODY)
        limits = api_request.limits if dialect is MCP else _limits(request)
        api_request.limits = replace(
            api_request.limits, max_body_bytes=limits.max_body_bytes, max_graph_bytes=0
        )
        return await _shaped(_owned(answer, api_request, dialect), dialect)

    return answered


async def _owned(answer: _Answer, request: ApiRequest, dialect: Dialect) -> ASGIApp:
    """Answer a request; if the run is released before its call starts, by its next owner."""
    while True:
        try:
            return await answer(request, dialect)
        except RefusedError as refused:
            if refused.refusal is not _RELEASED:
                raise


async def _shaped(answer: Awaitable[ASGIApp], dialect: Dialect) -> ASGIApp:
    """Await an answer; return its errors in the form of a dialect."""
    try:
        return await answer
    except _AnsweredError as answered:
        return answered.response
    except RefusedBodyError as refused:
        refusal = Refusal(code=refused.code, message=str(refused), field=refused.field)
    except ProblemError as problem:
        refusal = of_problem(problem)
    except StoreUnavailableError:
        refusal = of_problem(ProblemError(UNAVAILABLE))
    except RefusedError as refused:
        refusal = refused.refusal
    return _response(refusal, dialect)


async def reply_to(
    sessions: Sessions,
    session: GatewaySession,
    path: str,
    headers: Mapping[str, str],
    content: bytes,
) -> tuple[int, Mapping[str, str], bytes | AsyncIterator[bytes]]:
    """Make a model call of a step of this process, without a socket.

    Returns status, headers and body, which is an iterator for a stream. ``path`` is the path of an
    API below any base URL.
    """
    matching = next((each for each in DIALECTS if path.endswith(each.path.removeprefix(_V1))), None)
    dialect = matching or DIALECTS[0]

    async def answer() -> Response:
        if matching is None:
            return await _unknown(None, dialect)
        parsed = partial(json.loads, content)
        body = await _read(sessions, session, dialect, parsed, len(content))
        flight = _start(session, _request_of(session, dialect, body, headers), headers)
        return await _answered(None, dialect, session, flight, linger_seconds=0)

    reply = cast("Response", await _shaped(answer(), dialect))
    if isinstance(reply, StreamingResponse):
        return reply.status_code, reply.headers, cast("AsyncIterator[bytes]", reply.body_iterator)
    return reply.status_code, reply.headers, bytes(reply.body)


async def _called(request: ApiRequest, dialect: Dialect) -> Response:
    """Make a model call with the body of the request."""
    key, session = await _session_of(request)
    body = await _body_of(request, dialect, session)
    call_request = _request_of(session, dialect, body, request.headers)
    await _begin_attempt(key, session)
    flight = _start(session, call_request, request.headers)
    linger_seconds = _limits(request).linger_seconds
    return await _answered(request, dialect, session, flight, linger_seconds=linger_seconds)


def _request_of(
    session: GatewaySession, dialect: Dialect, body: ClientBody, headers: Mapping[str, str]
) -> GatewayRequest:
    """Return the request for a model call.

    In a run that limits its spending, the tools that the provider executes get a limit of uses.

    Raises:
        RefusedError: the run may not call the model, or not with this API.
        RefusedBodyError: the provider executes a tool that has no price.
    """
    alias, model = _model_of(session, body.document, dialect)
    if session.scope.limits_spending():
        document, uses_field = body.document, dialect.uses_field
        prices = model.provider_tools
        with _naming(session):
            tools = priced_tools(document, body.parts, prices, alias=alias, uses_field=uses_field)
        limited = limited_uses(document, tools, uses_field=uses_field)
        body = replace(body, document={**document, **limited}, provider_tools=tools)
    provider_body, hides_usage = dialect.provider_body(body.document)
    return GatewayRequest(
        path=dialect.path,
        alias=alias,
        model=model,
        body=body,
        provider_body={**provider_body, "model": model.model},
        hides_usage=hides_usage,
        limit_fields=dialect.limit_fields,
        headers=_passed_on(headers),
    )


def _start(
    session: GatewaySession, call_request: GatewayRequest, headers: Mapping[str, str]
) -> PendingReply:
    """Begin a model call, or join the one that the request repeats."""
    return session.answer(
        call_request,
        call_key=headers.get("x-caseworker-call-key") or headers.get("idempotency-key"),
        is_retry=headers.get("x-stainless-retry-count", "0") != "0",
        lane=headers.get("x-caseworker-lane", "")[:MAX_LANE_CHARS],
        replays=headers.get("x-caseworker-replay", "").lower() != "off",
    )


async def _begin_attempt(key: AttemptKey | None, session: GatewaySession) -> None:
    """Note that a client makes a call in an attempt; the first one starts the replay again.

    Raises:
        RefusedError: a later attempt was opened, or the run ended, while the body arrived.
    """
    if key is not None and not await session.use_key(key):
        raise RefusedError(SUPERSEDED)
    _require_open(session)


async def _used_tools(request: ApiRequest, _: Dialect) -> ASGIApp:
    """Answer a message of a client that lists or calls the tools of its run."""
    key, session = await _session_of(request)
    message = await request.json()
    session.touch()
    if isinstance(message, dict) and message.get("method") == "tools/call":
        await _begin_attempt(key, session)
    # Importing the SDK takes nearly a second.
    module = await asyncio.to_thread(import_module, "caseworker.features.external.mcp")
    server: ASGIApp = module.ToolServer(
        session,
        await request.body(),
        message,
        request.headers,
        partial(_repeated, request),
    )
    return server


async def _repeated(request: ApiRequest) -> bytes:
    """Have the next owner of a run answer a request for its tools; return the body of the reply."""
    shared: HttpContext = request.app.state.shared
    owners, parts = cast("Owners", shared.services[Owners]), list[bytes]()

    async def receive_part(message: Message) -> None:
        parts.append(message.get("body", b""))

    try:
        async with owners.runs.answering():
            reply = await _shaped(_owned(_used_tools, request, MCP), MCP)
            await reply(request.scope, request.receive, receive_part)
    except TimeoutError:  # this process ends
        return bytes(_response(_RELEASED, MCP).body)
    return b"".join(parts)


async def _counted(request: ApiRequest, dialect: Dialect) -> Response:
    """Let the provider count the tokens of a body; this counts as an API call of the run."""
    key, session = await _session_of(request)
    body = await _body_of(request, dialect, session)
    _, model = _model_of(session, body.document, dialect)
    await _begin_attempt(key, session)
    passed_on = _passed_on(request.headers)
    counting = session.count_tokens(model, body, passed_on, dialect.count_path)
    try:
        await asyncio.wait((counting,))
        if counting.cancelled():
            raise RefusedError(_interruption(session))
        head = counting.result()
    except Stop as stop:
        raise RefusedError(stopped(stop)) from None
    except CallFailedError as failed:
        raise RefusedError(_failure(failed)) from None
    finally:
        counting.cancel()
    return _passed_back(dialect, head)


async def _models(request: ApiRequest, dialect: Dialect) -> Response:
    """List the names of models that the run may call with this API, or return the named one."""
    _, session = await _session_of(request)
    if (name := request.path_params.get("name")) is None:
        return JSONResponse(dialect.models(session.models.names(dialect.provider)))
    try:
        session.models.model(name, dialect.provider)
    except (UnknownModelError, WrongDialectError):
        raise _unknown_model(session, dialect) from None
    return JSONResponse(dialect.models([name])["data"][0])


async def _unknown(_: Request | None, dialect: Dialect) -> Response:
    """Refuse a path that the gateway does not offer."""
    same = [each for each in DIALECTS if each.base == dialect.base]
    paths = [path for each in same for path in (each.path, each.count_path, each.models_path)]
    offered = dict.fromkeys(dialect.base + path for path in paths if path)
    message = _UNKNOWN_PATH.format(", ".join(offered))
    raise RefusedError(Refusal(status=404, code="unknown_path", message=message))


async def _reached(_: Request) -> Response:
    """Answer a client that checks whether the base URL is reachable."""
    return Response()


async def _session_of(request: ApiRequest) -> tuple[AttemptKey | None, GatewaySession]:
    """Authenticate a request; return its key of an attempt, and the run, which still runs.

    The key of a step of this process has no attempt.

    Raises:
        ProblemError: the tenant has too many concurrent requests, or no process owns the run.
        _AnsweredError: another process owns the run, and has answered the request.
        RefusedError: the key is unknown, or its attempt may make no more calls.
    """
    shared: HttpContext = request.app.state.shared
    credential, sessions = _credential_of(request), shared.services[Sessions]
    if credential and (session_of_step := sessions.with_key(credential)) is not None:
        await _enter(request, session_of_step.key.tenant)
        if isinstance(
            session_of_step.stop, HandOver
        ):  # the next owner executes the step with another key
            raise ProblemError(NOT_OWNED)
        if session_of_step.stop is not None:
            raise RefusedError(stopped(session_of_step.stop))
        return None, session_of_step
    owners: Owners = shared.services[Owners]
    key = credential and await AttemptKey.read(owners.attempts, sha256_of(credential))
    if not key:
        if credential and (maker := await owners.maker_of(credential)) is not None:
            tenant, owner = maker
            await _enter(request, tenant)
            content = await _content_of(request)
            raise _AnsweredError(await owners.answer_step(request, content, owner))
        await wait_connected(request, shared.authentication.refusal_delay())
        raise RefusedError(Refusal(status=401, code="invalid_api_key", message=_UNKNOWN_KEY))
    run = key.state.key
    await _enter(request, run.tenant)
    _require_current(key.state)
    if sessions.is_away(run):
        response = await owners.answer(request, await _content_of(request), run)
        if response is not None:
            raise _AnsweredError(response)
        await key.reread()
        _require_current(key.state)
    session = sessions.get(run)
    if session is None:
        raise RefusedError(stopped(sessions.stop_of(run)))
    _require_open(session)
    return key, session


async def _enter(request: Request, tenant: str) -> None:
    """Acquire the request's slot of a tenant, once.

    From then on, the request may take as long as its model, but not wait for the database.

    Raises:
        ProblemError: the tenant has too many concurrent requests.
    """
    if "tenant" not in request.scope:
        shared: HttpContext = request.app.state.shared
        request.scope["tenant"] = tenant
        TENANT.set(tenant)
        request.scope.get(IDENTIFIED, bool)()
        await shared.connections.enter(tenant, request.scope)
        if (deadline := request.scope.get(DEADLINE)) is not None:
            deadline.count_only(shared.services[Sessions].stuck_seconds)


def _require_current(state: AttemptState) -> None:
    if state.status in TERMINAL:
        raise RefusedError(ended(state.stop))
    if state.attempt < state.newest:
        raise RefusedError(SUPERSEDED)


def _require_open(session: GatewaySession) -> None:
    if not session.is_open:
        raise RefusedError(stopped(session.stop))


async def _body_of(request: ApiRequest, dialect: Dialect, session: GatewaySession) -> ClientBody:
    """Read and check the body of a request for a model; a long one in a thread.

    Raises:
        ProblemError: it is not valid JSON, or too large.
        RefusedBodyError: it is malformed, or has a field that is not offered.
    """
    shared: HttpContext = request.app.state.shared
    content = await _content_of(request)
    parsed, size = partial(_parsed, request, content), len(content)
    return await _read(shared.services[Sessions], session, dialect, parsed, size)


def _parsed(request: ApiRequest, content: bytes) -> Any:
    if has_more_values(content, MAX_VALUES):  # parsing them would occupy the process
        raise too_many_values()
    return request.parsed(content, is_unicode)  # the journal replaces NUL characters


async def _read(
    sessions: Sessions,
    session: GatewaySession,
    dialect: Dialect,
    parsed: Callable[[], Any],
    size_bytes: int,
) -> ClientBody:
    """Read and check a body of a size, whose document ``parsed`` returns.

    Raises:
        RefusedBodyError: it is malformed, or has a field that is not offered.
    """
    limits_spending = session.scope.limits_spending()
    free = await sessions.free_fields.of(dialect.fields.dialect) if limits_spending else ()

    def read() -> ClientBody:
        document = require_readable(parsed(), dialect)
        parts = dialect.fields.read(document, limits_spending=limits_spending, free_fields=free)
        return read_body(document, dialect.field, parts)

    with _naming(session):
        size = size_bytes // BYTES_PER_CHAR
        body = await sessions.reading.call(read, size)
        if references := references_in(body.parts):
            tenant, ids = session.key.tenant, [each for _, each in references]
            known_ids = await sessions.objects.tokens_of(tenant, ids)
            require_known(references, known_ids)
            body = replace(body, references=known_ids)
    return body


@contextmanager
def _naming(session: GatewaySession) -> Iterator[None]:
    """Add the run to the message of a refused body."""
    try:
        yield
    except RefusedBodyError as refused:
        message = f"{refused} (run {session.key.run_id})"
        raise RefusedBodyError(refused.code, message, refused.field) from None


async def _content_of(request: ApiRequest) -> bytes:
    """Return the body of a request.

    A long one, or one with many values, counts as one in transfer until its call has ended.

    Raises:
        ProblemError: it is too large, or all such bodies together are.
    """
    content, shared = await request.body(), request.app.state.shared
    if _COUNTED in request.scope:  # a request may be answered again, by the next owner
        return content
    request.scope[_COUNTED], memory_bytes = True, memory_of(content)
    if memory_bytes > shared.limits.max_body_bytes + shared.limits.max_graph_bytes:
        tenant = request.scope.get("tenant")
        request.scope[RELEASES].append(partial(shared.bodies.release, memory_bytes, tenant))
        shared.bodies.hold(memory_bytes, tenant)
    return content


def _unknown_model(session: GatewaySession, dialect: Dialect) -> RefusedError:
    """Return the refusal for a model that the run may not call; it lists the models it may call."""
    names = ", ".join(session.models.names(dialect.provider))
    message = _UNKNOWN_MODEL.format(names) if names else _NO_MODEL.format(dialect.provider)
    return RefusedError(Refusal(status=404, code="model_not_found", message=message, field="model"))


def _model_of(
    session: GatewaySession, body: Mapping[str, Any], dialect: Dialect
) -> tuple[str, ChatModel]:
    """Return the configured name and the model that a body names.

    Raises:
        RefusedError: the run may not call it, or not with this API.
    """
    try:
        return session.models.model(body["model"], dialect.provider)
    except UnknownModelError:
        raise _unknown_model(session, dialect) from None
    except WrongDialectError as other:
        right = next((each for each in DIALECTS if each.provider == other.provider), dialect)
        message = (
            f"The model cannot be called through the gateway, because its provider is "
            f"{other.provider}. Use or configure a model of the provider {dialect.provider}."
        )
        if right is not dialect:
            message = (
                f"The model has another API. Use the run's {right.provider}_base_url, which ends"
                f" with /gateway{right.base}."
            )
        raise RefusedError(Refusal(code="wrong_api", message=message, field="model")) from None


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a request that the provider receives."""
    passed: dict[str, str] = {}
    for name, value in headers.items():
        if name in PASSED_ON:
            passed[name] = f"{passed[name]}, {value}" if name in passed else value
    return {
        name: value
        for name, value in passed.items()
        if value and value.isascii() and value.isprintable()
    }


def _limits(request: Request) -> GatewayLimits:
    shared: HttpContext = request.app.state.shared
    return cast("GatewayLimits", shared.services[GatewayLimits])


async def _answered(
    request: Request | None,
    dialect: Dialect,
    session: GatewaySession,
    flight: PendingReply,
    *,
    linger_seconds: float,
) -> Response:
    """Return the reply once its head has arrived; the call continues if the client disconnects.

    ``request`` is None for a client in this process, which disconnects by cancelling this task.
    """
    head = flight.relay.head
    try:
        if request is None:
            await asyncio.wait((head,))
        else:
            await while_connected(request, head)
        reply_head = head.result()
    except (Stop, CallFailedError, asyncio.CancelledError) as error:
        if not head.done():  # this task was cancelled
            raise
        session.attempts.delivered(flight)
        if isinstance(error, HandOver):
            raise RefusedError(_RELEASED) from None
        return _failed(dialect, session, flight.relay, error)
    finally:
        if not head.done():
            flight.leave(linger_seconds)
    if reply_head.content is not None:
        session.attempts.delivered(flight)
        return Response(reply_head.content, reply_head.status, dict(reply_head.headers))
    headers = {**reply_head.headers, "X-Accel-Buffering": "no"}
    parts = _stream(dialect, session, flight, linger_seconds)
    return StreamingResponse(parts, reply_head.status, headers)


async def _stream(
    dialect: Dialect, session: GatewaySession, flight: PendingReply, linger_seconds: float
) -> AsyncIterator[bytes]:
    """Yield the parts of a streamed reply; end an interrupted one with an error event."""
    is_whole, number = False, 0
    try:
        async for part in flight.relay.parts():
            yield part
            number += 1
        is_whole = True
    except Stop as stop:
        yield dialect.error_event(stopped(stop), number)
    except CallFailedError as failed:
        if not flight.relay.reports_failure:
            yield dialect.error_event(_failure(failed), number)
    except asyncio.CancelledError:
        if not flight.task.done():  # this client is gone
            raise
        yield dialect.error_event(_interruption(session), number)
    finally:
        if is_whole or flight.relay.failed:
            session.attempts.delivered(flight)
        else:
            flight.leave(linger_seconds)


def stopped(stop: Stop | None) -> Refusal:
    """Return the refusal for a stop; a run that another process will own may be called again.

    None means that the client has finished the run.
    """
    if isinstance(stop, HandOver):
        return _RELEASED
    return ended(None if stop is None else stop.cause)


def _interruption(session: GatewaySession) -> Refusal:
    """Return the refusal for a call that was cancelled: by the end of the run or of its attempt."""
    return SUPERSEDED if session.is_open else stopped(session.stop)


def _failure(failed: CallFailedError) -> Refusal:
    if failed.error_class == NOT_NEWEST:
        return SUPERSEDED
    return provider_failed(str(failed))


def _failed(
    dialect: Dialect,
    session: GatewaySession,
    relay: Relay,
    error: Stop | CallFailedError | asyncio.CancelledError,
) -> Response:
    if isinstance(error, Stop):
        return _response(stopped(error), dialect)
    if isinstance(error, asyncio.CancelledError):
        return _response(_interruption(session), dialect)
    if relay.refused is not None:
        return _passed_back(dialect, relay.refused)
    return _response(_failure(error), dialect)


def _passed_back(dialect: Dialect, head: Head) -> Response:
    """Return a whole reply; hide one about the service's own key or URL, or of no known status."""
    if head.status in (401, 403) or 300 <= head.status < 400:
        message = f"The provider refused the request of the service (HTTP {head.status})."
        return _response(provider_failed(message), dialect)
    if not (is_success(head.status) or 400 <= head.status < 600):
        message = f"The status of the provider's reply is unknown (HTTP {head.status})."
        return _response(provider_failed(message), dialect)
    return Response(head.content, head.status, dict(head.headers))


def _credential_of(request: Request) -> str | None:
    """Return the key that a request contains, as a bearer token or as ``x-api-key``.

    None means that it contains none, or a malformed one.
    """
    with suppress(InvalidCredentialError):
        return shown_credential(request) or shown_run_key(request, KEY_PREFIX)
    return None


def _routes() -> Iterator[LabelledRoute]:
    """Yield the routes of all dialects; those that refuse other paths come last."""
    for dialect in DIALECTS:
        base = f"/gateway{dialect.base}"
        for path, method, answer in (
            (dialect.path, "POST", _called),
            (dialect.count_path, "POST", _counted),
            (dialect.models_path, "GET", _models),
            (f"{dialect.models_path}/{{name:path}}", "GET", _models),
        ):
            for each in _forms(base + path) if path else ():
                yield LabelledRoute(each, _in_shape(answer, dialect), methods=[method])
        yield LabelledRoute(base, _reached, methods=["HEAD"])
    for provider, dialect in {each.provider: each for each in DIALECTS}.items():
        path = f"/gateway/{provider}{{path:path}}"
        yield LabelledRoute(path, _in_shape(_unknown, dialect), methods=_METHODS)


def _forms(path: str) -> Sequence[str]:
    """Return a path with ``/v1`` once, never and twice.

    Clients differ in whether they add it to their base URL.
    """
    return path, path.replace(_V1, "", 1), path.replace(_V1, 2 * _V1, 1)


ROUTES: Final = (
    LabelledRoute(f"/gateway{MCP.path}", _in_shape(_used_tools, MCP), methods=["POST"]),
    *_routes(),
)
