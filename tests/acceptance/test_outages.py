"""A database that is down, slow or silent: no run is lost, and every process ends."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest

from tests.support.database import ACCEPT_ROWS, REFUSE_ROWS, proxied, upstream_of
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.fault_proxy import FaultProxy
from tests.support.processes import run_caseworker
from tests.support.route_kinds import RouteKinds
from tests.support.service import QUICK, ServiceProcess, finished, model_settings, two_services
from tests.support.stores import eventually, open_oracle

PLAN = {"actions": [{"tool": "calculator", "args": {"expression": "6 * 7"}}]}
TERMINATE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
QUESTION = {"run_id": "survivor", "input": "What is 6 times 7?"}


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[FaultProxy]:
    """Run a proxy in front of the database, for all processes of a test."""
    async with FaultProxy(upstream_of(database_url)) as proxy:
        yield proxy


async def _readyz_of(worker: ServiceProcess) -> str:
    async def served() -> bool:
        return "worker.health" in worker.child.stderr

    await eventually(served)
    found = re.search(r"http://[^\s\"]+/readyz", worker.child.stderr)
    assert found is not None
    return found[0]


async def _part(url: str, name: str) -> str:
    async with httpx.AsyncClient(trust_env=False) as client:
        parts = (await client.get(f"{url}/readyz")).json()["parts"]
    return str(parts[name])


@pytest.mark.usefixtures("sound_events")
@pytest.mark.guarantee(19, 21)
@pytest.mark.parametrize("how", ["refused", pytest.param("silent", marks=pytest.mark.proof)])
async def test_living_processes_keep_their_runs_through_an_outage(
    database_url: str, proxy: FaultProxy, provider: FakeProvider, how: str
) -> None:
    """The outage exceeds the heartbeat limit, but no attempt is counted and no call repeated."""
    await provider.script("6 times 7", [Step(plan=PLAN, hang=True)])
    settings, url = model_settings(provider.openai_url), proxied(database_url, proxy)
    async with (
        ServiceProcess(url, settings=settings, name="first") as first,
        ServiceProcess(url, settings=settings, name="second") as second,
        first.client() as client,
    ):
        await client.post_run(QUESTION)
        await provider.wait_for_arrivals(1, "6 times 7")
        if how == "silent":
            proxy.silence()
        else:
            proxy.refuse()
            proxy.cut()
        outage_seconds = 4 * float(QUICK["WORKER_STALE_AFTER_SECONDS"])
        await asyncio.sleep(outage_seconds)
        proxy.resume()
        proxy.refuse(False)
        await asyncio.sleep(outage_seconds)
        await provider.release()

        run = await finished(client, "survivor")
        assert (run["status"], run["attempts"]) == ("completed", 1), run
        assert len(await provider.arrivals("6 times 7")) == 1
        logs = first.child.stderr + second.child.stderr
        assert "runs.recovered" not in logs
        # A silent connection only makes statements slow, unless one of them runs out of time.
        assert how == "silent" or "database_away" in logs


@pytest.mark.usefixtures("sound_events")
@pytest.mark.proof
async def test_living_processes_keep_their_runs_while_the_database_takes_no_writes(
    database_url: str, provider: FakeProvider
) -> None:
    """The read-only database answers queries but stores no heartbeat."""
    await provider.script("6 times 7", [Step(plan=PLAN, hang=True)])
    settings = model_settings(provider.openai_url)
    async with (
        ServiceProcess(database_url, settings=settings, name="first") as first,
        ServiceProcess(database_url, settings=settings, name="second") as second,
        open_oracle(database_url) as oracle,
        second.client() as client,
    ):
        async with first.client() as posting:
            await posting.post_run(QUESTION)
        await provider.wait_for_arrivals(1, "6 times 7")
        name = await oracle.value("SELECT current_database()")
        await oracle.rows(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        await oracle.rows(TERMINATE)
        await asyncio.sleep(4 * float(QUICK["WORKER_STALE_AFTER_SECONDS"]))
        await oracle.rows(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        await oracle.rows(TERMINATE)
        await asyncio.sleep(4 * float(QUICK["WORKER_STALE_AFTER_SECONDS"]))
        await provider.release()

        run = await finished(client, "survivor")
        assert (run["status"], run["attempts"]) == ("completed", 1), run
        assert len(await provider.arrivals("6 times 7")) == 1
        assert "runs.recovered" not in first.child.stderr + second.child.stderr


@pytest.mark.usefixtures("sound_events")
@pytest.mark.parametrize(
    "round_trip_ms", [100, *(pytest.param(ms, marks=pytest.mark.proof) for ms in (5, 300))]
)
async def test_a_database_that_is_far_away_is_asked_once_a_call(
    database_url: str, proxy: FaultProxy, provider: FakeProvider, round_trip_ms: int
) -> None:
    """Latency causes neither a hand-over nor a repeated call."""
    await provider.answer_by_default(Step(plan=PLAN))
    settings = model_settings(provider.openai_url)
    async with (
        ServiceProcess(proxied(database_url, proxy), settings=settings) as service,
        service.client() as client,
    ):
        proxy.delay(round_trip_ms / 1000)
        async with asyncio.TaskGroup() as posts:
            for number in range(5):
                question = {"run_id": f"far-{number}", "input": f"What is {number}?"}
                posts.create_task(client.post_run({**question, "gold_answer": "42"}))
        for number in range(5):
            run = await finished(client, f"far-{number}", seconds=180)
            assert run["status"] == "completed", run
            assert run["attempts"] == 1
            used = sum(run["usage"].get(f"llm_calls_{tier}", 0) for tier in ("small", "big"))
            assert len(await provider.arrivals(f"What is {number}?")) == used
        assert "run.handed_over" not in service.child.stderr


@pytest.mark.parametrize(
    ("command", "how"),
    [
        ("serve", "silent"),
        ("worker", "refused"),
        pytest.param("serve", "refused", marks=pytest.mark.proof),
        pytest.param("serve", "cut", marks=pytest.mark.proof),
        pytest.param("worker", "silent", marks=pytest.mark.proof),
        pytest.param("worker", "cut", marks=pytest.mark.proof),
    ],
)
async def test_sigterm_ends_a_process_that_has_just_lost_its_database(
    database_url: str, proxy: FaultProxy, command: str, how: str
) -> None:
    """The exit code is 0, and there is no traceback."""
    async with ServiceProcess(proxied(database_url, proxy), command=command) as service:
        proxy.refuse(how == "refused")
        if how == "silent":
            proxy.silence()
        else:
            proxy.cut()
        assert await service.child.terminate() == 0
        assert "Traceback" not in service.child.stderr
        proxy.resume()


@pytest.mark.usefixtures("sound_events")
async def test_sigterm_ends_a_process_that_cannot_give_its_runs_back(
    database_url: str, proxy: FaultProxy, provider: FakeProvider
) -> None:
    """Another process recovers them once the database is back."""
    await provider.script("6 times 7", [Step(hang=True), Step(plan=PLAN)], repeat_last=True)
    settings = model_settings(provider.openai_url)
    async with (
        ServiceProcess(proxied(database_url, proxy), settings=settings, name="first") as first,
        first.client() as client,
    ):
        await client.post_run(QUESTION)
        await provider.wait_for_arrivals(1, "6 times 7")
        proxy.refuse()
        proxy.cut()
        assert await first.child.terminate() == 0
        assert "runs.left_behind" in first.child.stderr
    async with (
        ServiceProcess(database_url, settings=settings, name="second") as second,
        second.client() as client,
    ):
        run = await finished(client, "survivor")
        assert (run["status"], run["attempts"]) == ("completed", 2)
        line = next(line for line in second.child.stderr.splitlines() if "run.taken_over" in line)
        assert '"run_id": "survivor"' in line


class _GoesAway(FaultProxy):
    """A proxy that serves one query of the database and then disappears."""

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.refuse(self.counts.accepted > 0)
        await super()._accept(reader, writer)


@pytest.mark.parametrize("command", ["serve", "worker"])
async def test_a_database_that_goes_away_during_start_up_is_named_in_one_line(
    database_url: str, command: str
) -> None:
    """The check of its revision had succeeded before."""
    async with _GoesAway(upstream_of(database_url)) as proxy:
        env = {**QUICK, "DATABASE_URL": proxied(database_url, proxy)}
        ended = await asyncio.to_thread(run_caseworker, command, env=env)

    assert proxy.counts.refused > 0
    assert ended.returncode == 2
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("database.url: ")
    assert "connection" in last
    assert "Traceback" not in ended.stderr


@pytest.mark.usefixtures("sound_events")
@pytest.mark.guarantee(10)
async def test_a_killed_process_is_noticed_within_seconds(
    database_url: str, provider: FakeProvider
) -> None:
    """With default times, this is long before a slow process would lose a run."""
    await provider.script("6 times 7", [Step(hang=True), Step(plan=PLAN)], repeat_last=True)
    settings = model_settings(provider.openai_url)
    usual = {"WORKER_HEARTBEAT_SECONDS": "1", "WORKER_STALE_AFTER_SECONDS": "600"}
    async with (
        ServiceProcess(database_url, settings=settings | usual, name="first") as first,
        ServiceProcess(database_url, settings=settings | usual, name="second") as second,
        first.client() as posting,
        second.client() as client,
    ):
        await posting.post_run(QUESTION)
        await provider.wait_for_arrivals(1, "6 times 7")
        first.child.kill()
        run = await finished(client, "survivor", seconds=180)
        assert (run["status"], run["attempts"]) == ("completed", 2)


@pytest.mark.usefixtures("sound_events")
@pytest.mark.proof
async def test_a_frozen_process_keeps_its_runs_while_it_holds_its_connection(
    database_url: str, provider: FakeProvider
) -> None:
    """The process misses many heartbeats but is alive, so no other process repeats its call."""
    await provider.script("6 times 7", [Step(plan=PLAN, hang=True)])
    settings = model_settings(provider.openai_url)
    patient = {"WORKER_STALE_AFTER_SECONDS": "600"}
    async with two_services(database_url, settings | patient) as (first, second, client):
        async with first.client() as posting:
            await posting.post_run(QUESTION)
        await provider.wait_for_arrivals(1, "6 times 7")
        first.child.freeze()
        await asyncio.sleep(10 * float(QUICK["WORKER_HEARTBEAT_SECONDS"]))
        first.child.thaw()
        await provider.release()
        run = await finished(client, "survivor")
        assert (run["status"], run["attempts"]) == ("completed", 1)
        assert "runs.recovered" not in second.child.stderr


async def test_a_worker_answers_for_its_health(database_url: str, proxy: FaultProxy) -> None:
    """The worker's port is not ready before it can claim runs and during an outage."""
    url = proxied(database_url, proxy)
    settings = {"WORKER_HEALTH_PORT": "0", "DATABASE_LOCK_TIMEOUT_MS": "120000"}
    async with open_oracle(database_url) as oracle, AsyncExitStack() as stack:
        async with oracle.connection.transaction():
            await oracle.rows("LOCK TABLE procrastinate_workers")  # it cannot register yet
            service = ServiceProcess(url, command="worker", settings=settings)
            worker = await stack.enter_async_context(service)
            readyz = await _readyz_of(worker)
            early = await _part(readyz.removesuffix("/readyz"), "worker")
            assert early == "The process has not polled the queue yet."
        await worker.child.ready(readyz)
        async with httpx.AsyncClient(trust_env=False) as client:
            healthy = await client.get(readyz.replace("readyz", "healthz"))
            ready = await client.get(readyz)
            proxy.refuse()
            proxy.cut()
            away = await client.get(readyz)
        assert (healthy.status_code, ready.status_code, away.status_code) == (200, 200, 503)
        assert set(ready.json()["parts"].values()) == {"ready"}
        assert away.json()["parts"]["database"].startswith("The database does not respond. Check")
        proxy.refuse(False)
        assert await worker.child.terminate() == 0


