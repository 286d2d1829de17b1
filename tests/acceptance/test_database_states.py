"""In every faulty state of the database, each route answers in time; afterwards, all recovers.

The servers are real. The service is not restarted: it continues when the cause is gone.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from functools import partial

import httpx
import psycopg
import pytest

from caseworker.platform.postgres.schema_version import upgrade
from tests.chaos.disks import own_mounts
from tests.support.database import ACCEPT_ROWS, REFUSE_ROWS, proxied
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.fault_proxy import FaultProxy
from tests.support.own_postgres import OwnPostgres
from tests.support.route_kinds import WITHOUT_DATABASE, Reply, RouteKinds, table
from tests.support.service import ServiceProcess, finished, model_settings
from tests.support.stores import eventually

TIMEOUT_SECONDS = 8
READINESS_SECONDS = 5
MARGIN_SECONDS = 2
"""Seconds that a busy machine may add to a time limit."""

PLAN = {"actions": [{"tool": "calculator", "args": {"expression": "6 * 7"}}]}
QUESTION = {"run_id": "survivor", "input": "What is 6 times 7?"}
OTHERS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
CAUGHT_UP = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"

State = Callable[[], "AbstractContextManager[Fault]"]


class Fault:
    """A database and a fault of it: ``begin`` causes it, ``end`` removes the cause."""

    def __init__(
        self, url: str, begin: Callable[[], object], end: Callable[[], object] = lambda: None
    ) -> None:
        self.url = url
        self.begin = begin
        self.end = end
        self.proxy: FaultProxy | None = None


@contextmanager
def frozen() -> Iterator[Fault]:
    """Stop all processes of the server without closing a socket, as `docker pause` does."""
    with OwnPostgres() as server:
        yield Fault(server.url, server.freeze, server.thaw)


@contextmanager
def stopped() -> Iterator[Fault]:
    """Stop the server."""
    with OwnPostgres() as server:
        yield Fault(server.url, server.stop, server.start)


@contextmanager
def rotated_password() -> Iterator[Fault]:
    """Change the password and close all sessions; then store it where libpq reads it."""
    with OwnPostgres() as server:
        server.execute("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'old'")
        hba = server.data / "pg_hba.conf"
        hba.write_text(f"host all app 127.0.0.1/32 scram-sha-256\n{hba.read_text()}")
        server.execute("SELECT pg_reload_conf()")
        passwords = server.log.with_name("pgpass")

        def store(password: str) -> None:
            passwords.write_text(f"*:*:*:app:{password}\n")
            passwords.chmod(0o600)

        def rotate() -> None:
            server.execute("ALTER ROLE app PASSWORD 'new'")
            server.execute(OTHERS)

        store("old")
        url = server.url.replace("postgres@", "app@") + f"?passfile={passwords}"
        yield Fault(url, rotate, partial(store, "new"))


@contextmanager
def no_connections() -> Iterator[Fault]:
    """Close all sessions and let other clients use all connections."""
    with OwnPostgres(max_connections=60) as server, ExitStack() as taken:

        def take() -> None:
            with psycopg.connect(server.url, autocommit=True) as own:
                while True:
                    try:
                        taken.enter_context(psycopg.connect(server.url, application_name="other"))
                    except psycopg.OperationalError:
                        ours = own.execute(f"{OTHERS} AND application_name = 'caseworker'")
                        if ours.fetchone() == (0,):
                            return

        yield Fault(server.url, take, taken.close)


@contextmanager
def full_disk() -> Iterator[Fault]:
    """Leave no space for rows; where no disk can be mounted, refuse rows with the same error."""
    if own_mounts():
        with OwnPostgres() as server:
            execute = server.execute
            yield Fault(server.url, partial(execute, REFUSE_ROWS), partial(execute, ACCEPT_ROWS))
        return
    with OwnPostgres(disk=True) as server:
        disk = server.disk
        assert disk is not None

        def free() -> None:
            disk.free()
            if server.pid is None:  # a server that cannot write a checkpoint ends after a while
                server.start()

        yield Fault(server.url, disk.fill, free)


@asynccontextmanager
async def service_with(fault: Fault, provider: FakeProvider) -> AsyncIterator[ServiceProcess]:
    """Start a service with the usual times on the database of a fault."""
    await asyncio.to_thread(upgrade, fault.url)
    settings = {
        "SERVER_REQUEST_TIMEOUT_SECONDS": str(TIMEOUT_SECONDS),
        "WORKER_HEARTBEAT_SECONDS": "1",
        "WORKER_STALE_AFTER_SECONDS": "10",
        "SHUTDOWN_GRACE_SECONDS": "2",
        "MODELS_SMALL_TIMEOUT_SECONDS": "300",
        "MODELS_BIG_TIMEOUT_SECONDS": "300",
    }
    async with ServiceProcess(
        fault.url, settings=model_settings(provider.openai_url) | settings
    ) as service:
        yield service


def show(columns: dict[str, dict[str, Reply]]) -> None:
    """Print the table in docs/reliability.md."""
    sys.stdout.write(f"{table(columns)}\n")
    for name, replies in columns.items():
        sys.stdout.write(f"{name}: {replies['GET /readyz'].body}\n")


def require_answers(replies: dict[str, Reply]) -> None:
    """Check that each kind succeeds, or reports in time that the database is unavailable."""
    for kind, reply in replies.items():
        longest = READINESS_SECONDS if kind == "GET /readyz" else TIMEOUT_SECONDS
        if kind in WITHOUT_DATABASE:  # on a busy machine, the first one takes seconds
            assert reply.status == 200, (kind, reply)
            continue
        assert reply.seconds < longest + MARGIN_SECONDS, (kind, reply)
        assert reply.status < 300 or reply.status == 503, (kind, reply)
        if reply.status == 503:
            assert "atabase" in reply.body, (kind, reply)


@pytest.mark.proof
@pytest.mark.parametrize("state", [frozen, stopped, rotated_password, no_connections, full_disk])
async def test_every_route_answers_in_time_and_all_recovers(
    provider: FakeProvider, state: State
) -> None:
    """A run whose model answers during the fault finishes once, in its first attempt."""
    await provider.script("6 times 7", [Step(plan=PLAN, hang=True)])
    with state() as fault:
        async with service_with(fault, provider) as service, service.client() as client:
            kinds = await RouteKinds.of(service.url)
            await recovered(kinds)  # the first request of some kinds imports packages
            usual = await kinds.replies(timeout_seconds=60)
            await client.post_run(QUESTION)
            await provider.wait_for_arrivals(1, "6 times 7")

            await asyncio.to_thread(fault.begin)
            first = await kinds.replies(timeout_seconds=120)
            await provider.release()
            later = await kinds.replies(timeout_seconds=120)
            await eventually(partial(is_not_ready, service.url))
            await asyncio.to_thread(fault.end)

            show({"usual": usual, f"{state.__name__}, first": first, "later": later})
            for replies in (first, later):
                require_answers(replies)
            # Of a full disk, it depends on the free space in the pages of each table.
            refused = {kind for kind, reply in later.items() if reply.status == 503}
            assert "POST /runs" in refused if state is not full_disk else refused
            await recovered(kinds)
            run = await finished(client, "survivor")
            assert (run["status"], run["attempts"]) == ("completed", 1), run
            assert len(await provider.arrivals("6 times 7")) == 1
            assert service.child.exit_code is None


async def is_not_ready(url: str) -> bool:
    """Return whether /readyz names the database; /healthz must keep the process alive."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
        assert (await client.get("/healthz")).status_code == 200
        ready = await client.get("/readyz")
    return ready.status_code == 503 and ready.json()["parts"]["database"] != "ready"


