"""Requests that say who calls before anything is read, and are read no further than they must."""

import re
from collections.abc import Callable, Coroutine
from typing import Any, cast

from fastapi import Request, Response
from fastapi.routing import APIRoute

from app.api import problem_types as types
from app.api.admission import Admission
from app.api.auth import Caller, identify
from app.api.json_text import MalformedJsonError, UnstorableTextError, read_json
from app.api.problems import ProblemError
from app.api.services import ApiLimits, ApiServices
from app.runs.run import RunKey
from app.runs.service import RunService

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


class Call(Request):
    """A request from a caller who is known, with what a route needs to answer it.

    Routes ask for it in their signature. It takes the place of a dependency for each of its parts,
    which would cost more than all else that is done here for a run.

    Its body is plain JSON of a bounded size and depth.
    """

    def __init__(self, request: Request) -> None:
        """Find out who calls.

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
        """What callers can ask of runs."""
        return self.services.runs

    @property
    def admission(self) -> Admission:
        """What turns bodies into runs."""
        return cast("Admission", self.app.state.admission)

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
        """Refuse compression: what it unfolds to has no bound that one could see before."""
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise ProblemError(types.UNSUPPORTED_MEDIA_TYPE)

    async def _read(self) -> bytes:
        """Read as much as is allowed; a length that was declared is not believed, only refused."""
        limit = self.limits.max_body_bytes
        too_large = ProblemError(types.BODY_TOO_LARGE, f"Send at most {limit} bytes.")
        declared = self.headers.get("content-length", "")
        if len(declared) > _LENGTH_DIGITS or (declared.isdecimal() and int(declared) > limit):
            raise too_large
        content = bytearray()
        async for chunk in self.stream():
            content += chunk
            if len(content) > limit:
                raise too_large
        return bytes(content)
