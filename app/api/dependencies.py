"""What routes ask for in their signatures."""

from typing import Annotated, Any

from fastapi import Depends, Header, Path, Request

from app.api.admission import Admission
from app.api.auth import Caller
from app.api.field_types import IdempotencyKey, RunId
from app.api.preferences import wait_seconds
from app.api.services import ApiLimits, ApiServices
from app.runs.service import RunService


async def _services(request: Request) -> Any:
    return request.app.state.services


async def _runs(request: Request) -> Any:
    return request.app.state.services.runs


async def _limits(request: Request) -> Any:
    return request.app.state.limits


async def _admission(request: Request) -> Any:
    return request.app.state.admission


async def _caller(request: Request) -> Any:
    return request.scope["caller"]  # the guard of the route has put it there


async def _root(request: Request) -> Any:
    return request.scope.get("root_path", "")


Services = Annotated[ApiServices, Depends(_services)]
Runs = Annotated[RunService, Depends(_runs)]
Limits = Annotated[ApiLimits, Depends(_limits)]
Admits = Annotated[Admission, Depends(_admission)]
CallerHere = Annotated[Caller, Depends(_caller)]
Root = Annotated[str, Depends(_root)]
"""The path below which the service is served, without a slash at its end."""


RunIdPath = Annotated[RunId, Path(description="The id of a run.")]


async def _wait(
    limits: Limits,
    prefer: Annotated[
        list[str] | None,
        Header(description="`wait=N` waits up to N seconds for the result (RFC 7240)."),
    ] = None,
) -> int | None:
    return wait_seconds(prefer or (), longest=limits.max_wait_seconds)


Wait = Annotated[int | None, Depends(_wait)]
"""How many seconds the caller would like to wait, within what is allowed."""

Key = Annotated[
    IdempotencyKey | None,
    Header(
        alias="Idempotency-Key",
        description="Makes a POST safe to repeat: the same key never makes two runs.",
    ),
]
