"""Tests authentication, the permission of each scope and the key routes."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from caseworker.features.access.authentication import Authentication, Identity
from caseworker.platform.caller import OPERATOR, Caller, KeyScope, with_implied
from tests.support.api import Api, all_ready, client_of, openapi_document
from tests.support.limits import api_limits
from tests.support.openapi import RESERVATIONS

pytestmark = pytest.mark.asyncio(loop_scope="module")


BOOTSTRAP = "operator-" + "7" * 32
AS_OPERATOR = {"Authorization": f"Bearer {BOOTSTRAP}"}
OPEN = {"/healthz", "/readyz"}
OWN_KEY = {"/metrics", *(each.removeprefix("POST ") for each in RESERVATIONS)}
"""Routes that no key of a tenant can use."""
CLOSED_BUT_NOT_DESCRIBED = (("POST", "/mcp"), ("GET", "/mcp"))


@pytest.fixture
def app(api: Api) -> FastAPI:
    """Return the application with an operator."""
    return api.app(bootstrap_key=BOOTSTRAP, readiness=all_ready)


@pytest_asyncio.fixture(loop_scope="module")
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Return a caller on the same machine."""
    async with client_of(app) as client:
        yield client


async def bearer(api: Api, *scopes: KeyScope, tenant: str = "a") -> dict[str, str]:
    issued = await api.keys.create(OPERATOR, name="robot", scopes=frozenset(scopes), tenant=tenant)
    return {"Authorization": f"Bearer {issued.secret}"}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, path and description of every operation; names in paths are filled in."""
    for path, described in openapi_document()["paths"].items():
        for method, operation in described.items():
            filled = path.replace("{key_id}", "0" * 16).replace("{version}", "1")
            filled = filled.replace("{tenant}", "a")
            parts = ["x" if part.startswith("{") else part for part in filled.split("/")]
            yield method.upper(), "/".join(parts), operation


def slug(answer: httpx.Response) -> str:
    """Return the type of a problem; an answer to HEAD has no body."""
    if answer.request.method == "HEAD":
        return {401: "credential-required", 403: "scope-missing"}.get(answer.status_code, "")
    return str(answer.json()["type"]).rpartition(":")[2]


async def test_every_operation_needs_a_credential_except_the_probes(
    client: httpx.AsyncClient,
) -> None:
    """The answer is 401 with a challenge before any body is read, also on undocumented routes."""
    asked = [(method, path) for method, path, _ in operations()]
    assert len(asked) > 40

    for method, path in (*asked, *CLOSED_BUT_NOT_DESCRIBED):
        answer = await client.request(method, path, content=b"no JSON")
        if path in OPEN:
            assert answer.status_code == 200
        elif path not in OWN_KEY:
            assert (answer.status_code, slug(answer)) == (401, "credential-required"), path
            assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    "held", [frozenset(), frozenset({KeyScope.READ}), frozenset({KeyScope.RUN})]
)
async def test_every_operation_needs_the_scope_that_it_says(
    held: frozenset[KeyScope], api: Api
) -> None:
    """The answer is 403 without the scope, before the body is read, and never with it."""

    async def verify_token(_: str) -> Identity:
        return Identity(Caller("a", "robot", with_implied(held)))

    app = api.app(Authentication(api.keys, verify_token=verify_token))
    allowed = {scope.value for scope in held} | ({"read"} if KeyScope.RUN in held else set())
    seen = set()

    async with client_of(app) as client:
        client.headers["Authorization"] = "Bearer token"
        for method, path, operation in operations():
            if path in OPEN | OWN_KEY:
                continue
            answer = await client.request(method, path, content=b"no JSON")
            needed = operation["x-required-scope"]
            seen.add(needed)
            if needed in allowed:
                assert answer.status_code not in (401, 403), (method, path)
            else:
                assert (answer.status_code, slug(answer)) == (403, "scope-missing"), (method, path)
                assert method == "HEAD" or needed in answer.json()["detail"]
    assert seen == {"read", "run", "approve", "admin"}


async def test_admins_are_refused_nothing_of_their_tenant(
    client: httpx.AsyncClient, api: Api
) -> None:
    """Only the quotas, which the operator sets, are refused to an admin."""
    admin = await bearer(api, KeyScope.ADMIN)
    refused = set()

    for method, path, _ in operations():
        answer = await client.request(method, path, headers=admin, json={})
        assert (answer.status_code == 401) == (path in OWN_KEY), (method, path)
        if answer.status_code == 403:
            refused.add((method, path))
    assert refused == {("PUT", "/quotas/a"), ("DELETE", "/quotas/a")}


async def test_what_changes_something_needs_more_than_reading() -> None:
    """The OpenAPI document states the security scheme and the required scope of each operation."""
    for method, path, operation in operations():
        if path not in OPEN | OWN_KEY:
            assert operation["security"] == [{"bearer": []}]
            assert (operation["x-required-scope"] == "read") <= (method in ("GET", "HEAD")), path


INVALID = (
    "Bearer",
    "Bearer ",
    "Bearer nonsense",
    f"Bearer cwk_{'0' * 16}_{'0' * 64}",
    "Bearer a.b.c",
    "Basic dXNlcjpwYXNz",
    "Digest x",
    "Token x",
    "",
    f"Bearer {BOOTSTRAP} and more",
    f"{BOOTSTRAP}",
)


@pytest.mark.parametrize("shown", INVALID)
@pytest.mark.parametrize("is_open", [True, False])
async def test_a_credential_that_is_not_valid_is_never_taken_for_none(
    shown: str, is_open: bool, client: httpx.AsyncClient, api: Api
) -> None:
    """An invalid credential is never echoed and is refused even if anonymous callers may call."""
    async with client_of(api.app()) as served:
        used = served if is_open else client
        assert (await used.get("/runs")).is_success == is_open
        answer = await used.get("/runs", headers={"Authorization": shown})

    assert (answer.status_code, slug(answer)) == (401, "credential-refused")
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert "nonsense" not in answer.text


async def test_two_credentials_are_none(client: httpx.AsyncClient) -> None:
    """It would be unclear which credential counts."""
    both = [("authorization", f"Bearer {BOOTSTRAP}")] * 2

    assert (await client.get("/runs", headers=both)).status_code == 401


async def test_with_a_credential_callers_come_from_anywhere(app: FastAPI) -> None:
    """A proxy may forward the request."""
    forwarded = {**AS_OPERATOR, "X-Forwarded-For": "192.0.2.9"}
    async with client_of(app, peer="192.0.2.1") as client:
        assert (await client.get("/runs", headers=forwarded)).status_code == 200


async def test_the_first_key_ends_the_time_without_keys(api: Api) -> None:
    """The key also ends anonymous access from this machine, which cannot make keys itself."""
    async with client_of(api.app()) as client:
        assert (await client.get("/runs")).status_code == 200
        assert (await client.post("/keys", json={"name": "x"})).status_code == 401
        assert (await client.get("/keys")).json() == {"keys": []}
    await bearer(api, KeyScope.READ)

    async with client_of(api.app()) as client:
        assert (await client.get("/runs")).status_code == 401


async def test_whoever_is_served_anywhere_without_a_key_is_no_admin(api: Api) -> None:
    """Any client could otherwise be an administrator."""
    app = api.app(limits=api_limits(anonymous="anywhere"))
    async with client_of(app, peer="192.0.2.1") as client:
        assert (await client.get("/runs")).status_code == 200
        assert (await client.get("/keys")).status_code == 403


async def test_the_secret_of_a_key_is_shown_once(client: httpx.AsyncClient) -> None:
    """The creator gets the secret once, and the key works at once."""
    body = {"name": "robot", "scopes": ["run"], "tenant": "a", "expires_at": "2099-01-01T00:00:00Z"}
    made = await client.post("/keys", json=body, headers=AS_OPERATOR)
    shown = made.json()
    mine = {"Authorization": f"Bearer {shown['key']}"}

    listed = await client.get("/keys", headers=AS_OPERATOR)

    assert made.status_code == 201
    assert (await client.get("/runs", headers=mine)).status_code == 200
    assert listed.json()["keys"] == [{name: shown[name] for name in shown if name != "key"}]
    assert shown["key"] not in listed.text
    assert shown["key"].rpartition("_")[2] not in listed.text


async def test_a_key_is_replaced_and_revoked(client: httpx.AsyncClient) -> None:
    """The old key works until the end of the overlap, which is zero here."""
    made = (await client.post("/keys", json={"name": "x"}, headers=AS_OPERATOR)).json()
    old = {"Authorization": f"Bearer {made['key']}"}
    path = f"/keys/{made['key_id']}"

    rotated = await client.post(f"{path}/rotate", json={"overlap_seconds": 0}, headers=AS_OPERATOR)
    new = {"Authorization": f"Bearer {rotated.json()['key']}"}

    assert (await client.get("/runs", headers=old)).status_code == 401
    assert (await client.get("/runs", headers=new)).status_code == 200
    assert (await client.post(f"{path}/rotate", headers=AS_OPERATOR)).status_code == 409
    gone = await client.delete(f"/keys/{rotated.json()['key_id']}", headers=AS_OPERATOR)
    assert gone.json()["revoked_at"]
    assert (await client.get("/runs", headers=new)).status_code == 401


async def test_a_key_that_works_to_the_end_of_time_is_replaced(client: httpx.AsyncClient) -> None:
    """The successor has the same end, although the span would lead beyond it."""
    last = {"name": "x", "expires_at": "9999-12-31T23:59:59.999999Z"}
    made = (await client.post("/keys", json=last, headers=AS_OPERATOR)).json()

    rotated = await client.post(f"/keys/{made['key_id']}/rotate", headers=AS_OPERATOR)

    assert rotated.status_code == 201
    assert rotated.json()["expires_at"] == made["expires_at"]


async def test_admins_make_keys_of_their_own_tenant_alone(
    client: httpx.AsyncClient, api: Api
) -> None:
    """Keys of other tenants look absent to an admin; the operator can name any tenant."""
    admin, other = await bearer(api, KeyScope.ADMIN), await bearer(api, KeyScope.ADMIN, tenant="b")
    mine = (await client.post("/keys", json={"name": "x"}, headers=admin)).json()
    refused = await client.post("/keys", json={"name": "x", "tenant": "b"}, headers=admin)
    spied = await client.get("/keys?tenant=b", headers=admin)

    assert mine["tenant"] == "a"
    assert [slug(answer) for answer in (refused, spied)] == ["tenant-refused"] * 2
    for method, path in (("DELETE", ""), ("POST", "/rotate")):
        answer = await client.request(method, f"/keys/{mine['key_id']}{path}", headers=other)
        absent = await client.request(method, f"/keys/{'0' * 16}{path}", headers=other)
        assert (answer.status_code, slug(answer)) == (404, "key-not-found")
        assert answer.json() | {"request_id": ""} == absent.json() | {"request_id": ""}
    assert {
        each["tenant"] for each in (await client.get("/keys", headers=AS_OPERATOR)).json()["keys"]
    } == {"a", "b"}


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"name": ""},
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["everything"]},
        {"name": "x", "tenant": "a/b"},
        {"name": "x", "tenant": "a\n"},
        {"name": "x", "expires_at": "2001-01-01T00:00:00Z"},
        {"name": "a\nb"},
        {"name": " "},
        {"name": "x", "secret": "mine"},
    ],
)
async def test_a_key_that_makes_no_sense_is_refused(
    wrong: dict[str, Any], client: httpx.AsyncClient
) -> None:
    """The error names the field."""
    answer = await client.post("/keys", json=wrong, headers=AS_OPERATOR)

    assert (answer.status_code, slug(answer)) == (422, "invalid-request")
    assert answer.json()["errors"][0]["field"]


async def test_deciding_approvals_needs_a_scope_of_its_own(
    api: Api, client: httpx.AsyncClient
) -> None:
    """A key that starts runs cannot approve calls, and the scope approve cannot start runs."""
    path, body = "/runs/x/approvals/y", {"decision": "approve"}
    answers = {
        scope: await client.post(path, json=body, headers=await bearer(api, scope))
        for scope in KeyScope
    }
    started = await client.post(
        "/runs", json={"input": "1+1"}, headers=await bearer(api, KeyScope.APPROVE)
    )

    assert {scope: answer.status_code for scope, answer in answers.items()} == {
        KeyScope.READ: 403,
        KeyScope.RUN: 403,
        KeyScope.APPROVE: 404,
        KeyScope.ADMIN: 404,
    }
    assert slug(started) == "scope-missing"


async def test_callers_see_their_own_name_and_scopes(client: httpx.AsyncClient, api: Api) -> None:
    """Implied scopes are included."""
    headers = await bearer(api, KeyScope.RUN)

    answer = (await client.get("/whoami", headers=headers)).json()

    own = {"tenant": "a", "name": "robot", "anonymous": False}
    assert answer == {**own, "scopes": ["read", "run"]}
