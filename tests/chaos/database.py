"""The Postgres of the chaos, and what is done to it."""

import asyncio
import os
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psycopg

from app.adapters.postgres.embedded import EmbeddedPostgres
from app.adapters.postgres.embedded.cluster import read_postmaster
from app.adapters.postgres.embedded.programs import run_program, server_account
from app.adapters.postgres.migrating import upgrade

_IS_READ_ONLY = "SHOW default_transaction_read_only"
_OTHERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"


class ChaosDatabase:
    """A server of its own: ``async with ChaosDatabase() as database``."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="caseworker-pg-"))
        self._server = EmbeddedPostgres(self._folder / "data")
        self.url = ""

    async def __aenter__(self) -> Self:
        self.url = await asyncio.to_thread(self._server.start)
        await asyncio.to_thread(upgrade, self.url)
        return self

    async def __aexit__(self, *_: object) -> None:
        if (pid := self.server_pid) is not None:
            os.kill(pid, signal.SIGQUIT)  # nobody needs what it would still write
        await asyncio.to_thread(self._server.stop)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute one statement beside the service, past every proxy; return its rows."""
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            cursor = await connection.execute(statement.encode())
            return await cursor.fetchall() if cursor.description else []

    async def asked(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement; none while the server is away."""
        with suppress(psycopg.Error, OSError):
            return await self.run(statement)
        return []

    @property
    def server_pid(self) -> int | None:
        """The process id of the postmaster, None while there is none."""
        running = read_postmaster(self._cluster)
        return running.pid if running is not None and running.is_alive() else None

    async def kill(self) -> bool:
        """``kill -9`` of the postmaster, and a new one; return whether it is another one."""
        before, log = self.server_pid, str(self._cluster / "server.log")
        assert before is not None
        os.kill(before, signal.SIGKILL)
        start = ("pg_ctl", "start", "-D", str(self._cluster), "-l", log, "-w", "-t", "30")
        async with asyncio.timeout(60):
            while not await self.asked("SELECT 1"):
                if self.server_pid is None:  # refused while backends of the old one are there
                    await asyncio.to_thread(run_program, server_account(), *start)
                await asyncio.sleep(0.1)
        return self.server_pid not in (None, before)

    async def terminate_backends(self) -> bool:
        """End every connection from the server's side; return whether there was one."""
        return len(await self.run(f"{_OTHERS} AND backend_type = 'client backend'")) > 0

    async def read_only(self, wanted: bool) -> bool:
        """Have every transaction refuse to write, or no longer; return whether that is so now."""
        value = "on" if wanted else "off"
        await self.run(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        await self.run("SELECT pg_reload_conf()")
        async with asyncio.timeout(10):
            while await self.run(_IS_READ_ONLY) != [(value,)]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return wanted

    @property
    def _cluster(self) -> Path:
        return (self._folder / "data" / "cluster").resolve()
