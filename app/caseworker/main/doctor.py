"""Check the parts that a service needs; each result names the problem and its remedy."""

import asyncio
import os
import platform
import resource
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from caseworker.main.commands import check_configuration, open_database
from caseworker.main.configuration import (
    StartupError,
    database_errors,
    read_settings,
    url_of,
)
from caseworker.main.demo import has_model
from caseworker.main.plugins import Providers
from caseworker.platform.postgres.connections import Patience
from caseworker.settings.models import BUILT_IN
from caseworker.settings.schema import Settings

_MIN_FREE_MB: Final = 1024
_MAX_CLOCK_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    ok: bool
    detail: str
    """The state of the part; for a problem, also the remedy."""


def examine(*, ask_models: bool) -> Iterator[Finding]:
    """Yield the result of each check, in the order in which their problems should be solved.

    ``ask_models`` is whether to call each configured model once, which costs money.
    """
    running = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    supported = (3, 11) <= sys.version_info[:2] < (3, 15) and os.name == "posix"
    yield _finding("platform", running, None if supported else "use Python 3.11 to 3.14 on Unix")
    try:
        loaded = read_settings()
    except StartupError as error:
        yield Finding("configuration", False, str(error))
        return
    settings = loaded.settings
    unclear = loaded.near_misses and loaded.near_misses[0]
    source = str(loaded.source or "defaults and environment")
    yield Finding("configuration", not unclear, unclear or source)
    try:
        check_configuration(load=True)
        yield Finding("plugins", True, "tools, agents and providers load")
    except StartupError as error:
        yield Finding("plugins", False, str(error))
    if settings.database.url is None:
        yield from _folder(settings.database.data_dir)
    yield from _database(settings)
    yield _port(settings)
    yield from _models(settings, ask=ask_models)
    viewer = files("caseworker.ui") / "static" / "app.js"
    yield _finding(
        "viewer", "its files exist", None if viewer.is_file() else "reinstall caseworker"
    )
    yield _open_files(settings)


def _finding(check: str, detail: str, advice: str | None) -> Finding:
    return Finding(check, advice is None, detail if advice is None else f"{detail}: {advice}")


def _open_files(settings: Settings) -> Finding:
    needed = settings.server.max_connections + 500
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    is_enough = hard == resource.RLIM_INFINITY or hard >= needed
    advice = None if is_enough else f"raise it to {needed} (ulimit -Hn) or lower max_connections"
    return _finding("open files", f"limit {hard}, {needed} needed", advice)


def _folder(data_dir: Path) -> Iterator[Finding]:
    path = data_dir.expanduser().resolve()
    existing = next(each for each in (path, *path.parents) if each.exists())
    writable = os.access(existing, os.W_OK | os.X_OK)
    advice = None if writable else "not writable; set DATABASE_DATA_DIR or DATABASE_URL"
    yield _finding("data folder", str(path), advice)
    free = shutil.disk_usage(existing).free >> 20
    shortage = None if free >= _MIN_FREE_MB else f"free at least {_MIN_FREE_MB} MiB"
    yield _finding("disk", f"{free} MiB free", shortage)


def _database(settings: Settings) -> Iterator[Finding]:
    """Check the database; an embedded one is started for the checks and migrated."""
    name = "embedded Postgres" if settings.database.url is None else "reachable"
    with ExitStack() as opened:
        try:
            url = opened.enter_context(open_database(settings, migrate=False))
        except StartupError as error:
            yield Finding("database", False, str(error))
            return
        yield Finding("database", True, f"{name}, migrations up to date")
        from caseworker.platform.postgres.connections import driver_url

        try:
            with database_errors():
                findings = asyncio.run(_database_findings(settings, driver_url(url)))
        except StartupError as error:
            yield Finding("database", False, str(error))
        else:
            yield from findings


