"""The routes under ``/v1``: the key of a request decides whether it reaches an agent or a model.

A standing key and the key of a run reach the gateway, whose routes answer here as below
``/gateway``. All other requests reach the registered agents of the tenant.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from fastapi import Request, Response
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from caseworker.faces.openai_api import chat_completions, client_tools, responses, runs
from caseworker.faces.openai_api.bodies import (
    AgentCall,
    agent_named,
    chat_call,
    refuse,
    response_call,
)
from caseworker.faces.openai_api.runs import FrameSource, ReplyStream
from caseworker.faces.openai_api.transcript import Transcript, failure_of, transcript_of
from caseworker.features.definitions.definitions import Definitions
from caseworker.features.external.clients import KEY_PREFIXES
from caseworker.gateway.dialects.chat_completions import CHAT_COMPLETIONS
from caseworker.gateway.dialects.dialect import Dialect
from caseworker.gateway.dialects.embeddings import EMBEDDINGS
from caseworker.gateway.dialects.messages import MESSAGES
from caseworker.gateway.dialects.responses import RESPONSES
from caseworker.gateway.refusals import Refusal, RefusedError, of_problem
from caseworker.gateway.serve import Gateway, in_shape, refuse_websocket, refused
from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.caller import InvalidCredentialError, KeyScope
from caseworker.platform.http.deadline import DEADLINE
from caseworker.platform.http.problems import ProblemError
from caseworker.platform.http.request import (
    ApiRequest,
    HttpContext,
    LabelledRoute,
    shown_credential,
    shown_run_key,
)
from caseworker.runs.run import Run
from caseworker.runs.service import RunService

BASE: Final = "/v1"
MODELS_PER_PAGE: Final = 100
_TASK: Final = "### Task:"
"""Beginning of the prompts with which Open WebUI requests titles, tags and follow-up questions."""
_OWN_PREFIX: Final = "cw"
"""Beginning of all keys of this service."""
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")

Answer = Callable[[ApiRequest], Awaitable[ASGIApp]]
Served = Callable[[Gateway, ApiRequest, Dialect], Awaitable[ASGIApp]]


@dataclass(frozen=True, slots=True)
class FaceOptions:
    """How requests for agents are read."""

    appends_system: bool
    """Whether system messages of the client are added to its first user message."""
    task_agent: Mapping[str, Any] | None = None
    """Reference to the agent that answers requests of front ends for titles and tags; None without
    one."""
    client_wait_seconds: float = 600.0
    """Time limit for the results of a client's tools."""
    max_waiting_runs: int = 1000
    """Maximum number of runs per key that wait for such results."""

    def directed(self, call: AgentCall) -> AgentCall:
        """Return a chat completion with the agent that answers it, and its tools with an expiry."""
        expiry = {"wait_seconds": self.client_wait_seconds, "on_expiry": "complete"}
        call = replace(call, tools=[{**tool, **expiry} for tool in call.tools])
        is_task = bool(call.messages) and call.messages[-1].content.startswith(_TASK)
        return replace(call, agent=self.task_agent) if self.task_agent and is_task else call


async def complete(request: ApiRequest) -> ASGIApp:
    """Answer a request for a chat completion of an agent."""
    options = request.service(FaceOptions)
    call = options.directed(chat_call(await request.json()))
    if call.streams:
        await runs.enter_stream(request)
    continued = await client_tools.continuation(
        request, call, appends_system=options.appends_system
    )
    if continued is None:
        if call.tools:
            await client_tools.require_room(request, options.max_waiting_runs)
        run = await _accepted(request, call, {"api": "chat_completions"})
        continued = client_tools.Continuation(run)
    run, after = continued.run, continued.after
    if call.streams:
        writer = chat_completions.ChunkWriter(run, call)
        source = FrameSource(
            request=request,
            key=run.key,
            frames=writer,
            dialect=CHAT_COMPLETIONS,
            after=after,
            asks_client=True,
        )
        return ReplyStream(source, abandons=True)
    transcript = Transcript()
    run, calls = await runs.answered(request, run.key, transcript, after=after)
    if not calls and (failure := failure_of(run)) is not None:
        raise RefusedError(failure)
    return JSONResponse(chat_completions.completion(run, transcript, calls))


