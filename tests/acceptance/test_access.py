"""Keys made on the command line and used with real processes."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx
import psycopg
import pytest

from tests.support.processes import run_caseworker
from tests.support.service import ServiceProcess
from tests.support.stores import eventually

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


async def ask(service: ServiceProcess, secret: str) -> None:
    """Post a run that waits for an approval."""
    step = {"id": "ask", "type": "approval", "data": {"message": "Well?"}}
    body = {"kind": "graph", "run_id": "asks", "graph": {"steps": [step], "edges": []}}
    async with httpx.AsyncClient(base_url=service.url, trust_env=False) as http:
        posted = await http.post("/runs", json=body, headers=bearer(secret))
    assert posted.status_code == 202, posted.text


class Following:
    """An open stream of the events of a run."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.last = ""

    async def until(self, kind: str) -> None:
        """Read until an event of a type has arrived."""
        while self.last != kind:
            self._read(await anext(self._lines))

    async def until_the_end(self) -> None:
        """Read on until the service ends the stream."""
        async for line in self._lines:
            self._read(line)

    def _read(self, line: str) -> None:
        if line.startswith("event: "):
            self.last = line.removeprefix("event: ")


@asynccontextmanager
async def following(service: ServiceProcess, secret: str) -> AsyncIterator[Following]:
    headers = {**bearer(secret), "Accept": "text/event-stream"}
    async with (
        httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=600) as http,
        http.stream("GET", "/runs/asks/events", headers=headers) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        yield Following(answer.aiter_lines())


@pytest.mark.req("card/s2s")
async def test_a_key_works_on_every_replica_until_it_is_revoked(database_url: str) -> None:
    """A replica that has just accepted the key refuses it too."""
    async with ServiceProcess(database_url) as one, ServiceProcess(database_url) as other:
        assert await status(one, {}) == 200
        create = ("keys", "create", "--name", "robot", "--tenant", "a")
        created = run_caseworker(*create, env={"DATABASE_URL": database_url})
        assert "every client needs a key" in created.stderr
        secret = created.stdout.strip()
        key_id = secret.split("_")[1]
        for service in (one, other):
            assert await status(service, bearer(secret)) == 200
        assert secret not in caseworker(database_url, "keys", "list")

        caseworker(database_url, "keys", "revoke", key_id)

        async def refused() -> bool:
            return {await status(each, bearer(secret)) for each in (one, other)} == {401}

        await eventually(refused)
        assert await status(one, {}) == 401  # nobody without a key, although none works

        logs = one.child.stderr + other.child.stderr
    with psycopg.connect(database_url) as connection:
        stored = connection.execute("SELECT key_id, k::text FROM api_keys k").fetchall()
    assert [row[0] for row in stored] == [key_id]
    assert secret.rpartition("_")[2] not in str(stored) + logs


@pytest.mark.req("card/s2s")
async def test_a_stream_ends_with_the_key_that_it_was_opened_with(database_url: str) -> None:
    """The stream ends on every replica, even without new events; streams of other keys continue."""
    async with ServiceProcess(database_url) as one, ServiceProcess(database_url) as other:
        secrets = {
            name: caseworker(database_url, "keys", "create", "--name", name)
            for name in ("leaked", "kept")
        }
        await ask(one, secrets["kept"])
        async with following(one, secrets["kept"]) as kept:
            async with (
                following(one, secrets["leaked"]) as here,
                following(other, secrets["leaked"]) as there,
            ):
                for stream in (kept, here, there):
                    await stream.until("approval.requested")
                caseworker(database_url, "keys", "revoke", secrets["leaked"].split("_")[1])
                async with asyncio.timeout(150):
                    await here.until_the_end()
                    await there.until_the_end()
            assert {here.last, there.last} == {"approval.requested"}
            async with httpx.AsyncClient(base_url=one.url, trust_env=False) as http:
                await http.delete("/runs/asks", headers=bearer(secrets["kept"]))
            async with asyncio.timeout(150):
                await kept.until_the_end()
            assert kept.last == "run.cancelled"


async def test_the_clients_send_the_key_of_the_environment(database_url: str) -> None:
    """The command line uses the Python client, and both are refused without the key."""
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
        assert "Authentication required" in refused.stderr + refused.stdout
        assert await status(service, bearer(BOOTSTRAP)) == 200
