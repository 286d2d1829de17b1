"""Requests of the gateway, around the calls that they make."""

import asyncio
from types import SimpleNamespace
from typing import Any

from fastapi import Response

from caseworker.features.external.dialects import CHAT_COMPLETIONS, Dialect
from caseworker.features.external.gateway import _RELEASED, _owned
from caseworker.features.external.refusals import RefusedError
from caseworker.platform.http.request import RELEASES


def test_a_request_that_goes_to_the_next_owner_holds_its_slots_only_once() -> None:
    """Each try takes a slot; the one before has given its own back."""
    held: list[str] = []
    tries: list[int] = []

    async def answer(request: Any, _: Dialect) -> Response:
        held.append("slot")
        request.scope[RELEASES].append(held.pop)
        tries.append(len(held))
        if len(tries) < 3:
            raise RefusedError(_RELEASED)
        return Response()

    request: Any = SimpleNamespace(scope={RELEASES: []})
    asyncio.run(_owned(answer, request, CHAT_COMPLETIONS))
    assert tries == [1, 1, 1]
    assert len(request.scope[RELEASES]) == 1
