"""The Postgres of the chaos, and its faults."""

import asyncio
import os
import shutil
import signal
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Self

import psycopg

from caseworker.platform.postgres.embedded import EmbeddedPostgres
from caseworker.platform.postgres.embedded.cluster import read_postmaster
from caseworker.platform.postgres.embedded.programs import run_program, server_account
from caseworker.platform.postgres.schema_version import upgrade
from tests.chaos.disks import SmallDisk

_IS_READ_ONLY = "SHOW default_transaction_read_only"
_OTHERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
_OURS = f"{_OTHERS} AND application_name = 'caseworker'"
_SETTINGS = {"max_connections": "120", "max_wal_size": "'128MB'", "min_wal_size": "'32MB'"}
"""Few connections, so they are soon exhausted, and few WAL segments kept for reuse."""
_STUCK_SECONDS = 10.0
"""The time limit of the server's recovery in seconds; it replays some megabytes."""
_NEXT_SEGMENT = "SELECT pg_switch_wal() FROM pg_logical_emit_message(true, 'chaos', 'next')"

NO_CONNECTIONS = "sorry, too many clients already"
NO_SPACE = "No space left on device"
_PANIC = "PANIC"
"""The log entry of a panic."""


class ChaosDatabase:
    """A separate server: ``async with ChaosDatabase(disks=True) as database``.

    With ``disks`` its data and its WAL are on small separate disks, which can be filled. Its log is
    elsewhere and records the resulting errors.
    """

    def __init__(self, *, disks: bool) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="caseworker-pg-"))
        self._server = EmbeddedPostgres(self._folder / "data")
        self._log = self._folder / "server.log"
        self._data = SmallDisk(self._folder / "data")
        self._wal = SmallDisk(self._folder / "wal")
        self._disks = (self._data, self._wal) if disks else ()
        self.url = ""

    async def __aenter__(self) -> Self:
        for disk in self._disks:
            disk.mount()
        self.url = await asyncio.to_thread(self._server.start)
        for name, value in _SETTINGS.items():
            await self.run(f"ALTER SYSTEM SET {name} = {value}")
        await asyncio.to_thread(self._begin_again)
        await asyncio.to_thread(upgrade, self.url)
        return self

    def _begin_again(self) -> None:
        """Restart with the WAL on its disk and the log on one that is never full."""
        cluster, account = self._cluster, server_account()
        run_program(account, "pg_ctl", "stop", "-D", str(cluster), "-m", "fast", "-w")
        owned = [self._log]
        self._log.touch(mode=0o600)
        if self._disks:
            wal = self._wal.folder / "pg_wal"
            shutil.copytree(cluster / "pg_wal", wal)
            shutil.rmtree(cluster / "pg_wal")
            (cluster / "pg_wal").symlink_to(wal)
            owned += [wal, *wal.rglob("*")]
        if account is not None:
            for path in owned:
                os.chown(path, account.pw_uid, account.pw_gid)
        code, said = self._start()
        assert code == 0, said

    async def __aexit__(self, *_: object) -> None:
        if (pid := self.server_pid) is not None:
            os.kill(pid, signal.SIGQUIT)  # its remaining writes are not needed
        await asyncio.to_thread(self._server.stop)
        for disk in self._disks:
            disk.unmount()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute one statement directly, without the proxies; return its rows."""
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            cursor = await connection.execute(statement.encode())
            return await cursor.fetchall() if cursor.description else []

    async def asked(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement; none while the server is down."""
        with suppress(psycopg.Error, OSError):
            return await self.run(statement)
        return []

    @property
    def server_pid(self) -> int | None:
        """The postmaster's process ID; None if it is not running."""
        running = read_postmaster(self._cluster)
        return running.pid if running is not None and running.is_alive() else None

    async def kill(self) -> bool:
        """Kill the postmaster and start it again; return whether its process changed."""
        before = self.server_pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        await self._is_back()
        return self.server_pid not in (None, before)

    async def terminate_backends(self) -> bool:
        """Close all client connections from the server; return whether any was open."""
        return len(await self.run(f"{_OTHERS} AND backend_type = 'client backend'")) > 0

    async def exhaust(self, *, seconds: float) -> bool:
        """Close the service's connections, and take all connections for a while.

        Return whether another client was refused a connection.
        """
        refused, until = -self._logged(NO_CONNECTIONS), float("inf")
        async with AsyncExitStack() as taken:
            own = await taken.enter_async_context(await self._connected())
            while time.monotonic() < until:
                try:
                    await taken.enter_async_context(await self._connected())
                except psycopg.OperationalError:
                    refused -= 1
                    if until == float("inf"):
                        until = time.monotonic() + seconds
                        await own.execute(_OURS.encode())
                    await asyncio.sleep(0.02)
        return refused + self._logged(NO_CONNECTIONS) > 0

    async def fill_data(self, *, seconds: float) -> bool:
        """Leave no disk space for rows for a while; return whether a write failed for it."""
        before = self._logged(NO_SPACE)
        await asyncio.to_thread(self._data.fill)
        try:
            await asyncio.sleep(seconds)
        finally:
            await asyncio.to_thread(self._data.free)
        await self._is_back()
        return self._logged(NO_SPACE) > before

    async def fill_wal(self, *, seconds: float) -> bool:
        """Leave no disk space for the WAL, so that the server panics; return whether it did.

        Its recovery cannot finish without disk space, so the server exits.
        """
        before = self._logged(_PANIC)
        await asyncio.to_thread(self._wal.fill)
        try:
            while self._logged(_PANIC) == before and await self.asked(_NEXT_SEGMENT):
                pass
            await asyncio.sleep(seconds)
        finally:
            await asyncio.to_thread(self._wal.free)
        await self._is_back()
        return self._logged(_PANIC) > before

    async def read_only(self, wanted: bool) -> bool:
        """Switch read-only mode on or off; return whether it is on afterwards."""
        value = "on" if wanted else "off"
        await self.run(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        await self.run("SELECT pg_reload_conf()")
        async with asyncio.timeout(10):
            while await self.run(_IS_READ_ONLY) != [(value,)]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return wanted

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(self.url, autocommit=True)

    async def _is_back(self) -> None:
        """Start the server if it is down or stuck, and wait until it answers.

        After a panic during recovery it sometimes hangs, even with free disk space.
        """
        async with asyncio.timeout(90):
            began = time.monotonic()
            while not await self.asked("SELECT 1"):
                pid = self.server_pid
                if pid is not None and time.monotonic() - began > _STUCK_SECONDS:
                    os.kill(pid, signal.SIGKILL)
                    began = time.monotonic()
                elif pid is None:  # the start fails while old backends are running
                    await asyncio.to_thread(self._start)
                await asyncio.sleep(0.1)

    def keep_log(self, folder: Path) -> None:
        """Copy the server's log."""
        shutil.copy(self._log, folder / "postgres.log")

    def _start(self) -> tuple[int, str]:
        start = ("start", "-D", str(self._cluster), "-l", str(self._log), "-w", "-t", "30")
        return run_program(server_account(), "pg_ctl", *start)

    def _logged(self, what: str) -> int:
        return self._log.read_text(errors="replace").count(what)

    @property
    def _cluster(self) -> Path:
        return (self._folder / "data" / "cluster").resolve()
