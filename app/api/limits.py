"""Routes that know who calls before they read anything, and read no more than they must."""

import re
from collections.abc import Callable, Coroutine
from typing import Any, cast

from fastapi import Request, Response
from fastapi.routing import APIRoute

from app.api import problem_types as types
from app.api.auth import identify
from app.api.json_text import MalformedJsonError, UnstorableTextError, read_json
from app.api.problems import ProblemError
from app.api.services import ApiLimits

_JSON = re.compile(
    r"application/(?:json|[a-z0-9.+-]+\+json)(?:\s*;\s*charset\s*=\s*\"?utf-8\"?)?\s*",
    re.IGNORECASE | re.ASCII,
)

_LENGTH_DIGITS = 18


class GuardedRoute(APIRoute):
    """A route that refuses strangers first and bad bodies next, both before its dependencies."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Put the guard in front of the framework's handler."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            limits = cast("ApiLimits", request.app.state.limits)
            request.scope["caller"] = identify(request, limits.anonymous)
            return await handle(BoundedRequest(request, limits))

        return guarded


class BoundedRequest(Request):
    """A request whose body is plain JSON of a bounded size and depth."""

    def __init__(self, request: Request, limits: ApiLimits) -> None:
        super().__init__(request.scope, request.receive)
        self._limits = limits
        self._content: bytes | None = None

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
            return read_json(await self.body(), max_depth=self._limits.max_json_depth)
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
        limit = self._limits.max_body_bytes
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
