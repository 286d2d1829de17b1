"""``python -m bench migrations``: upgrades a filled database of the previous release under load.

A process of the previous release serves requests before, during and after the migrations, and one
of this checkout after them. The report has the time of each revision, the longest wait for a lock,
and the longest request and the errors on each side.
"""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

import psycopg
import typer
from psycopg import sql
from sqlalchemy.engine import make_url

from bench.growth.command import places
from bench.growth.fill import BOOTSTRAP, LARGE, current, filled_database
from bench.growth.loops import RUN
from bench.growth.originals import AGENT
from bench.growth.routes import Place
from bench.load import Request, connected
from bench.servers import asking, models
from caseworker.platform.postgres.embedded import EmbeddedPostgres
from caseworker.platform.postgres.schema_version import TableLockedError, upgrade
from tests.support.previous_release import REVISION, PreviousService, unpack

LANES: Final = 4
PAUSE_SECONDS: Final = 0.05
LOOK_SECONDS: Final = 0.02
ATTEMPTS: Final = 10
"""Attempts at the migrations, each of which ends if a lock is not free within its timeout."""

_WAITS: Final = """
SELECT extract(epoch FROM clock_timestamp() - waitstart)::float8, mode,
    coalesce(relation::regclass::text, locktype), left(regexp_replace(query, '\\s+', ' ', 'g'), 90),
    (SELECT max(version_num) FROM alembic_version)
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE NOT granted AND waitstart IS NOT NULL AND datname = current_database()
"""
_REVISION: Final = "SELECT max(version_num) FROM alembic_version"


@dataclass(slots=True)
class Traffic:
    """The requests to one process: start times, seconds and names, and errors."""

    name: str
    requests: list[tuple[float, float, str]] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    def report(self, phases: Mapping[str, tuple[float, float]]) -> list[str]:
        """Return a row of the table for each phase with requests."""
        rows = []
        for phase, (begin, end) in phases.items():
            sent = [
                (each, name) for at, each, name in self.requests if at < end and at + each > begin
            ]
            if sent:
                seconds = [each for each, _ in sent]
                cells = (
                    self.name,
                    phase,
                    f"{len(seconds):,}",
                    f"{1e3 * median(seconds):,.0f}",
                    f"{1e3 * max(seconds):,.0f}",
                    max(sent)[1],
                )
                rows.append("| " + " | ".join(cells) + " |")
        return rows


@dataclass(slots=True)
class Locks:
    """The longest wait for each lock, and the time at which each revision was applied."""

    waits: dict[tuple[str, str, str, str], float] = field(default_factory=dict)
    revisions: dict[str, float] = field(default_factory=dict)

    async def watch(self, url: str) -> None:
        """Poll until the task is cancelled."""
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            while True:
                for seconds, *lock in await (await connection.execute(_WAITS)).fetchall():
                    key = tuple(map(str, lock))
                    self.waits[key] = max(self.waits.get(key, 0), seconds)  # type: ignore[index, arg-type]
                (revision,) = await (await connection.execute(_REVISION)).fetchone() or ("",)
                self.revisions.setdefault(revision, time.monotonic())
                await asyncio.sleep(LOOK_SECONDS)


def main(
    size: Annotated[int, typer.Option(help="Number of runs.")] = 1_000_000,
    folder: Annotated[
        Path | None, typer.Option(help="Keep the filled database here, and use it again.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Seconds of load before and after.")] = 15.0,
    output: Annotated[Path | None, typer.Option(help="Write the report to this file.")] = None,
) -> None:
    """Upgrade a database of the previous release to this one, next to processes of both."""
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="migrations-")))
        home = folder or temporary
        home.mkdir(parents=True, exist_ok=True)
        server = stack.enter_context(EmbeddedPostgres(home / "data")).start()
        report = asyncio.run(_measure(server, unpack(temporary / "previous"), size, seconds))
    print(report)
    if output:
        output.write_text(report + "\n")


