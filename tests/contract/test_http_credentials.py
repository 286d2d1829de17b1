"""Odd credentials on every route: refused before the body, and alike."""

import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

import httpx
import jwt
import psycopg
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric import rsa
from fastapi import FastAPI
from pydantic import SecretStr

from caseworker.features.access import authentication
from caseworker.features.external.sessions import Sessions
from caseworker.features.external.step_keys import key_of_step
from caseworker.gateway.dialects.offered import DIALECTS
from caseworker.main.process import Process
from caseworker.main.server import build_app
from caseworker.runs.run import RunKey
from caseworker.settings.schema import AuthSettings, JwtSettings, Settings
from tests.support.asgi_calls import Route, routes_of
from tests.support.credentials import KINDS, Presented, Secrets, bearer
from tests.support.seeds import seeds
from tests.support.tenants import OPERATOR_KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")

PUBLIC = ("/healthz", "/readyz", "/docs", "/openapi.json", "/ui")
"""Paths that need no credential: they show no data of tenants."""
REACHABILITY = {("HEAD", f"/gateway{each.base}") for each in DIALECTS}
"""Requests by which clients of model APIs check a base URL."""
PAGE = ("HEAD", "/runs/the-run/trace")
"""A route of the viewer, which answers only browsers."""
REFUSED = {401, 403}


@dataclass(frozen=True, kw_only=True)
class ClosedService:
    """A closed service, whose keys are known."""

    app: FastAPI
    secrets: Secrets
    routes: tuple[Route, ...]
    """Method and path of every route that needs a credential."""


@dataclass
class Reply:
    """Status of an answer, and the number of reads of the body before it."""

    status: int = 0
    reads: int = 0


async def answered(app: FastAPI, route: Route, presented: Presented) -> Reply:
    """Send a request with a long body, past the HTTP parser: headers may have any bytes."""
    reply = Reply()

    async def receive() -> dict[str, Any]:
        reply.reads += reply.status == 0
        return {"type": "http.request", "body": b"x" * 1_000, "more_body": True}

    async def send(message: Mapping[str, Any]) -> None:
        reply.status = message.get("status", reply.status)

    method, path = route
    json_body = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": presented.query,
        "root_path": "",
        "headers": [*json_body, *presented.headers],
        "client": ("192.0.2.1", 50_000),
        "server": ("caseworker", 80),
    }
    await app(scope, receive, send)
    return reply


async def keys_of(http: httpx.AsyncClient, database: psycopg.Connection, run_id: str) -> Secrets:
    """Create keys of each kind, some of which are valid no longer."""
    operator = {"Authorization": f"Bearer {OPERATOR_KEY}"}

    async def key(tenant: str) -> str:
        body = {"name": "robot", "scopes": ["admin"], "tenant": tenant}
        made = await http.post("/keys", json=body, headers=operator)
        return str(made.raise_for_status().json()["key"])

    one, two = await key("one"), await key("two")
    revoked, rotated, expired = [await key("one") for _ in range(3)]
    http.headers["Authorization"] = f"Bearer {one}"
    (await http.delete(f"/keys/{revoked.split('_')[1]}")).raise_for_status()
    path = f"/keys/{rotated.split('_')[1]}/rotate"
    (await http.post(path, json={"overlap_seconds": 0})).raise_for_status()

    ends = "UPDATE api_keys SET expires_at = now() WHERE key_id = %s"
    database.execute(ends, (expired.split("_")[1],))

    async def run(headers: Mapping[str, str] | None = None) -> Any:
        answer = await http.post("/runs", json={"kind": "external"}, headers=headers)
        return answer.raise_for_status().json()

    renewed, _ = [await run({"Idempotency-Key": "x"}) for _ in range(2)]
    erased = await run()
    await http.post(f"/runs/{erased['run_id']}/finish", json={"output": 1})
    (await http.delete(f"/runs/{erased['run_id']}/record")).raise_for_status()
    body = {"kind": "external", "run_id": run_id}
    live = (await http.post("/runs", json=body)).raise_for_status().json()
    return Secrets(
        tenant="one",
        run_id=run_id,
        key=one,
        other_key=two,
        operator=OPERATOR_KEY,
        run_key=live["access"]["key"],
        dead={
            "revoked": revoked,
            "rotated": rotated,
            "expired": expired,
            "of an erased run": erased["access"]["key"],
            "renewed": renewed["access"]["key"],
        },
    )


