"""What every response has in common, whatever becomes of the request inside."""

import re
import uuid

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.problem_types import INTERNAL
from app.api.problems import ProblemError, problem_response
from app.observability.redaction import holds_key

log = structlog.get_logger(__name__)

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)


class RequestEnvelope:
    """Gives every request an id and every failure a problem document.

    The id is the caller's ``X-Request-ID`` if that is sane and no key, else a new one. It is on the
    response and on every log line of the request, and of the run that the request began.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = scope["request_id"] = _request_id(scope)
        started = False

        async def send_named(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = _with_common(message.get("headers", ()), request_id)
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_named)
            except Exception:
                log.exception("http.request_broke", method=scope["method"])
                if started:
                    raise
                response = problem_response(request_id, ProblemError(INTERNAL))
                await response(scope, receive, send_named)


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _SANE_ID.fullmatch(given) and not holds_key(given) else uuid.uuid4().hex


def _with_common(
    headers: "tuple[tuple[bytes, bytes], ...] | list[tuple[bytes, bytes]]", request_id: str
) -> list[tuple[bytes, bytes]]:
    common = [(b"x-request-id", request_id.encode()), (b"x-content-type-options", b"nosniff")]
    if all(name != b"cache-control" for name, _ in headers):
        common.append((b"cache-control", b"no-store"))
    return [*headers, *common]