async def respond(request: ApiRequest) -> ASGIApp:
    """Answer a request for a response of an agent."""
    call = response_call(await request.json())
    earlier: Sequence[Mapping[str, str]] = ()
    if call.previous is not None:
        earlier = await responses.earlier_messages(request, call.previous)
    if call.streams:
        await runs.enter_stream(request)
    about = {
        "api": "responses",
        "background": call.background,
        "previous_response_id": call.previous,
    }
    about = {name: value for name, value in about.items() if value}
    run = await _accepted(request, call, about, earlier)
    if call.streams:
        writer, lasts = responses.EventWriter(run), call.background
        source = FrameSource(request=request, key=run.key, frames=writer, dialect=RESPONSES)
        return ReplyStream(source, abandons=not lasts)
    if not call.background:
        run = await runs.ended(request, run)
    return await _response(request, run)


async def retrieve(request: ApiRequest) -> ASGIApp:
    """Return a response in its current state, or stream it from the event in the query on."""
    run = await responses.run_of(request, request.path_params["response_id"])
    query = request.query_params
    if query.get("stream", "").lower() not in ("true", "1"):
        return await _response(request, run)
    after = query.get("starting_after", "-1")
    if not after.removeprefix("-").isdecimal() or len(after) > 10:
        refuse("starting_after", "starting_after must be the sequence number of an event.")
    await runs.enter_stream(request)
    writer = responses.EventWriter(run, after=int(after))
    source = FrameSource(request=request, key=run.key, frames=writer, dialect=RESPONSES)
    return ReplyStream(source, abandons=False)


async def cancel(request: ApiRequest) -> ASGIApp:
    """Cancel a response; a response that has ended is returned unchanged."""
    run = await responses.run_of(request, request.path_params["response_id"])
    if not run.finished:
        service = request.service(RunService)
        status = await service.cancel(run.key, by=request.caller.name)
        run = status.run or run
    return await _response(request, run)


async def list_agents(request: ApiRequest) -> ASGIApp:
    """List the registered agents as models, or return the named one."""
    dialect = _dialect_of(request)
    if (name := request.path_params.get("name")) is not None:
        model = await runs.require_agent(request, agent_named(name))
        return JSONResponse(dialect.models([model])["data"][0])
    store, names, cursor = request.service(Definitions).store, list[str](), None
    while True:
        page = await store.find(
            request.caller.tenant, DefinitionKind.AGENT, limit=MODELS_PER_PAGE, cursor=cursor
        )
        names += [each.name for each in page.items]
        if (cursor := page.next_cursor) is None:
            return JSONResponse(dialect.models(names))


async def refuse_unknown(request: ApiRequest) -> ASGIApp:
    """Refuse a path that agents do not offer.

    Raises:
        RefusedError: always, with status 404.
    """
    path = request.scope["path"]
    if path.startswith(f"{BASE}/conversations"):
        refuse("conversation", _NO_CONVERSATIONS, code="unknown_path", status=404)
    refuse(None, _UNKNOWN_PATH.format(path[:200]), code="unknown_path", status=404)


_NO_CONVERSATIONS: Final = (
    "Conversations are not offered. Send previous_response_id to POST /v1/responses, or use the "
    "threads of this service (POST /threads)."
)
_UNKNOWN_PATH: Final = (
    "Agents do not offer {}. They offer /v1/chat/completions, /v1/responses and /v1/models; the "
    "base URL of OpenAI's clients ends with /v1. Keys that begin with cwa_ or cwr_ call models: "
    "/v1 then also offers /v1/embeddings and /v1/messages."
)
_UNKNOWN_TO_GATEWAY: Final = (
    "The gateway does not offer {}. A key that begins with cwa_ or cwr_ may use "
    "/v1/chat/completions, /v1/responses, /v1/embeddings, /v1/messages and /v1/models. The base "
    "URL of OpenAI's clients ends with /v1, and that of Anthropic's clients has no path."
)


async def _accepted(
    request: ApiRequest,
    call: AgentCall,
    about: Mapping[str, Any],
    earlier: Sequence[Mapping[str, str]] = (),
) -> Run:
    appends = request.service(FaceOptions).appends_system
    return await runs.accept(request, call, earlier=earlier, appends_system=appends, about=about)


async def _response(request: ApiRequest, run: Run) -> Response:
    transcript = await transcript_of(request.service(RunService), run)
    return JSONResponse(responses.response(run, transcript))


def _dialect_of(request: Request, usual: Dialect = CHAT_COMPLETIONS) -> Dialect:
    """Return the API whose errors and lists a client reads."""
    return MESSAGES if "anthropic-version" in request.headers else usual


