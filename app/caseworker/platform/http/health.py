"""Health, readiness and metrics routes for monitoring."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from caseworker.platform.http.openapi import answers, operation_id
from caseworker.platform.http.problems import (
    ANONYMOUS_REFUSED,
    CREDENTIAL_REFUSED,
    NOT_READY,
    ROUTE_NOT_FOUND,
    ProblemError,
)
from caseworker.platform.http.request import (
    AnonymousFrom,
    ReadableRoute,
    anonymous_caller,
    shown_credential,
)

router = APIRouter(
    tags=["operation"], route_class=ReadableRoute, generate_unique_id_function=operation_id
)


READINESS_SECONDS: Final = 5.0
"""Time, in seconds, after which a readiness check counts as failed."""
_METRICS_REFUSED: Final = (
    "Send telemetry.metrics_key as a bearer token. Without it, telemetry.metrics permits clients "
    "on this machine without a proxy in between (loopback), or all clients (anywhere), but never "
    "web pages of other origins."
)


@dataclass(frozen=True, slots=True)
class PartState:
    """The readiness of one part of the service, such as the database."""

    ready: bool
    message: str = ""
    """Problem description for the operator; empty if the part is ready. Any caller may read it."""


Readiness = Callable[[], Awaitable[Mapping[str, PartState]]]
"""Returns the state of each part by name: ``database``, ``migrations``, ``worker``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsAccess:
    """The metrics, and who may read them."""

    text: Callable[[], Awaitable[bytes]]
    """Function that returns the metrics of this process in the Prometheus text format."""
    readable_from: AnonymousFrom
    """Where requests without the metrics key may come from."""
    key: str | None
    """Key that permits reading the metrics from anywhere; None if no key is configured."""


@dataclass(frozen=True, slots=True)
class Health:
    """Response if the process is alive."""

    status: str = "alive"


@dataclass(frozen=True, slots=True)
class Ready:
    """Response if every part of the service works."""

    status: str
    parts: Mapping[str, str]
    """State of each part by name (``database``, ``migrations``, ``worker``): ``ready``."""


@router.get("/healthz", responses=answers())
async def healthz() -> Health:
    """Report that the process is alive; checks no other part."""
    return Health()


@router.get("/readyz", responses=answers(NOT_READY))
async def readyz(request: Request) -> Ready:
    """Report whether the service can take requests and, if not, which part is not ready."""
    states = await _states(*request.app.state.readiness)
    parts = {
        name: state.message or ("ready" if state.ready else "not ready")
        for name, state in states.items()
    }
    if not all(state.ready for state in states.values()):
        raise ProblemError(NOT_READY, parts=parts)
    return Ready("ready", parts)


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        **answers(CREDENTIAL_REFUSED, ANONYMOUS_REFUSED, ROUTE_NOT_FOUND),
        200: {
            "description": "Metrics in the Prometheus text format.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
    },
)
async def metrics(request: Request) -> Response:
    """Return the metrics of this process: runs, calls, tokens, cost, time, connections.

    Access depends on `telemetry.metrics` and `telemetry.metrics_key`: from this machine, from
    anywhere, or with the metrics key. Metrics contain no data of callers.
    """
    access: MetricsAccess | None = request.app.state.metrics
    if access is None:
        raise ProblemError(ROUTE_NOT_FOUND)
    credential = shown_credential(request)
    if credential is None:
        anonymous_caller(request, access.readable_from, refusal=_METRICS_REFUSED)
    elif access.key is None or not hmac.compare_digest(credential.encode(), access.key.encode()):
        raise ProblemError(CREDENTIAL_REFUSED, _METRICS_REFUSED)
    return Response(await access.text(), media_type=CONTENT_TYPE_LATEST)


async def _states(readiness: Readiness, seconds: float) -> Mapping[str, PartState]:
    try:
        async with asyncio.timeout(seconds):
            return await readiness()
    except TimeoutError:
        return {
            "check": PartState(False, f"The readiness check timed out after {seconds:g} seconds.")
        }