@pytest.fixture(scope="module")
def jwks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with the public key of an issuer of tokens."""
    public = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(public))
    file = tmp_path_factory.mktemp("issuer") / "jwks.json"
    file.write_text(json.dumps({"keys": [{**jwk, "kid": "known", "use": "sig"}]}))
    return file


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def closed_service(
    module_database_url: str, module_database: psycopg.Connection, jwks: Path
) -> AsyncIterator[ClosedService]:
    """Run the whole application with API keys, an operator, and an issuer of tokens."""
    issuer = JwtSettings(issuer="x", audience="x", jwks_file=jwks)
    auth = AuthSettings(bootstrap_key=SecretStr(OPERATOR_KEY), jwt=issuer)
    process = Process(Settings(auth=auth), module_database_url, executes=True)
    app = build_app(process)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with process.opened():
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            secrets = await keys_of(http, module_database, "the-run")
        closed = [
            (method, path)
            for method, path in dict.fromkeys(routes_of(app, secrets.run_id))
            if not path.startswith(PUBLIC) and (method, path) not in {*REACHABILITY, PAGE}
        ]
        yield ClosedService(app=app, secrets=secrets, routes=tuple(closed))


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer refused requests without a delay."""
    monkeypatch.setattr(authentication, "MAX_REFUSAL_SECONDS", 0.0)


async def faults_of(
    closed_service: ClosedService, presented: Presented, routes: Sequence[Route]
) -> list[str]:
    """Return the routes that do not refuse a credential, or that read the body before."""
    faults = []
    for route in routes:
        reply = await answered(closed_service.app, route, presented)
        if reply.status not in REFUSED or reply.reads:
            faults.append(f"{route}: {reply} for {str(presented)[:300]}")
    return faults


