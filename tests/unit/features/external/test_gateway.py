"""Requests of the gateway, around the calls that they make."""

import asyncio
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import Response

from caseworker.features.external.client_requests import content_of, enter
from caseworker.features.external.session import ProviderObjects
from caseworker.gateway.admission import CallAdmission, ClientRequest, require_readable
from caseworker.gateway.dialects.chat_completions import CHAT_COMPLETIONS
from caseworker.gateway.refusals import RELEASED, RefusedError
from caseworker.gateway.serve import owned
from caseworker.models.fields.table import RefusedBodyError
from caseworker.platform.http.problems import TOO_MANY_CONNECTIONS
from caseworker.platform.http.request import RELEASES, ApiRequest, BodyMemory, Shares


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
            connections=Shares(1, TOO_MANY_CONNECTIONS), bodies=BodyMemory(1_000), limits=limits
        )
        app = SimpleNamespace(state=SimpleNamespace(shared=shared))
        request: Any = SimpleNamespace(scope={RELEASES: []}, app=app, body=body, _shared=shared)
        request.hold = partial(ApiRequest.hold, request)
        await owned(lambda: answer(request))

    asyncio.run(story())
    assert tries == [2, 2, 2]


PATH_MODEL = replace(CHAT_COMPLETIONS, path="/v1/models/{model}:generate")


def test_the_path_of_a_dialect_may_hold_the_model() -> None:
    """The body then has no model, and the provider gets the configured name in the path."""
    match = PATH_MODEL.match("/any/base/models/small:generate")

    assert match is not None
    assert match["model"] == "small"
    assert PATH_MODEL.match("/v1/models/small:generate/x") is None
    assert PATH_MODEL.path_to("m-1") == "/v1/models/m-1:generate"
    assert require_readable({"messages": []}, PATH_MODEL) == {"messages": []}
    with pytest.raises(RefusedBodyError, match="model"):
        require_readable({"messages": []}, CHAT_COMPLETIONS)


async def test_a_request_with_the_model_in_its_path_calls_this_model() -> None:
    """Neither the stored request nor the provider's body names the model."""
    model = SimpleNamespace(model="m-1")
    models = SimpleNamespace(model=lambda name, _: (f"{name}-alias", model))
    scope = SimpleNamespace(limits_spending=lambda: False)
    session: Any = SimpleNamespace(models=models, scope=scope, key=SimpleNamespace(run_id="r"))
    client_request = ClientRequest(
        dialect=PATH_MODEL,
        headers={},
        document=lambda: {"messages": []},
        size_bytes=16,
        path_model="small",
    )

    request = await CallAdmission(cast("Any", None), ProviderObjects()).request(
        session, client_request
    )

    assert (request.alias, request.path) == ("small-alias", "/v1/models/m-1:generate")
    assert request.provider_body == {"messages": []}
