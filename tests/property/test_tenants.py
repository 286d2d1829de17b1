"""No sequence of requests of one tenant changes or shows data of another.

The same requests are sent for a tenant that shares the service with another one, and for a third
one that is alone; then both read everything. If the other tenant's data were visible anywhere, the
answers would differ.
"""

import asyncio
import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.features.webhooks import postgres as webhooks
from caseworker.platform.postgres.engines import Pool, transaction
from tests.support.api import openapi_document
from tests.support.database import TestServer
from tests.support.openapi import RESERVATIONS
from tests.support.tenant_requests import (
    DELIVERY,
    GRAPH,
    PLANTED,
    Request,
    changes,
    looks,
    plant,
    resolved_path,
    stories,
)
from tests.support.tenants import Tenants, open_tenants, stable_answer

OF_NO_TENANT = {
    *(("get", path) for path in ("/tools", "/models", "/node-types", "/healthz", "/readyz")),
    *(("get", "/metrics"), ("post", "/graphs/validate")),
    ("get", "/gateway/usage"),
    *(("post", each.removeprefix("POST ")) for each in RESERVATIONS),  # their key names the tenant
}
Opened = tuple[asyncio.Runner, Tenants, psycopg.Connection[Any]]
Told = Sequence[tuple[bool, Request]]
IDS_AND_TIMES_BYTES = 32
"""Maximum difference, in bytes, that generated IDs and times make to the size of stored data."""


@pytest.fixture(scope="module")
def opened(postgres: TestServer) -> Iterator[Opened]:
    """Yield the service; its runs stay queued because executing them would take time."""
    with (
        postgres.database() as url,
        psycopg.connect(url, autocommit=True) as connection,
        asyncio.Runner() as runner,
    ):
        opening = open_tenants(url)
        tenants = runner.run(opening.__aenter__())
        yield runner, tenants, connection
        runner.run(opening.__aexit__(None, None, None))


_examples = itertools.count()


def require_apart(opened: Opened, story: Told) -> list[tuple[Request, tuple[int, str]]]:
    """Play a story, and fail if a tenant can notice that another one takes part.

    Returns the answers that the tenant got.
    """
    runner, tenants, connection = opened
    number = next(_examples)

    async def sent(tenant: str, other: str | None, request: Request) -> tuple[int, str]:
        method, path, body, headers = request
        if method == PLANTED:
            plant(connection, tenant, path)
            return 0, ""
        path = resolved_path(path, tenants, connection, mine=tenant, other=other)
        answer = await tenants.ask(tenant, method, path, body, **headers)
        return stable_answer(answer, {tenant: "<me>", other or "nobody": "<other>"})

    async def answers(mine: str, other: str | None) -> list[tuple[Request, tuple[int, str]]]:
        heard = []
        for is_mine, request in story:
            if is_mine:
                heard.append((request, await sent(mine, other, request)))
            elif other is not None:
                await sent(other, mine, request)
        return heard + [(request, await sent(mine, other, request)) for request in looks()]

    def stored(tenant: str) -> int:
        total = "SELECT coalesce(sum(bytes), 0)::int FROM stored WHERE tenant_id = %s"
        [[stored_bytes]] = connection.execute(total, [tenant]).fetchall()
        return int(stored_bytes)

    # Alone first: data that is not separated would later be visible to this tenant, too.
    alone = runner.run(answers(f"tenant-c{number}", None))
    beside = runner.run(answers(f"tenant-a{number}", f"tenant-b{number}"))

    assert beside == alone
    assert abs(stored(f"tenant-a{number}") - stored(f"tenant-c{number}")) <= IDS_AND_TIMES_BYTES
    assert all(status < 500 for _, (status, _) in beside)
    return beside


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(story=stories())
def test_a_tenant_sees_the_same_whatever_another_does(opened: Opened, story: Told) -> None:
    """Next to another tenant, every answer equals that of a tenant that is alone."""
    require_apart(opened, story)


@pytest.mark.guarantee(14)
def test_everything_that_one_tenant_can_have_is_hidden_from_another(opened: Opened) -> None:
    """No request of one tenant reads or changes the records of another."""
    everything = changes("x", "y", {}, GRAPH)
    kept = [each for each in everything if each[1] != "/erasures"]
    made = [*(each for each in kept if each[0] in ("PUT", "POST")), everything[0]]
    both = [(whose, each) for whose in (False, True) for each in made]

    beside = require_apart(opened, [*both, *((False, each) for each in everything)])
    require_apart(opened, [*both[: len(made)], *((True, each) for each in everything)])

    seen = {path for (_, path, _, _), (status, _) in beside if status == 200}
    of_x = {path for _, path, _, _ in looks() if "y" not in path.split("/")} - seen
    assert of_x == {
        *("/quotas/{their name}", "/keys/{their key}", "/keys/{their key}/sessions"),
        f"/webhooks/deliveries/{DELIVERY['y']}",
    }


def test_a_store_that_forgets_the_tenant_in_one_read_is_found_out(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The story finds a query of webhook secrets without the tenant and without row-level security.

    With row-level security the same story shows nothing.
    """

    def of_anybody(
        pool: Pool, _: str | None = None
    ) -> AbstractAsyncContextManager[AsyncConnection]:
        return transaction(pool)

    leaky = webhooks._SECRETS.replace("tenant_id = %s", "%s <> ''")
    story: Told = [(False, ("POST", "/webhooks/secret", None, {}))]
    monkeypatch.setattr(webhooks, "_SECRETS", leaky)
    require_apart(opened, story)
    monkeypatch.setattr(webhooks, "transaction", of_anybody)

    with pytest.raises(AssertionError):
        require_apart(opened, story)


def test_every_operation_is_among_the_requests() -> None:
    """A new operation must be added here or listed as independent of tenants."""
    asked = [(each[0].lower(), each[1].partition("?")[0]) for each in changes("x", "y", {}, GRAPH)]
    asked += [(each[0].lower(), each[1].partition("?")[0]) for each in looks()]
    missing = {
        (method, template)
        for template, described in openapi_document()["paths"].items()
        for method in described
        if not any(
            method == sent and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path)
            for sent, path in asked
        )
    }

    assert missing == OF_NO_TENANT