@pytest.mark.parametrize("kind", KINDS)
async def test_an_odd_credential_is_refused_on_every_route_before_its_body(
    closed_service: ClosedService, kind: str
) -> None:
    """All variants are tried, and each route gets five of them."""
    variants = list(KINDS[kind].fixed(closed_service.secrets))
    count = -(-5 * len(closed_service.routes) // len(variants))
    routes = cycle(closed_service.routes)
    faults = [
        fault
        for presented in variants
        for fault in await faults_of(closed_service, presented, list(islice(routes, count)))
    ]

    assert not faults
    assert len(variants) >= 5
    assert len(closed_service.routes) > 90


@pytest.mark.req("cw/15.code")
async def test_the_key_of_a_step_may_only_call_the_gateway_while_the_step_executes(
    closed_service: ClosedService,
) -> None:
    """Other routes do not know it; afterwards no route does."""
    sessions = closed_service.app.state.shared.services[Sessions]
    session = sessions.get(RunKey(closed_service.secrets.tenant, closed_service.secrets.run_id))
    key = sessions.offer(session)
    gateway = [each for each in closed_service.routes if each[1].startswith(("/gateway", "/v1"))]
    other = [each for each in closed_service.routes if each not in gateway]
    models = await answered(closed_service.app, ("GET", "/gateway/openai/v1/models"), bearer(key))
    faults = await faults_of(closed_service, bearer(key), other)
    sessions.withdraw(key)
    later = await faults_of(closed_service, bearer(key), closed_service.routes)

    assert models.status == 200
    assert not faults + later
    assert len(gateway) > 8


@seeds(fast=2 * len(KINDS), proofs=10_000, shards=16)
async def test_a_random_credential_is_refused_on_every_route(
    closed_service: ClosedService, seeds: Iterable[int]
) -> None:
    """The seed draws the kind and the credential."""
    faults = []
    for seed in seeds:
        random = Random(seed)
        kind = list(KINDS.values())[seed % len(KINDS)]
        presented = kind.drawn(closed_service.secrets, random)
        faults += [
            f"seed {seed}: {each}"
            for each in await faults_of(closed_service, presented, closed_service.routes)
        ]

    assert not faults


@dataclass
class Work:
    """Number of statements and hashes that a request cost."""

    statements: int = 0
    hashes: int = 0


OBSERVED: ContextVar[Work] = ContextVar("observed")


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the statements and hashes of a context, without those of other tasks of the process."""
    execute, sha256, mac = psycopg.AsyncCursor.execute, hashlib.sha256, hmac.new

    async def counted(cursor: Any, *arguments: Any, **options: Any) -> Any:
        OBSERVED.get(Work()).statements += 1
        return await execute(cursor, *arguments, **options)

    def hashed(function: Any, *arguments: Any, **options: Any) -> Any:
        OBSERVED.get(Work()).hashes += 1
        return function(*arguments, **options)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", counted)
    monkeypatch.setattr(hashlib, "sha256", partial(hashed, sha256))
    monkeypatch.setattr(hmac, "new", partial(hashed, mac))


def alike(secrets: Secrets) -> Mapping[str, Mapping[str, str]]:
    """Return credentials of equal form, refused for different reasons, by their form."""
    _, key_id, secret = secrets.key.split("_")
    _, other_id, other_secret = secrets.other_key.split("_")
    unknown = RunKey(secrets.tenant, "x" * len(secrets.run_id))
    genuine = RunKey(secrets.tenant, secrets.run_id)
    return {
        "API keys": {
            "of an unknown ID": f"cwk_{'0' * 16}_{secret}",
            "with a wrong secret": f"cwk_{key_id}_{'0' * 64}",
            "with the ID of another tenant": f"cwk_{other_id}_{secret}",
            "with the secret of another tenant": f"cwk_{key_id}_{other_secret}",
            "revoked": secrets.dead["revoked"],
            "rotated": secrets.dead["rotated"],
            "expired": secrets.dead["expired"],
        },
        "keys of runs": {
            "unknown": f"cwr_{'0' * 64}",
            "changed": secrets.run_key[:-4] + "0000",
            "of an erased run": secrets.dead["of an erased run"],
            "renewed": secrets.dead["renewed"],
        },
        "keys of steps": {
            "of an unknown run": key_of_step(unknown, "x"),
            "of a run": key_of_step(genuine, "x"),
            "of a run of another tenant": key_of_step(replace(genuine, tenant="two"), "x"),
        },
    }


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("form", ["API keys", "keys of runs", "keys of steps"])
@pytest.mark.parametrize(
    "route",
    [
        *(("GET", "/runs/the-run"), ("POST", "/runs"), ("POST", "/mcp"), ("POST", "/gateway/mcp")),
        *(("POST", "/gateway/openai/v1/responses"), ("POST", "/gateway/anthropic/v1/messages")),
    ],
    ids=str,
)
async def test_a_refusal_does_not_tell_by_its_work_why_a_credential_is_refused(
    closed_service: ClosedService, route: Route, form: str
) -> None:
    """Unknown, wrong, revoked and foreign keys cost the same statements and hashes."""
    costs = {}
    for name, credential in alike(closed_service.secrets)[form].items():
        closed_service.app.state.shared.authentication._refused.clear()
        OBSERVED.set(work := Work())
        reply = await answered(closed_service.app, route, bearer(credential))
        costs[name] = work.statements, work.hashes
        assert reply.status == 401, name

    assert len(set(costs.values())) == 1, costs
    assert min(costs.values()) > (0, 0)