async def _database_findings(settings: Settings, url: str) -> list[Finding]:
    from caseworker.features.access.postgres import PostgresKeys
    from caseworker.main.limits import pool_sizes
    from caseworker.platform.postgres.engines import open_engines
    from caseworker.platform.postgres.statistics import ADVICE, tables_without_statistics
    from caseworker.runs.postgres.missing_kinds import runs_of_missing_kinds

    sizes = pool_sizes(settings)
    engines = open_engines(url, sizes)
    try:
        findings = await _connection_findings(url, sizes.patience)
        has_keys = await PostgresKeys(engines.control).any()
        unknown = await tables_without_statistics(engines.control)
        not_executed = await runs_of_missing_kinds(engines.control)
    finally:
        await engines.dispose()
    statistics = (
        f"none of the tables {', '.join(unknown)}" if unknown else "the tables are analysed"
    )
    return [
        *findings,
        _finding("statistics", statistics, ADVICE if unknown else None),
        _access(settings, has_keys=has_keys),
        *(Finding("runs", False, sentence) for sentence in not_executed),
    ]


async def _connection_findings(url: str, patience: Patience) -> list[Finding]:
    """Check for a pooler that shares connections, and compare the clocks."""
    from caseworker.platform.postgres.connections import Connection

    query = "SELECT pg_backend_pid(), extract(epoch FROM clock_timestamp())::float8"
    async with (
        await Connection.open(url, patience, autocommit=True) as first,
        await Connection.open(url, patience, autocommit=True) as second,
    ):
        # With transaction pooling, a transaction of the second connection takes the server
        # that the first one used last, and the first one gets another.
        [(server, _)] = await (await first.execute(query)).fetchall()
        async with second.transaction():
            await second.execute("SELECT 1")
            sent_at = time.time()
            [(other, now)] = await (await first.execute(query)).fetchall()
            ahead = now - (sent_at + time.time()) / 2
    pooled = None if server == other else "use session pooling, or connect to Postgres directly"
    pooling = "not by transaction" if pooled is None else "a pooler uses transaction pooling"
    late = None if abs(ahead) <= _MAX_CLOCK_SECONDS else "synchronize the clocks (NTP)"
    return [
        _finding("pooling", pooling, pooled),
        _finding("clock", f"{ahead:+.3f} s at the database", late),
    ]


def _access(settings: Settings, *, has_keys: bool) -> Finding:
    auth = settings.auth
    needs_key = has_keys or auth.bootstrap_key or auth.jwt.issuer
    if needs_key or auth.anonymous != "anywhere":
        return Finding("access", True, "requests from other machines need a key")
    advice = "create one (`caseworker keys create`), or unset AUTH_ANONYMOUS"
    return _finding("access", "requests from anywhere need no key", advice)


def _port(settings: Settings) -> Finding:
    import httpx

    host, port = settings.server.host, settings.server.port
    address = f"{host}:{port}"
    try:
        socket.create_server((host, port)).close()
        return Finding("port", True, f"{address} is free")
    except OSError as error:
        with suppress(httpx.HTTPError):
            answer = httpx.get(f"{url_of(host, port)}/healthz", timeout=2, trust_env=False)
            if answer.headers.get("X-Request-Id"):
                return Finding("port", True, f"the service runs at {address}")
        reason = os.strerror(error.errno or 0)
        return Finding("port", False, f"{address}: {reason}: stop its user or set SERVER_PORT")


def _models(settings: Settings, *, ask: bool) -> Iterator[Finding]:
    if not has_model(settings):
        planner = (
            "the built-in planner plans cases"
            if BUILT_IN in Providers()
            else "pip install 'caseworker[cases]' adds cases, which need none"
        )
        yield Finding("models", True, f"none; {planner}; set OPENAI_API_KEY to run agents")
    for name, chain in settings.models.chains().items():
        first = next(iter(chain.values()))
        if first.chosen_provider == BUILT_IN:
            continue  # it needs no key and no endpoint
        key = "with a key" if first.api_key else "without a key"
        works, detail = True, f"{first.chosen_model} of {first.chosen_provider}, {key}"
        if ask:
            works, detail = _answer(name, str(first.chosen_model))
        yield Finding(f"model {name}", works, detail)


def _answer(name: str, model: str) -> tuple[bool, str]:
    from caseworker.main.checks import check_model

    began = time.monotonic()
    try:
        answer = check_model(name, only_answer=True)[0]
    except StartupError as error:
        return False, str(error)
    if answer["works"]:
        return True, f"{model} answered in {time.monotonic() - began:.1f} s"
    return False, f"{model}: {answer['detail']}"