async def _measure(server: str, release: Path, size: int, seconds: float) -> str:
    previous = partial(_previous, release)
    filled = await filled_database(
        server, f"previous_{size}", size, serve=previous, revision=REVISION
    )
    url = await asyncio.to_thread(_copied, server, filled)
    phases: dict[str, tuple[float, float]] = {}
    old, new, locks = Traffic("previous release"), Traffic("this release"), Locks()
    async with models() as asked:
        settings = {**asking(asked), "AUTH_BOOTSTRAP_KEY": BOOTSTRAP}
        async with asyncio.TaskGroup() as tasks, previous(url, settings) as address:
            looking = tasks.create_task(locks.watch(url))
            loads = _loaded(tasks, places(url, address)[LARGE], old)
            phases["before"] = await _phase(asyncio.sleep(seconds))
            phases["migrations"] = await _phase(asyncio.to_thread(_upgrade, url))
            async with current(url, settings) as other:
                loads += _loaded(tasks, places(url, other)[LARGE], new)
                phases["both releases"] = await _phase(asyncio.sleep(seconds))
                for each in loads:
                    each.cancel()
                await asyncio.wait(loads)
            looking.cancel()
    return _report(phases, (old, new), locks)


@asynccontextmanager
async def _previous(release: Path, url: str, settings: Mapping[str, str]) -> AsyncIterator[str]:
    async with PreviousService(release, url, settings) as service:
        yield service.url


def _copied(server: str, filled: str) -> str:
    """Return the URL of a copy of a database, so that the next measurement begins with it again."""
    origin = str(make_url(filled).database)
    name = f"{origin}_migrated"
    parts = {"name": sql.Identifier(name), "origin": sql.Identifier(origin)}
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {name}").format(**parts))
        create = "CREATE DATABASE {name} TEMPLATE {origin} STRATEGY file_copy"
        connection.execute(sql.SQL(create).format(**parts))
    return make_url(filled).set(database=name).render_as_string(hide_password=False)


async def _phase(work: Coroutine[Any, Any, None]) -> tuple[float, float]:
    began = time.monotonic()
    await work
    return began, time.monotonic()


def _upgrade(url: str) -> None:
    for attempt in range(ATTEMPTS):
        try:
            return upgrade(url)
        except TableLockedError:
            print(f"attempt {attempt + 1}: a table was locked")
    raise RuntimeError("the migrations were not applied")


def _loaded(tasks: asyncio.TaskGroup, place: Place, traffic: Traffic) -> list[asyncio.Task[None]]:
    return [tasks.create_task(_lane(place, traffic)) for _ in range(LANES)]


def _requests(place: Place) -> Sequence[Request]:
    agent = {"kind": "agent", "agent": {"name": AGENT}, "input": "How much is 1 + 1?"}
    run = place.samples["run_id"]
    return (
        place.request("POST", "/runs", RUN, wait=20),
        place.request("GET", "/runs?limit=20"),
        place.request("POST", "/runs", agent, wait=20),
        place.request("GET", f"/runs/{run}/trace"),
        place.request("POST", "/threads", {"agent": {"name": AGENT}}),
        place.request("GET", "/runs?status=failed&limit=20"),
    )


async def _lane(place: Place, traffic: Traffic) -> None:
    for request in cycle(_requests(place)):
        began = time.monotonic()
        try:
            async with connected(place.address) as connection, asyncio.timeout(60):
                await connection.send(request)
        except (OSError, EOFError, RuntimeError, TimeoutError) as error:
            traffic.errors[f"{request.method} {request.path}: {error}"[:160]] += 1
        traffic.requests.append(
            (began, time.monotonic() - began, f"{request.method} {request.path}")
        )
        await asyncio.sleep(PAUSE_SECONDS)


def _report(
    phases: Mapping[str, tuple[float, float]], sides: Sequence[Traffic], locks: Locks
) -> str:
    begin, end = phases["migrations"]
    lines = [f"Migrations: {end - begin:.1f} s", "", "| revision | s |", "|---|---:|"]
    last = begin
    for revision, at in list(locks.revisions.items())[1:]:
        lines.append(f"| {revision} | {at - last:.2f} |")
        last = at
    lines += [
        "",
        "| process | phase | requests | p50, ms | longest, ms | longest request |",
        "|---|---|---:|---:|---:|---|",
    ]
    for side in sides:
        lines += side.report(phases)
    lines.append("")
    for side in sides:
        errors = [f"{count} x {error}" for error, count in side.errors.most_common(10)]
        lines.append(f"Errors, {side.name}: {'; '.join(errors) or 'none'}")
    lines += ["", "| wait, ms | lock | of | statement | after revision |", "|---:|---|---|---|---|"]
    for lock, seconds in sorted(locks.waits.items(), key=lambda item: -item[1])[:10]:
        lines.append(f"| {1e3 * seconds:,.0f} | " + " | ".join(lock) + " |")
    return "\n".join(lines)