async def recovered(kinds: RouteKinds) -> None:
    """Wait until every kind succeeds again."""
    until = time.monotonic() + 60
    while True:
        replies = await kinds.replies(timeout_seconds=60)
        failed = {kind: each for kind, each in replies.items() if each.status >= 300}
        if not failed:
            return
        assert time.monotonic() < until, failed
        await asyncio.sleep(0.5)


async def promote(old: OwnPostgres, new: OwnPostgres) -> None:
    """Refuse further writes at a primary, and promote its standby with all its rows."""
    await asyncio.to_thread(old.fence)
    written = await asyncio.to_thread(old.value, "SELECT pg_current_wal_lsn()")

    async def caught_up() -> bool:
        return bool(await asyncio.to_thread(new.value, CAUGHT_UP, written))

    await eventually(caught_up)
    await asyncio.to_thread(new.promote)


@asynccontextmanager
async def surviving_run(url: str, provider: FakeProvider) -> AsyncIterator[RouteKinds]:
    """Execute a run whose model answers after the block; the process must not be restarted."""
    await provider.script("6 times 7", [Step(plan=PLAN, hang=True)])
    fault = Fault(url, lambda: None)
    async with service_with(fault, provider) as service, service.client() as client:
        kinds = await RouteKinds.of(service.url)
        await recovered(kinds)  # the first request of some kinds imports packages
        await client.post_run(QUESTION)
        await provider.wait_for_arrivals(1, "6 times 7")
        yield kinds
        await recovered(kinds)
        await provider.release()

        run = await finished(client, "survivor")
        assert (run["status"], run["attempts"]) == ("completed", 1), run
        assert len(await provider.arrivals("6 times 7")) == 1
        assert service.child.exit_code is None


