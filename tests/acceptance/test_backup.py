"""The commands of docs/backup.md bring a database with all its runs to another server."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import httpx

from caseworker.platform.postgres.embedded import EmbeddedPostgres
from caseworker.platform.postgres.embedded.programs import programs_folder
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.pages import ROOT, blocks_of
from tests.support.processes import run_caseworker
from tests.support.service import ServiceProcess, finished, model_settings
from tests.support.stores import eventually

AGENT = {"name": "reporter", "prompt": {"system": "Report."}}
APPROVED = {
    "steps": [{"id": "ask", "type": "approval", "data": {"message": "Publish?"}}],
    "edges": [],
}


def run_commands(program: str, folder: Path, **variables: str) -> None:
    """Run the commands of the page's block that begins with a program."""
    [block] = [
        each
        for each in blocks_of(ROOT / "docs" / "backup.md", "sh")
        if each.text.startswith(program)
    ]
    path = f"{programs_folder()}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-euc", block.text],
        cwd=folder,
        env={**os.environ, "PATH": path, **variables},
        check=True,
    )


async def test_a_restored_database_has_its_runs_and_continues_them(
    module_database_url: str,
    provider: FakeProvider,
    database_folder: Path,
    tmp_path: Path,
) -> None:
    """Finished runs are unchanged; running and waiting ones continue on the other server."""
    settings = model_settings(provider.openai_url)
    await provider.script("slowly", [Step(hang=True), Step(text="It rains.")])

    async def post(service: ServiceProcess, path: str, body: dict[str, Any]) -> None:
        async with httpx.AsyncClient(base_url=service.url, timeout=60) as http:
            (await http.post(path, json=body)).raise_for_status()

    async with (
        ServiceProcess(module_database_url, settings=settings) as first,
        first.client() as client,
    ):
        await post(
            first, "/runs", {"run_id": "done", "kind": "agent", "agent": AGENT, "input": "?"}
        )
        done = await finished(client, "done")
        body = {"run_id": "running", "kind": "agent", "agent": AGENT, "input": "Report slowly."}
        await post(first, "/runs", body)
        await provider.wait_for_arrivals(1, "slowly")
        await post(first, "/runs", {"run_id": "waiting", "kind": "graph", "graph": APPROVED})

        async def waits() -> bool:
            return bool((await client.get_run("waiting"))["status"] == "waiting")

        await eventually(waits)
        run_commands("pg_dump", tmp_path, DATABASE_URL=module_database_url)

    with EmbeddedPostgres(database_folder / "pg") as server:
        url = server.start()
        run_commands("psql", tmp_path, NEW_DATABASE_URL=url)
        async with ServiceProcess(url, settings=settings) as second, second.client() as client:
            assert await client.get_run("done") == done
            recovered = await finished(client, "running")
            async with httpx.AsyncClient(base_url=second.url) as http:
                [approval] = (await http.get("/runs/waiting/approvals")).json()["approvals"]
            decision = {"decision": "approve"}
            await post(second, f"/runs/waiting/approvals/{approval['approval_id']}", decision)
            approved = await finished(client, "waiting")

    assert (recovered["status"], recovered["attempts"]) == ("completed", 2)
    assert recovered["result"]["output"] == "It rains."
    assert approved["status"] == "completed"


def made_key(url: str, *arguments: str) -> Any:
    """Create or replace a key; return it as JSON."""
    done = run_caseworker("keys", *arguments, "--json", env={"DATABASE_URL": url})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_keys_that_a_restore_revives_are_revoked_by_one_command(
    database_url: str, database_folder: Path, tmp_path: Path
) -> None:
    """The command of the page revokes all keys in the dump: API keys and keys of open runs."""
    operator = made_key(database_url, "create", "--name", "operator", "--scope", "admin")
    revoked, rotated = (
        made_key(database_url, "create", "--name", name) for name in ("revoked", "rotated")
    )
    as_operator = {"Authorization": f"Bearer {operator['key']}", "Idempotency-Key": "one"}
    external = {"kind": "external", "budget": {"max_seconds": 3600}}

    async def status(url: str, key: str, path: str = "/runs") -> int:
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            return (await http.get(path, headers=headers)).status_code

    async with (
        ServiceProcess(database_url) as first,
        httpx.AsyncClient(base_url=first.url, headers=as_operator, timeout=60) as http,
    ):
        run_key = (await http.post("/runs", json=external)).json()["access"]["key"]
        run_commands("pg_dump", tmp_path, DATABASE_URL=database_url)
        (await http.delete(f"/keys/{revoked['key_id']}")).raise_for_status()
        (await http.post(f"/keys/{rotated['key_id']}/rotate", json={})).raise_for_status()

        async def refused() -> bool:
            return await status(first.url, revoked["key"]) == 401

        await eventually(refused)

    with EmbeddedPostgres(database_folder / "keys") as server:
        url = server.start()
        run_commands("psql", tmp_path, NEW_DATABASE_URL=url)
        async with ServiceProcess(url) as second:
            models = "/gateway/openai/v1/models"
            for key in (operator["key"], revoked["key"], rotated["key"]):
                assert await status(second.url, key) == 200, "the restore has revived it"
            assert await status(second.url, run_key, models) == 200

            command = ("keys", "revoke-all", "--before", "now", "--except", operator["key_id"])
            done = run_caseworker(*command, "--json", env={"DATABASE_URL": url})
            found = json.loads(done.stdout)
            assert {key["key_id"] for key in found["keys"]} == {
                revoked["key_id"],
                rotated["key_id"],
            }
            assert len(found["runs"]) == 1

            async def all_refused() -> bool:
                keys = (revoked["key"], rotated["key"])
                return {await status(second.url, key) for key in keys} == {401}

            await eventually(all_refused)
            assert await status(second.url, run_key, models) == 401
            assert await status(second.url, operator["key"]) == 200
            async with httpx.AsyncClient(
                base_url=second.url, headers=as_operator, timeout=60
            ) as http:
                again = (await http.post("/runs", json=external)).json()["access"]["key"]
                audit = (await http.get("/audit", params={"action": "key.revoked"})).json()
            assert await status(second.url, again, models) == 200, "its client goes on"
            assert revoked["key_id"] in json.dumps(audit)
