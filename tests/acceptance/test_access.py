"""Keys made on the command line, shown to real processes."""

import asyncio
import time
from collections.abc import Mapping

import httpx
import psycopg
import pytest

from app.access.authentication import KEPT_SECONDS
from tests.support.processes import run_caseworker
from tests.support.service import ServiceProcess

BOOTSTRAP = "operator-" + "7" * 32


def caseworker(url: str, *arguments: str, **env: str) -> str:
    done = run_caseworker(*arguments, env={"DATABASE_URL": url, **env})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def status(service: ServiceProcess, headers: Mapping[str, str]) -> int:
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(f"{service.url}/runs", headers=headers)).status_code


@pytest.mark.req("card/s2s")
async def test_a_key_works_on_every_replica_until_it_is_revoked(database_url: str) -> None:
    """The bound that is promised holds on a replica that has just let it in."""
    async with ServiceProcess(database_url) as one, ServiceProcess(database_url) as other:
        assert await status(one, {}) == 200
        secret = caseworker(database_url, "keys", "create", "--name", "robot", "--tenant", "a")
        key_id = secret.split("_")[1]
        for service in (one, other):
            assert await status(service, bearer(secret)) == 200
        assert secret not in caseworker(database_url, "keys", "list")

        caseworker(database_url, "keys", "revoke", key_id)
        revoked = time.monotonic()
        while {await status(one, bearer(secret)), await status(other, bearer(secret))} != {401}:
            assert time.monotonic() - revoked < KEPT_SECONDS + 5  # of which 5 for a busy machine
            await asyncio.sleep(0.1)
        assert await status(one, {}) == 401  # nobody without a key, although none works

        logs = one.child.stderr + other.child.stderr
    with psycopg.connect(database_url) as connection:
        stored = connection.execute("SELECT key_id, k::text FROM api_keys k").fetchall()
    assert [row[0] for row in stored] == [key_id]
    assert secret.rpartition("_")[2] not in str(stored) + logs


async def test_the_clients_send_the_key_of_the_environment(database_url: str) -> None:
    """The command line, and with it the Python client; without it they are refused."""
    settings = {"AUTH_BOOTSTRAP_KEY": BOOTSTRAP}
    async with ServiceProcess(database_url, settings=settings) as service:
        secret = caseworker(database_url, "keys", "create", "--name", "robot")
        env = {"CASEWORKER_URL": service.url, "CASEWORKER_API_KEY": secret}

        answer = await asyncio.to_thread(caseworker, database_url, "run", "What is 6 * 7?", **env)
        refused = await asyncio.to_thread(
            run_caseworker, "run", "What is 6 * 7?", env={"CASEWORKER_URL": service.url}
        )

        assert "42" in answer
        assert refused.returncode != 0
        assert "credential" in refused.stderr + refused.stdout
        assert await status(service, bearer(BOOTSTRAP)) == 200