@pytest.mark.proof
async def test_sessions_at_a_former_primary_are_replaced(provider: FakeProvider) -> None:
    """They answer, but refuse every write; new connections reach the promoted standby."""
    with OwnPostgres() as old, OwnPostgres(standby_of=old) as new:
        async with (
            FaultProxy(("127.0.0.1", old.port)) as proxy,
            surviving_run(proxied(old.url, proxy), provider) as kinds,
        ):
            await promote(old, new)
            proxy.lead_to(("127.0.0.1", new.port))
            replies = await kinds.replies(timeout_seconds=120)
            show({"demoted": replies})
            require_answers(replies)
            assert proxy.counts.cut == 0, "no session was closed from outside"


@pytest.mark.proof
async def test_sessions_at_a_standby_are_replaced(provider: FakeProvider) -> None:
    """While all connections lead to a standby, rows can be read and writes get 503."""
    with OwnPostgres() as primary, OwnPostgres(standby_of=primary) as standby:
        async with (
            FaultProxy(("127.0.0.1", primary.port)) as proxy,
            surviving_run(proxied(primary.url, proxy), provider) as kinds,
        ):
            proxy.lead_to(("127.0.0.1", standby.port))
            proxy.cut()
            replies = await kinds.replies(timeout_seconds=120)
            show({"standby": replies})
            require_answers(replies)
            assert replies["POST /runs"].status == replies["GET /readyz"].status == 503
            assert replies["GET /runs"].status == 200
            proxy.lead_to(("127.0.0.1", primary.port))


@pytest.mark.proof
@pytest.mark.parametrize("how", ["demoted", "frozen", "stopped"])
async def test_a_url_with_two_hosts_finds_the_new_primary(provider: FakeProvider, how: str) -> None:
    """The first host is demoted or does not respond."""
    with OwnPostgres() as old, OwnPostgres(standby_of=old) as new:
        hosts = f"127.0.0.1:{old.port},127.0.0.1:{new.port}"
        url = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"
        async with surviving_run(url, provider) as kinds:
            await promote(old, new)
            if how != "demoted":
                await asyncio.to_thread(old.freeze if how == "frozen" else old.stop)
            replies = await kinds.replies(timeout_seconds=120)
            show({f"first host {how}": replies})
            require_answers(replies)


@pytest.mark.proof
@pytest.mark.parametrize("command", ["serve", "worker"])
async def test_sigterm_ends_a_process_whose_database_is_frozen(
    provider: FakeProvider, command: str
) -> None:
    """It ends long before the 45 seconds that an orchestrator grants."""
    with frozen() as fault:
        await asyncio.to_thread(upgrade, fault.url)
        settings = model_settings(provider.openai_url) | {"SHUTDOWN_GRACE_SECONDS": "5"}
        async with ServiceProcess(fault.url, command=command, settings=settings) as service:
            fault.begin()
            began = time.monotonic()
            assert await service.child.terminate() == 0
            assert time.monotonic() - began < 30
            assert "Traceback" not in service.child.stderr
            fault.end()
