"""A process without the package ``caseworker-cases``, on the database of processes that have it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.json_client import JsonClient
from tests.support.previous_release import hide_cases
from tests.support.service import ServiceProcess, finished

CASE = {"input": "What is 6 * 7?"}
NEEDED = (
    "Runs of kind case need the package caseworker-cases in the environment of the service: "
    "pip install 'caseworker[cases]'."
)
ROUTE = {"when": {"path": "default", "op": "ge", "value": 1}, "to": "next"}
GRAPH = {"steps": [{"id": "a", "type": "router", "data": {"routes": [ROUTE]}}], "edges": []}


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment in which the package of cases registers nothing."""
    folder = tmp_path_factory.mktemp("hidden")
    hide_cases(folder)
    return {"PYTHONPATH": str(folder)}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stored(module_database_url: str) -> Mapping[str, Any]:
    """Return an ended case; two other cases are queued."""
    async with ServiceProcess(module_database_url) as full, full.client() as client:
        await client.post_run({**CASE, "run_id": "ended"})
        ended = await finished(client, "ended")
    async with ServiceProcess(module_database_url, "--no-worker") as idle, idle.client() as client:
        await client.post_run({**CASE, "run_id": "waits"})
        await client.post_run({**CASE, "run_id": "unwanted"})
    return ended


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bare(
    module_database_url: str, hidden: Mapping[str, str], stored: object
) -> AsyncIterator[ServiceProcess]:
    """Run a process without the package of cases."""
    prefix = ["env", *(f"{name}={value}" for name, value in hidden.items())]
    async with ServiceProcess(module_database_url, prefix=prefix) as running:
        yield running


@pytest_asyncio.fixture
async def client(bare: ServiceProcess) -> AsyncIterator[JsonClient]:
    """Return a client of the process without the package."""
    async with bare.client() as client:
        yield client


@pytest_asyncio.fixture
async def http(bare: ServiceProcess) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of the process without the package that raises no errors."""
    async with bare.http() as client:
        yield client


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (CASE, f"Send a kind: 'graph', 'agent' or 'external'. {NEEDED}"),
        ({**CASE, "kind": "case", "gold_answer": "42"}, NEEDED),
        ({"from": {"run_id": "ended"}}, NEEDED),
        ({"from": {"run_id": "ended"}, "kind": "case"}, NEEDED),
    ],
)
async def test_a_case_is_rejected_with_the_package_to_install(
    http: httpx.AsyncClient, body: Mapping[str, Any], message: str
) -> None:
    """Without the package, a body needs a kind, and no kind is a case."""
    refused = await http.post("/runs", json=body)

    assert refused.status_code == 422, refused.text
    assert refused.json()["errors"] == [{"field": "kind", "message": message}]


async def test_stored_cases_stay_readable(
    http: httpx.AsyncClient, stored: Mapping[str, Any]
) -> None:
    """The run, its trace, its calls and its events are those that the other process showed."""
    shown = (await http.get("/runs/ended")).json()
    trace = await http.get("/runs/ended/trace")
    explained = await http.get("/runs/ended/trace?format=explain")
    events = await http.get("/runs/ended/events")
    nodes = trace.json()["snapshot"]["nodes"]
    calls = [await http.get(f"/runs/ended/calls/{node_id}") for node_id in nodes]
    listed = (await http.get("/runs?kind=case")).json()["runs"]

    assert shown == stored
    assert shown["result"]["answer"] == "42"
    assert [each.status_code for each in (trace, explained, events, *calls)] == [200] * (
        3 + len(nodes)
    )
    assert len(nodes) >= 4
    assert "run.completed" in events.text
    assert {each["run_id"] for each in listed} >= {"ended", "waits"}


async def test_other_kinds_run_and_no_queued_case_is_claimed(
    client: JsonClient, bare: ServiceProcess
) -> None:
    """The process executes runs that were queued after the cases, and leaves the cases queued."""
    await client.post_run({"run_id": "graph", "kind": "graph", "graph": GRAPH, "input": 1})
    delayed = {"run_id": "later", "kind": "graph", "graph": GRAPH, "input": 1}
    await client.post_run({**delayed, "start_at": "2026-01-01T00:00:00Z"})
    ended = [await finished(client, run_id) for run_id in ("graph", "later")]
    case = await client.get_run("waits")

    assert [each["status"] for each in ended] == ["completed", "completed"]
    assert (case["status"], case["attempts"], case["started_at"]) == ("queued", 0, None)
    assert "runs.not_executed" in bare.child.stderr
    assert "2 runs wait for a process that has it" in bare.child.stderr
    assert "run.declined" not in bare.child.stderr


async def test_a_queued_case_can_be_cancelled(http: httpx.AsyncClient) -> None:
    """The cancel ends the case in the process without its package."""
    receipt = await http.delete("/runs/unwanted")
    run = (await http.get("/runs/unwanted")).json()

    assert receipt.status_code == 202, receipt.text
    assert (run["status"], run["kind"], run["finish_reason"]) == ("cancelled", "case", None)


async def test_the_doctor_counts_the_cases_that_wait(
    module_database_url: str, hidden: Mapping[str, str], bare: ServiceProcess
) -> None:
    """It exits with 1 and names the package to install."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "caseworker", "doctor"),
        env={**hidden, "DATABASE_URL": module_database_url, "SERVER_PORT": "0"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parent,
    )
    said, complaints = await program.communicate()
    text = " ".join(said.decode().split())

    assert program.returncode == 1, complaints.decode()
    assert f"wait for a process that has it. {NEEDED}" in text or NEEDED in text
    assert "pip install 'caseworker[cases]' adds cases" in text


async def test_a_process_with_the_package_executes_the_cases_that_waited(
    module_database_url: str, client: JsonClient
) -> None:
    """The case is found although a process without the package looked at its tenant before."""
    async with ServiceProcess(module_database_url):
        ended = await finished(client, "waits")

    assert (ended["status"], ended["result"]["answer"]) == ("completed", "42")
