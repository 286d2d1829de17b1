"""DELETE /runs/{run_id}/record erases a run that has ended."""

import httpx
import pytest

from caseworker.platform.caller import OPERATOR, KeyScope
from tests.support.api import Api, client_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_an_erased_run_is_gone_and_its_id_makes_a_new_one(client: httpx.AsyncClient) -> None:
    """The answer is 204, then 404 everywhere, also for a repeated request."""
    body = {"run_id": "a", "input": "2+2?"}
    await client.post("/runs", json=body)
    await client.delete("/runs/a")

    erased = await client.delete("/runs/a/record")

    assert (erased.status_code, erased.content) == (204, b"")
    for path in ("/runs/a", "/runs/a/trace", "/runs/a/events", "/runs/a/artifacts"):
        assert (await client.get(path)).status_code == 404, path
    assert (await client.delete("/runs/a/record")).status_code == 404
    again = await client.post("/runs", json={**body, "input": "3+3?"})
    assert (again.status_code, again.json()["status"]) == (202, "queued")


async def test_a_run_that_has_not_ended_is_not_erased(client: httpx.AsyncClient) -> None:
    """A running run and a pending cancel are not erased."""
    await client.post("/runs", json={"run_id": "a", "input": "2+2?"})
    await client.delete("/runs/early")

    refused = await client.delete("/runs/a/record")

    assert (refused.status_code, refused.json()["type"]) == (
        409,
        "urn:caseworker:problem:run-not-ended",
    )
    assert (await client.delete("/runs/early/record")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "/runs/a/record", None),
        ("POST", "/runs/cancel", {"created_before": "2999-01-01T00:00:00Z"}),
    ],
)
async def test_erasing_a_run_and_stopping_many_are_for_admins(
    method: str, path: str, body: object, api: Api
) -> None:
    """A key with the scopes to run and to cancel runs is refused."""

    async def bearer(*scopes: KeyScope) -> dict[str, str]:
        issued = await api.keys.create(OPERATOR, name="robot", scopes=frozenset(scopes), tenant="t")
        return {"Authorization": f"Bearer {issued.secret}"}

    app = api.app()
    runner, admin = await bearer(KeyScope.RUN), await bearer(KeyScope.ADMIN)
    async with client_of(app) as client:
        await client.post("/runs", json={"run_id": "a", "input": "2+2?"}, headers=runner)
        await client.delete("/runs/a", headers=runner)

        refused = await client.request(method, path, json=body, headers=runner)
        allowed = await client.request(method, path, json=body, headers=admin)

    assert refused.status_code == 403
    assert allowed.is_success, allowed.text