def routed(
    answer: Answer, served: Served, dialect: Dialect | None, scope: KeyScope
) -> Callable[[Request], Awaitable[ASGIApp]]:
    """Return a route function: ``served`` answers keys of the gateway, ``answer`` other callers.

    ``dialect`` is the API of the path at the gateway; None if several share the path. ``scope`` is
    the permission that callers of agents need.
    """

    async def answered(request: Request) -> ASGIApp:
        if _has_gateway_key(request):
            of_gateway = dialect or _dialect_of(request)
            _move_below_gateway(request, of_gateway)
            return await in_shape(served, of_gateway)(request)
        shape = _dialect_of(request)
        if (deadline := request.scope.get(DEADLINE)) is not None:
            deadline.form = lambda problem: refused(of_problem(problem), shape)
        try:
            await _drop_placeholder(request)
            identified = await ApiRequest.of(request, scope)
            return await answer(identified)
        except RefusedError as error:
            return refused(error.refusal, shape)
        except Exception as error:
            problem = _problem_of(request, error)
            refusal = of_problem(problem)
            if problem.violations:
                refusal = replace(refusal, field=problem.violations[0].field or None)
            return refused(refusal, shape)

    return answered


def _problem_of(request: Request, error: Exception) -> ProblemError:
    """Return the problem for an error; raise the error if none is registered."""
    shared: HttpContext = request.app.state.shared
    try:
        return shared.problems.of(error)
    except LookupError:
        raise error from None


def _move_below_gateway(request: Request, dialect: Dialect) -> None:
    """Change the path that a request has if it is forwarded to the owner of its run.

    A process of the previous release knows only the paths below ``/gateway``.
    """
    base = dialect.base if dialect.base.endswith(BASE) else dialect.base + BASE
    _, _, rest = request.scope["raw_path"].partition(BASE.encode())
    request.scope["raw_path"] = f"/gateway{base}".encode() + rest


def _has_gateway_key(request: Request) -> bool:
    try:
        key = shown_credential(request) or shown_run_key(request, KEY_PREFIXES)
    except InvalidCredentialError:
        return False
    return key is not None and key.startswith(KEY_PREFIXES)


async def _drop_placeholder(request: Request) -> None:
    """Ignore a key that is not of this service while the service needs none.

    OpenAI's clients do not start without a key, so their users send any word.
    """
    shared: HttpContext = request.app.state.shared
    headers = request.scope["headers"]
    value = next((value for name, value in headers if name == b"authorization"), b"")
    scheme, _, key = value.decode("latin-1").partition(" ")
    if scheme.lower() != "bearer" or key.strip().startswith(_OWN_PREFIX) or "." in key:
        return
    if await shared.authentication.is_open():
        request.scope["headers"] = [each for each in headers if each[0] != b"authorization"]


async def _refuse_gateway_path(gateway: Gateway, request: ApiRequest, _: Dialect) -> ASGIApp:
    refuse_websocket(request)
    await gateway.clients.models(request)  # a key that does not work is 401
    path = request.scope["path"][:200]
    message = _UNKNOWN_TO_GATEWAY.format(path)
    raise RefusedError(Refusal(status=404, code="unknown_path", message=message))


def _routes() -> Iterator[LabelledRoute]:
    """Yield the routes of the face; the one that refuses other paths comes last."""
    run, read = KeyScope.RUN, KeyScope.READ
    for path, method, answer, served, dialect, scope in (
        ("/chat/completions", "POST", complete, Gateway.serve, CHAT_COMPLETIONS, run),
        ("/responses", "POST", respond, Gateway.serve, RESPONSES, run),
        ("/responses/{response_id}", "GET", retrieve, _refuse_gateway_path, RESPONSES, read),
        ("/responses/{response_id}/cancel", "POST", cancel, _refuse_gateway_path, RESPONSES, run),
        ("/embeddings", "POST", refuse_unknown, Gateway.serve, EMBEDDINGS, run),
        ("/messages", "POST", refuse_unknown, Gateway.serve, MESSAGES, run),
        ("/messages/count_tokens", "POST", refuse_unknown, Gateway.count_tokens, MESSAGES, run),
        ("/models", "GET", list_agents, Gateway.models, None, read),
        ("/models/{name:path}", "GET", list_agents, Gateway.models, None, read),
    ):
        yield LabelledRoute(BASE + path, routed(answer, served, dialect, scope), methods=[method])
    other_paths = routed(refuse_unknown, _refuse_gateway_path, None, read)
    yield LabelledRoute(f"{BASE}/{{path:path}}", other_paths, methods=_METHODS)


ROUTES: Final = tuple(_routes())