@pytest.mark.parametrize("how", ["silent", "full"])
async def test_every_request_gets_a_response_during_an_outage(
    database_url: str, proxy: FaultProxy, provider: FakeProvider, how: str
) -> None:
    """A request that cannot succeed gets 503, which names the database; afterwards all succeed."""
    settings = model_settings(provider.openai_url) | {"SERVER_REQUEST_TIMEOUT_SECONDS": "2"}
    async with (
        ServiceProcess(proxied(database_url, proxy), settings=settings) as service,
        open_oracle(database_url) as oracle,
    ):
        kinds = await RouteKinds.of(service.url)
        if how == "silent":
            proxy.silence()
        else:
            await oracle.rows(REFUSE_ROWS)
        replies = await kinds.replies(timeout_seconds=60)
        proxy.resume()
        if how == "full":
            await oracle.rows(ACCEPT_ROWS)

        refused = {kind: each for kind, each in replies.items() if each.status >= 300}
        assert {each.status for each in refused.values()} == {503}
        assert {kind for kind, each in refused.items() if "atabase" not in each.body} == set()
        assert {"POST /runs", "PUT /schedules/{id}"} < refused.keys()
        assert "POST /gateway/openai/v1/chat/completions" in refused
        assert how == "full" or "GET /readyz" in refused

        async def succeeds() -> bool:
            again = await kinds.replies(timeout_seconds=60)
            return all(each.status < 300 for each in again.values())

        await eventually(succeeds)


