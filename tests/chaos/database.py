"""The Postgres of the chaos, and what is done to it: its disk is small, and its end sudden."""

import asyncio
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg

from app.adapters.postgres.embedded import EmbeddedPostgres
from app.adapters.postgres.embedded.cluster import read_postmaster
from app.adapters.postgres.embedded.programs import run_program, server_account
from app.adapters.postgres.migrating import upgrade

MAX_CONNECTIONS = 90
_SETTINGS = {"max_connections": str(MAX_CONNECTIONS), "max_wal_size": "'256MB'"}
_DISK_MB = 4096
_DISK_FULL = ("53100", "54000")
"""SQLSTATEs of a file that cannot grow: no space, or a limit of its size."""


class ChaosDatabase:
    """A server of its own, on a file system of its own if this process may mount one."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="caseworker-pg-"))
        self._mounted = False
        self._server = EmbeddedPostgres(self._folder / "data")
        self.url = ""

    async def __aenter__(self) -> Self:
        self._mounted = os.geteuid() == 0 and _ran("mount", "-t", "tmpfs", "tmpfs", self._folder)
        if self._mounted:
            self._remount(_DISK_MB * 1024)
            self._folder.chmod(0o711)
        self.url = await asyncio.to_thread(self._server.start)
        for name, value in _SETTINGS.items():
            await self.run(f"ALTER SYSTEM SET {name} = {value}")
        await self.restart("fast")
        await asyncio.to_thread(upgrade, self.url)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._server.stop)
        if self._mounted:
            _ran("umount", self._folder)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute one statement beside the service, past every proxy; return its rows."""
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            cursor = await connection.execute(statement.encode())
            return await cursor.fetchall() if cursor.description else []

    @property
    def server_pid(self) -> int | None:
        """The process id of the postmaster, None while there is none."""
        running = read_postmaster(self._cluster)
        return running.pid if running is not None and running.is_alive() else None

    async def restart(self, mode: str = "immediate") -> None:
        """Stop the server, ``immediate`` is like a crash, and start it again."""
        await self._control("stop", "-m", mode)
        await self.require_life()

    async def require_life(self) -> None:
        """Start the server if it is gone, and wait until it takes connections."""
        async with asyncio.timeout(60):
            while True:
                if self.server_pid is None:
                    await self._control("start", "-l", str(self._cluster / "server.log"))
                with suppress(psycopg.Error):
                    await self.run("SELECT 1")
                    return
                await asyncio.sleep(0.1)

    async def read_only(self, wanted: bool) -> bool:
        """Have every transaction refuse to write, or no longer; return whether that is so now."""
        value = "on" if wanted else "off"
        await self.run(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        await self.run("SELECT pg_reload_conf()")
        async with asyncio.timeout(10):
            while True:
                if await self.run("SHOW default_transaction_read_only") == [(value,)]:
                    return wanted
                await asyncio.sleep(0.02)

    @asynccontextmanager
    async def exhausted(self) -> AsyncIterator[bool]:
        """Hold every connection that is to be had; yields whether the server refuses others."""
        held: list[psycopg.AsyncConnection[Any]] = []
        try:
            try:
                while len(held) <= MAX_CONNECTIONS:
                    held.append(await psycopg.AsyncConnection.connect(self.url))
            except psycopg.OperationalError:
                yield True
            else:
                yield False
        finally:
            for connection in held:
                await connection.close()

    async def fill_disk(self) -> bool:
        """Let no file grow from now on; return whether the server has noticed."""
        if self._mounted:
            used = shutil.disk_usage(self._folder).used
            full = self._remount(used // 1024)
        else:
            full = self._limit_files(4 << 20)
        return full and await self._cannot_grow()

    async def empty_disk(self) -> None:
        """End :meth:`fill_disk`; start the server again if it could not bear it."""
        if self._mounted:
            self._remount(_DISK_MB * 1024)
        else:
            self._limit_files(resource.RLIM_INFINITY)
        await self.require_life()

    async def _cannot_grow(self) -> bool:
        try:
            for _ in range(10):
                await self.run(
                    "CREATE TEMP TABLE t AS SELECT repeat('x', 7000) FROM generate_series(1, 2000)"
                )
        except psycopg.Error as error:
            return error.sqlstate is None or error.sqlstate in _DISK_FULL or "57P" in error.sqlstate
        return False

    def _remount(self, kilobytes: int) -> bool:
        return _ran("mount", "-o", f"remount,size={kilobytes}k", self._folder)

    def _limit_files(self, limit_bytes: int) -> bool:
        """Limit the size of files of the server's processes, which is another way to no space."""
        pid = self.server_pid
        with suppress(psutil.Error, PermissionError, OSError):
            server = psutil.Process(pid)
            for process in (server, *server.children()):
                _, most = process.rlimit(psutil.RLIMIT_FSIZE)
                process.rlimit(psutil.RLIMIT_FSIZE, (limit_bytes, most))
            return pid is not None
        return False

    @property
    def _cluster(self) -> Path:
        return (self._folder / "data" / "cluster").resolve()

    async def _control(self, *arguments: str) -> None:
        place = ("-D", str(self._cluster), "-w", "-t", "30")
        await asyncio.to_thread(run_program, server_account(), "pg_ctl", *arguments, *place)


def _ran(*command: str | Path) -> bool:
    done = subprocess.run([str(part) for part in command], capture_output=True, check=False)
    return done.returncode == 0
