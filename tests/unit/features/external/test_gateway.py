"""Requests of the gateway, around the calls that they make."""

import asyncio
from types import SimpleNamespace
from typing import Any

from fastapi import Response

from caseworker.gateway.admission import content_of
from caseworker.gateway.refusals import RELEASED, RefusedError
from caseworker.gateway.serve import enter, owned
from caseworker.platform.http.problems import TOO_MANY_CONNECTIONS
from caseworker.platform.http.request import RELEASES, BodiesUnderWay, Shares


def test_a_request_that_goes_to_the_next_owner_holds_its_shares_only_once() -> None:
    """A tenant could otherwise exceed its shares with one request."""
    tries = list[int]()

    async def body() -> bytes:
        return b"a" * 800

    async def answer(request: Any) -> Response:
        await enter(request, "acme")
        await content_of(request)
        tries.append(len(request.scope[RELEASES]))
        if len(tries) < 3:
            raise RefusedError(RELEASED)
        return Response()

    async def story() -> None:
        limits = SimpleNamespace(max_body_bytes=100, max_graph_bytes=0)
        shared = SimpleNamespace(
            connections=Shares(1, TOO_MANY_CONNECTIONS), bodies=BodiesUnderWay(1_000), limits=limits
        )
        app = SimpleNamespace(state=SimpleNamespace(shared=shared))
        request: Any = SimpleNamespace(scope={RELEASES: []}, app=app, body=body)
        await owned(lambda: answer(request))

    asyncio.run(story())
    assert tries == [2, 2, 2]
