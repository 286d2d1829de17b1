"""Requests as routes get them: from a known caller, with a body of bounded size and depth."""

import re
from collections.abc import Callable, Coroutine
from typing import Any, cast

from fastapi import Request, Response
from fastapi.routing import APIRoute

from app.api import problem_types as types
from app.api.admission import Admission, GraphAdmission
from app.api.auth import Caller, identify
from app.api.event_stream import OpenStreams
from app.api.json_text import MalformedJsonError, UnstorableTextError, read_json
from app.api.problems import ProblemError
from app.api.services import ApiLimits, ApiServices
from app.runs.artifacts import ArtifactReading
from app.runs.definitions import GraphDefinitions
from app.runs.run import RunKey
from app.runs.service import RunService

_JSON = re.compile(
    r"application/(?:json|[a-z0-9.+-]+\+json)(?:\s*;\s*charset\s*=\s*\"?utf-8\"?)?\s*",
    re.IGNORECASE | re.ASCII,
)

_LENGTH_DIGITS = 18


class ApiRoute(APIRoute):
    """A route whose function may ask for an :class:`ApiRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Hand the framework's handler a request of our own."""
        handle = super().get_route_handler()

        async def handle_checked(request: Request) -> Response:
            return await handle(ApiRequest(request))

        return handle_checked


class ApiRequest(Request):
    """A request whose caller is known and whose body is JSON of a bounded size and depth.

    The framework reads and parses a whole body before it resolves dependencies, so the caller and
    the limits of the body cannot be checked in those. Here they are checked first.
    """

    def __init__(self, request: Request) -> None:
        """Identify the caller.

        Raises:
            ProblemError: the caller is not served from there.
        """
        super().__init__(request.scope, request.receive)
        self.limits = cast("ApiLimits", self.app.state.limits)
        self.caller: Caller = identify(request, self.limits.anonymous)
        self._content: bytes | None = None

    @property
    def services(self) -> ApiServices:
        """What the application is built from."""
        return cast("ApiServices", self.app.state.services)

    @property
    def runs(self) -> RunService:
        """Use cases of runs."""
        return self.services.runs

    @property
    def artifacts(self) -> ArtifactReading:
        """Use cases of the files of runs."""
        return self.services.artifacts

    @property
    def admission(self) -> Admission:
        """Turns bodies of kind case into runs."""
        return cast("Admission", self.app.state.admission)

    @property
    def graphs(self) -> GraphDefinitions:
        """Use cases of registered graphs."""
        return cast("GraphDefinitions", self.app.state.graphs)

    @property
    def graph_admission(self) -> GraphAdmission:
        """Turns bodies of kind graph into runs."""
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
        """Refuse a body that is longer than one without a graph may be.

        Raises:
            ProblemError: it is longer.
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

    def _require_identity(self) -> None:
        """Refuse compression: the size of what it expands to cannot be known in advance."""
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise ProblemError(types.UNSUPPORTED_MEDIA_TYPE)

    async def _read(self) -> bytes:
        """Read as much as is allowed, whatever length is declared."""
        limit = self.limits.max_body_bytes + self.limits.max_graph_bytes
        too_large = _too_large(limit)
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
