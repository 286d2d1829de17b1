"""The feature ``gateway``: model calls and tool calls of external runs."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final, cast

from fastapi import Request, Response
from starlette.routing import Route, request_response
from starlette.types import ASGIApp, Message

from caseworker.features.external.clients import Clients
from caseworker.features.external.owners import NOT_OWNED, Owners
from caseworker.features.external.sessions import Sessions
from caseworker.features.external.standing import StandingKeys
from caseworker.features.feature import Feature, Opened, Parts
from caseworker.gateway.admission import CallAdmission, FieldsOf, FreeFields
from caseworker.gateway.dialects.dialect import Dialect
from caseworker.gateway.dialects.mcp import MCP
from caseworker.gateway.dialects.offered import DIALECTS
from caseworker.gateway.refusals import RELEASED
from caseworker.gateway.reservation import ReservationView, VendorError
from caseworker.gateway.serve import (
    Gateway,
    in_shape,
    owned,
    refuse_path,
    refused,
    shaped,
)
from caseworker.platform.http.openapi import EVERY_BODY, Responses, answers
from caseworker.platform.http.problems import (
    CREDENTIAL_REFUSED,
    MEDIA_TYPE,
    ROUTE_NOT_FOUND,
    UNAVAILABLE,
)
from caseworker.platform.http.request import ApiRequest, LabelledRoute, ReadableRoute
from caseworker.settings.loader import load_settings, settings_file
from caseworker.settings.schema import Settings

_V1: Final = "/v1"
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


class ReserveRoute(ReadableRoute):
    """The documented route that returns the reservation of a call with an API."""

    def __init__(self, path: str, dialect: Dialect) -> None:
        """``dialect`` is the API; its routes refuse requests in its own form."""
        super().__init__(
            path,
            _reached,
            methods=["POST"],
            tags=["gateway"],
            operation_id=f"reserve_{dialect.fields.dialect}",
            description=_RESERVES.format(call=path.removesuffix("/reserve")),
            response_model=ReservationView,
            responses=_REFUSALS,
            openapi_extra=_SECURED_BODY,
        )
        answer = cast(
            "Callable[[Request], Awaitable[Response]]", in_shape(Gateway.reserve, dialect)
        )
        self.app = request_response(answer)


def _in_both_forms(responses: Responses) -> Responses:
    """Return error responses with the form of the client's API next to that of the service."""
    for status, response in responses.items():
        problem = response["content"][MEDIA_TYPE]
        responses[status] = {
            **response,
            "model": VendorError,
            "content": {MEDIA_TYPE: problem},
        }
    return responses


_REFUSALS: Final = _in_both_forms(
    answers(CREDENTIAL_REFUSED, ROUTE_NOT_FOUND, UNAVAILABLE, NOT_OWNED, *EVERY_BODY)
)
_SECURED_BODY: Final = {
    "security": [{"bearer": []}],
    "requestBody": {
        "required": True,
        "description": "The body of the call.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    },
}
_RESERVES: Final = (
    "Return what `POST {call}` with this body would reserve.\n\nNo call is made, no run is opened "
    "and nothing is stored. It takes the key of a run or a standing key. A body that the call may "
    "not have gets the error of the call, in the form of its API."
)


async def _reached(_: Request) -> Response:
    """Answer a client that checks whether the base URL is reachable."""
    return Response()


async def _tool_server(gateway: Gateway, request: ApiRequest, _: Dialect) -> ASGIApp:
    """Return an application that answers a client which lists or calls the tools of its run."""
    client = await gateway.clients.identify(request)
    message = await request.json()
    client.session.touch()
    if isinstance(message, dict) and message.get("method") == "tools/call":
        await client.session.begin_call(client.key)
    # Importing the SDK takes nearly a second.
    module = await asyncio.to_thread(import_module, "caseworker.gateway.tool_server")
    server: ASGIApp = module.ToolServer(
        session=client.session,
        content=await request.body(),
        message=message,
        headers=request.headers,
        repeat=partial(_forward_to_next_owner, gateway, request),
    )
    return server


async def _forward_to_next_owner(gateway: Gateway, request: ApiRequest) -> bytes:
    """Have the next owner of a run answer a request for its tools; return the body of the reply."""
    parts = list[bytes]()

    async def receive_part(message: Message) -> None:
        parts.append(message.get("body", b""))

    try:
        async with gateway.clients.owners.runs.answering():
            reply = await shaped(owned(partial(_tool_server, gateway, request, MCP)), MCP)
            await reply(request.scope, request.receive, receive_part)
    except TimeoutError:  # this process ends
        return bytes(refused(RELEASED, MCP).body)
    return b"".join(parts)


def _routes() -> Iterator[Route]:
    """Yield the routes of all dialects; those that refuse other paths come last."""
    for dialect in DIALECTS:
        base = f"/gateway{dialect.base}"
        path = f"{base}{dialect.path_to('{model:path}')}/reserve"
        documented, *undocumented = _forms(path)
        yield ReserveRoute(documented, dialect)
        for each in undocumented:
            yield LabelledRoute(each, in_shape(Gateway.reserve, dialect), methods=["POST"])
        for path, method, answer in (
            (dialect.path_to("{model:path}"), "POST", Gateway.serve),
            (dialect.count_path, "POST", Gateway.count_tokens),
            (dialect.models_path, "GET", Gateway.models),
            (f"{dialect.models_path}/{{name:path}}", "GET", Gateway.models),
        ):
            for each in _forms(base + path) if path else ():
                yield LabelledRoute(each, in_shape(answer, dialect), methods=[method])
        yield LabelledRoute(base, _reached, methods=["HEAD"])
    for provider, dialect in {each.provider: each for each in DIALECTS}.items():
        path = f"/gateway/{provider}{{path:path}}"
        yield LabelledRoute(path, in_shape(refuse_path, dialect), methods=_METHODS)


def _forms(path: str) -> Sequence[str]:
    """Return a path with ``/v1`` once, never and twice.

    Clients differ in whether they add it to their base URL.
    """
    return path, path.replace(_V1, "", 1), path.replace(_V1, 2 * _V1, 1)


ROUTES: Final = (
    LabelledRoute(f"/gateway{MCP.path}", in_shape(_tool_server, MCP), methods=["POST"]),
    *_routes(),
)


def open_gateway(parts: Parts) -> Opened:
    """Build the gateway of a process."""
    sessions, settings = parts.service(Sessions), parts.settings.gateway
    gateway = Gateway(
        clients=Clients(
            sessions=sessions,
            owners=parts.service(Owners),
            standing_keys=parts.service(StandingKeys),
        ),
        admission=CallAdmission(_free_fields(parts.settings), sessions.objects),
        linger_seconds=settings.linger_seconds,
        max_body_bytes=settings.max_body_kb * 1024,
    )
    bases = {f"{each.provider}_base_url": f"/gateway{each.base}" for each in DIALECTS}
    sessions.addresses = {**bases, "mcp_url": f"/gateway{MCP.path}"}
    sessions.reply = gateway.reply_to_step
    return Opened(services=[gateway])


def _free_fields(settings: Settings) -> FreeFields:
    folder = Path.cwd()

    def read() -> FieldsOf:
        return load_settings(os.environ, folder).settings.gateway.free_fields

    file = settings_file(os.environ, folder)
    return FreeFields(settings.gateway.free_fields, file, read)


GATEWAY: Final = Feature(name="gateway", routes=ROUTES, open=open_gateway)