def test_a_port_that_is_taken_is_named_in_one_line(database_url: str) -> None:
    """A worker does not start if it cannot serve the configured health port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env = {**QUICK, "DATABASE_URL": database_url, "WORKER_HEALTH_PORT": str(port)}
        ended = run_caseworker("worker", env=env)

    assert ended.returncode == 2
    assert ended.stderr.strip().splitlines()[-1].startswith("worker.health_port: ")


async def test_a_replica_without_a_worker_is_ready_while_any_takes_runs(database_url: str) -> None:
    """The replica accepts runs either way, but without a worker no process would execute them."""
    async with ServiceProcess(database_url, "--no-worker") as replica:
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"{replica.url}/readyz")).status_code == 503
        assert await _part(replica.url, "worker") == (
            "No worker is running. Accepted runs stay queued."
        )
        async with ServiceProcess(database_url, command="worker", name="worker"):
            await replica.child.ready(f"{replica.url}/readyz")
            assert await _part(replica.url, "worker") == "ready"


async def test_a_probe_of_readiness_logs_nothing(database_url: str) -> None:
    """Probes arrive every few seconds from several sources."""
    async with ServiceProcess(database_url) as service:
        before = service.child.stderr.count("\n")
        for _ in range(5):
            assert await _part(service.url, "database") == "ready"
        assert service.child.stderr.count("\n") == before


async def test_a_database_that_takes_no_writes_makes_no_process_ready(database_url: str) -> None:
    """A read-only database answers queries but could not store an accepted run."""
    async with (
        ServiceProcess(database_url, "--no-worker") as service,
        open_oracle(database_url) as oracle,
    ):
        name = await oracle.value("SELECT current_database()")
        await oracle.rows(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        await oracle.rows(TERMINATE)
        said = await _part(service.url, "database")
        assert said.startswith("The database does not accept writes. Check that DATABASE_URL leads")
        await oracle.rows(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
