"""Requests that say who calls before anything is read, and are read no further than they must."""

import re
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast, get_args, get_type_hints

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api import problem_types as types
from app.api.admission import Admission
from app.api.auth import Caller, identify
from app.api.event_stream import OpenStreams
from app.api.graph_admission import GraphAdmission
from app.api.json_text import MalformedJsonError, UnstorableTextError, read_json
from app.api.problems import ProblemError
from app.api.services import ApiLimits, ApiServices
from app.api.violations import NO_OBJECT, violations_of
from app.runs.artifacts import ArtifactReading
from app.runs.definitions import GraphDefinitions
from app.runs.run import RunKey
from app.runs.service import RunService

Body = TypeVar("Body", bound=BaseModel)

_JSON = re.compile(
    r"application/(?:json|[a-z0-9.+-]+\+json)(?:\s*;\s*charset\s*=\s*\"?utf-8\"?)?\s*",
    re.IGNORECASE | re.ASCII,
)

_LENGTH_DIGITS = 18


class GuardedRoute(APIRoute):
    """A route that refuses strangers first and bad bodies next, and hands over a :class:`Call`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Put the guard in front of the framework's handler."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            return await handle(Call(request))

        return guarded


class GraphRoute(APIRoute):
    """A guarded route whose body may hold a graph."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Put the guard in front of the framework's handler."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            return await handle(Call(request, carries_graph=True))

        return guarded


class PostingRoute(APIRoute):
    """The route of a function ``(body, call) -> Response``, for what is posted all the time.

    The framework documents it like any other, but neither resolves its parameters nor keeps what
    dependencies would have to close: that would cost as much as everything else that is done for
    such a request. Of several models for the body, its ``kind`` says which is meant.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.app = _answering(self.get_route_handler())

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Call the function with the body and the call."""
        choose = _chooser(get_type_hints(self.endpoint)["body"])

        async def post(request: Request) -> Response:
            call = Call(request, carries_graph=True)
            response: Response = await self.endpoint(await call.read(choose), call)
            return response

        return post


def _answering(handle: Callable[[Request], Coroutine[Any, Any, Response]]) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = await handle(Request(scope, receive, send))
        await response(scope, receive, send)

    return app


class Call(Request):
    """A request from a caller who is known, with what a route needs to answer it.

    Routes ask for it in their signature. It takes the place of a dependency for each of its parts,
    which would cost more than all else that is done here for a run.

    Its body is plain JSON of a bounded size and depth.
    """

    def __init__(self, request: Request, *, carries_graph: bool = False) -> None:
        """Find out who calls; a body that ``carries_graph`` may be longer by that much.

        Raises:
            ProblemError: the caller is not served from there.
        """
        super().__init__(request.scope, request.receive)
        self.limits = cast("ApiLimits", self.app.state.limits)
        self.caller: Caller = identify(request, self.limits.anonymous)
        self._max_bytes = self.limits.max_body_bytes
        if carries_graph:
            self._max_bytes += self.limits.max_graph_bytes
        self._content: bytes | None = None

    @property
    def services(self) -> ApiServices:
        """What the application is built from."""
        return cast("ApiServices", self.app.state.services)

    @property
    def runs(self) -> RunService:
        """What callers can ask of runs."""
        return self.services.runs

    @property
    def artifacts(self) -> ArtifactReading:
        """What callers can ask of the files of runs."""
        return self.services.artifacts

    @property
    def admission(self) -> Admission:
        """What turns bodies into runs."""
        return cast("Admission", self.app.state.admission)

    @property
    def graphs(self) -> GraphDefinitions:
        """What callers can ask of registered graphs."""
        return cast("GraphDefinitions", self.app.state.graphs)

    @property
    def graph_admission(self) -> GraphAdmission:
        """What turns bodies of kind graph into runs."""
        return cast("GraphAdmission", self.app.state.graph_admission)

    @property
    def streams(self) -> OpenStreams:
        """The event streams that are open."""
        return cast("OpenStreams", self.app.state.streams)

    @property
    def root(self) -> str:
        """The path below which the service is served, without a slash at its end."""
        return cast("str", self.scope.get("root_path", ""))

    def key(self, run_id: str) -> RunKey:
        """Return the key of one of the caller's runs."""
        return RunKey(self.caller.tenant, run_id)

    async def body(self) -> bytes:
        """Return the body, once it has arrived whole.

        Raises:
            ProblemError: it is too large, compressed, or says that it is something else than JSON.
        """
        if self._content is None:
            self._require_identity()
            self._content = await self._read()
            if self._content and not _JSON.fullmatch(self.headers.get("content-type", "")):
                raise ProblemError(types.UNSUPPORTED_MEDIA_TYPE)
        return self._content

    def require_small(self) -> None:
        """Refuse a body that turned out to hold no graph and is as large as if it did.

        Raises:
            ProblemError: it is.
        """
        limit = self.limits.max_body_bytes
        if len(self._content or b"") > limit:
            raise _too_large(limit)

    async def json(self) -> Any:
        """Return what the body holds.

        Raises:
            ProblemError: it is not JSON as we take it.
        """
        try:
            return read_json(await self.body(), max_depth=self.limits.max_json_depth)
        except MalformedJsonError as error:
            raise ProblemError(types.MALFORMED_BODY, str(error)) from None
        except UnstorableTextError as error:
            raise ProblemError(types.INVALID_REQUEST, violations=error.violations) from None

    async def read(self, choose: Callable[[Any], type[Body]]) -> Body:
        """Return the body as the model that is chosen for it.

        Raises:
            ProblemError: it cannot be read, or does not fit; every field at fault is named.
        """
        if not await self.body():
            raise ProblemError(types.INVALID_REQUEST, violations=[NO_OBJECT])
        sent = await self.json()
        try:
            return choose(sent).model_validate(sent)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)
            violations = violations_of({**wrong, "loc": ("body", *wrong["loc"])} for wrong in found)
            raise ProblemError(types.INVALID_REQUEST, violations=violations) from None

    def _require_identity(self) -> None:
        """Refuse compression: what it unfolds to has no bound that one could see before."""
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise ProblemError(types.UNSUPPORTED_MEDIA_TYPE)

    async def _read(self) -> bytes:
        """Read as much as is allowed; a length that was declared is not believed, only refused."""
        limit, too_large = self._max_bytes, _too_large(self._max_bytes)
        declared = self.headers.get("content-length", "")
        if len(declared) > _LENGTH_DIGITS or (declared.isdecimal() and int(declared) > limit):
            raise too_large
        content = bytearray()
        async for chunk in self.stream():
            content += chunk
            if len(content) > limit:
                raise too_large
        return bytes(content)


def _too_large(limit: int) -> ProblemError:
    return ProblemError(types.BODY_TOO_LARGE, f"Send at most {limit} bytes.")


def _chooser(models: Any) -> Callable[[Any], type[BaseModel]]:
    """Return what tells the model of a body: the first, unless it names the kind of another."""
    by_kind: dict[Any, type[BaseModel]] = {
        kind: model
        for model in get_args(models)
        for kind in get_args(model.model_fields["kind"].annotation)
    }
    usual: type[BaseModel] = next(iter(by_kind.values()), models)

    def choose(sent: Any) -> type[BaseModel]:
        kind = sent.get("kind") if isinstance(sent, dict) else None
        return by_kind.get(kind, usual) if isinstance(kind, str) else usual

    return choose
