"""The servers that rows over HTTP measure: this service, floors and peers, on one Postgres."""

import asyncio
import os
import re
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psutil
import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

from bench.environments import ROOT, Environment
from caseworker.platform.postgres.embedded import EmbeddedPostgres
from caseworker.platform.postgres.schema_version import upgrade

_LISTENS: Final = re.compile(r"listens on (\S+)")
_GRACE_SECONDS: Final = 15

BACKENDS: Final = """
SELECT pid FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND (
    backend_type = 'client backend' AND datname = current_database() OR backend_type = 'walwriter'
)
"""
"""SQL for the processes of Postgres that work for this database, or for all."""


@contextmanager
def database() -> Iterator[str]:
    """Yield the URL of a new, migrated Postgres server."""
    with (
        tempfile.TemporaryDirectory(prefix="caseworker-bench-") as folder,
        EmbeddedPostgres(Path(folder) / "data") as embedded,
    ):
        url = embedded.start()
        upgrade(url)
        yield url


def another_database(url: str, name: str) -> str:
    """Create an empty database on the server of ``url``, and return its URL."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return make_url(url).set(database=name).render_as_string(hide_password=False)


@asynccontextmanager
async def service(
    url: str, *options: str, settings: Mapping[str, str] | None = None
) -> AsyncIterator[str]:
    """Run the service as an operator does, without its log; return its address."""
    command = (sys.executable, "-m", "caseworker", "serve", *options)
    variables = {"DATABASE_URL": url, "SERVER_PORT": "0", **(settings or {})}
    async with _listening(command, variables, log=DEVNULL) as address:
        yield address


@asynccontextmanager
async def models() -> AsyncIterator[str]:
    """Run a model provider without latency; see ``bench/sides/model_server.py``."""
    async with _listening((sys.executable, "-m", "bench.sides.model_server"), {}) as address:
        yield address


def asking(url: str) -> dict[str, str]:
    """Return the settings of a service that uses the models at ``url``."""
    named = {"PROVIDER": "openai", "BASE_URL": url, "API_KEY": "none", "MODEL": "turns-1"}
    small = {f"MODELS_SMALL_{name}": value for name, value in named.items()}
    return {**small, "MODELS_ALLOW_UNLISTED": "true"}  # the model names select the behaviour


def service_process() -> psutil.Process:
    """Return the process of the running service, which its parent supervises."""
    (parent,) = (each for each in psutil.Process().children() if "serve" in each.cmdline())
    (process,) = parent.children()
    return process


def process_at(address: str) -> psutil.Process:
    """Return the process below this one that listens on this address."""
    port = urlsplit(address).port
    (process,) = (
        each
        for each in psutil.Process().children(recursive=True)
        if any(place.laddr.port == port for place in each.net_connections("tcp"))
    )
    return process


def postgres_of(url: str) -> psutil.Process:
    """Return the first process of the server of a database."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_backend_pid()").fetchone() or (0,)
        return psutil.Process(row[0]).parent() or psutil.Process(row[0])


def cpu_seconds(process: psutil.Process, *, below: bool = False) -> float:
    """Return the CPU time of a process so far; ``below`` includes its children, even ended ones."""
    spent = 0.0
    if below:
        ended = process.cpu_times()
        spent += ended.children_user + ended.children_system
    for each in (process, *(process.children() if below else ())):
        with suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            spent += times.user + times.system
    return spent


def peak_bytes(process: psutil.Process) -> int:
    """Return the peak memory of a process, as reported by Linux."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@asynccontextmanager
async def floor(url: str) -> AsyncIterator[str]:
    """Run the floor, the fastest possible server here; see ``bench/sides/run_floor.py``."""
    command = (sys.executable, "-m", "bench.sides.run_floor")
    async with _listening(command, {"DATABASE_URL": url}) as address:
        yield address


@asynccontextmanager
async def peer(
    environment: Environment, side: str, url: str, variables: Mapping[str, str]
) -> AsyncIterator[str]:
    """Run a module of ``bench.sides`` that serves a peer with its own database."""
    command = (str(environment.python), "-m", f"bench.sides.{side}")
    own = {"DATABASE_URL": another_database(url, side), **variables}
    async with _listening(command, own) as address:
        yield address


@asynccontextmanager
async def _listening(
    command: Sequence[str], variables: Mapping[str, str], *, log: int | None = None
) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, stdout=PIPE, stderr=log, env={**os.environ, **variables}, cwd=ROOT
    )
    assert process.stdout is not None
    try:
        while True:
            line = await process.stdout.readline()
            if not line:
                raise RuntimeError(f"{' '.join(command)} ended before it listened")
            if found := _LISTENS.search(line.decode()):
                yield found[1]
                return
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(_GRACE_SECONDS):
            await process.wait()
