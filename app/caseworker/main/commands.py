"""Functions that CLI commands call.

They raise StartupError if the configuration is invalid, or if the process or the database cannot be
started or reached.

They import most modules only after the settings are validated, because the imports take a second or
two.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from caseworker.features.access.keys import ApiKey
from caseworker.features.access.postgres import PostgresKeys
from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.main.configuration import (
    StartupError,
    database_errors,
    logged_settings,
    read_settings,
    settings_of,
)
from caseworker.main.demo import with_recorded_model
from caseworker.main.lifetime import lifetime
from caseworker.main.project import variables_of_project
from caseworker.models.recorded import Recorder
from caseworker.platform.caller import OPERATOR
from caseworker.platform.postgres.engines import Pool
from caseworker.runs.run import CancelRequest, RunKey
from caseworker.settings.schema import Settings

T = TypeVar("T")

HAND_OVER_SECONDS = 40.0
"""Seconds allowed for releasing unfinished runs, in addition to the grace periods. A process that
is killed earlier does not release its runs."""


@lifetime()
def run_server(
    *,
    executes: bool,
    migrate: bool,
    started: Callable[[str], Awaitable[None]],
    record: Path | None = None,
    workers: int | None = None,
    demo: bool = False,
) -> None:
    """Serve the API until a signal ends the process.

    ``executes`` is whether the process also executes runs. ``migrate`` is whether it first upgrades
    the database. ``started`` is called with the URL once the server accepts requests.

    ``record`` names a file for recorded model replies. ``workers`` is the number of server
    processes; None uses the configured one. ``demo`` adds a recorded model if none is configured.
    """
    settings = with_recorded_model(logged_settings()) if demo else logged_settings()
    from caseworker.main.server import serve
    from caseworker.main.supervisor import WorkerSlot

    executes = executes and settings.worker.enabled
    count = workers or settings.server.workers
    if count > 1 and record is not None:
        raise StartupError("--record supports only one process. Remove --workers.")

    def serve_at(place: WorkerSlot) -> None:
        async def answers(url: str) -> None:
            place.answers()
            if place.is_first:
                await started(url)

        serve(settings, url, executes=executes, started=answers, place=place)

    with open_database(settings, migrate=migrate) as url:
        if record is not None:  # a process that is started again would replace the file
            with recording(settings, record, {}) as recorder, database_errors():
                serve(settings, url, executes=executes, started=started, recorder=recorder)
            return
        address = settings.server.host, settings.server.port
        _supervise(settings, url, address, count=count, serve=serve_at)


def _supervise(
    settings: Settings,
    url: str,
    address: tuple[str, int] | None,
    *,
    count: int,
    serve: Callable[[Any], None],
) -> None:
    """Run ``count`` processes until a signal, and count their deaths against runs.

    ``serve`` is called in each process with its :class:`WorkerSlot`.
    """
    from caseworker.main.deaths import count_death
    from caseworker.main.limits import pool_sizes
    from caseworker.main.supervisor import ProcessSupervisor
    from caseworker.main.worker import work_alone

    def executed(place: Any) -> None:
        with lifetime(), database_errors():
            if place.is_alone:
                work_alone(settings, url, place)
            else:
                serve(place)

    supervisor = ProcessSupervisor(
        address,
        count=count,
        serve=executed,
        counts=partial(
            count_death,
            url,
            max_attempts=settings.worker.max_attempts,
            patience=pool_sizes(settings).patience,
        ),
    )
    grace = settings.shutdown.grace_seconds + settings.worker.cancel_grace_seconds
    supervisor.run(grace_seconds=grace + HAND_OVER_SECONDS)


@lifetime()
def run_worker(*, migrate: bool) -> None:
    """Execute queued runs, without serving the API, until a signal ends the process.

    ``migrate`` is whether to upgrade the database first.
    """
    settings = logged_settings()
    from caseworker.main.worker import work

    with open_database(settings, migrate=migrate) as url:
        _supervise(settings, url, None, count=1, serve=partial(work, settings, url))


@dataclass(frozen=True, slots=True)
class CheckedConfiguration:
    """Result of checking a valid configuration: warnings about it, and its source."""

    warnings: tuple[str, ...]
    near_misses: tuple[str, ...]
    """The subset of the warnings about environment variables that look like misspelled settings."""
    source: str


def check_configuration(*, load: bool = False) -> CheckedConfiguration:
    """Validate the configuration as the service would read it, and return warnings about it.

    ``load`` is whether to import the plugins too, and to check the agents, tools and providers,
    which may come from them. This executes code of the working directory.
    """
    if load:
        loaded = read_settings()
        _load_plugins(loaded.settings)
    else:
        folder = Path.cwd()
        loaded = settings_of({**variables_of_project(folder), **os.environ}, folder)
    source = str(loaded.source or "defaults and environment")
    unlimited = loaded.settings.retention.unlimited
    growing = (
        f"retention.{each}_days: not set; {each} are kept until they are deleted"
        for each in unlimited
    )
    return CheckedConfiguration((*loaded.warnings, *growing), loaded.near_misses, source)


def _load_plugins(settings: Settings) -> None:
    from caseworker.main.agent_folder import read_agents, require_valid, with_code_agents
    from caseworker.main.agents import check_providers
    from caseworker.main.checks import graph_problems
    from caseworker.main.plugins import installed_agents
    from caseworker.nodes.nesting import DefinitionKind
    from caseworker.runs.kinds import KINDS

    check_providers(settings)
    agents = settings.agents
    all_agents = with_code_agents(read_agents(agents.folder), installed_agents(agents.plugins))
    kind = KINDS[DefinitionKind.AGENT]
    problems = graph_problems(settings, [kind.graph_of(one.agent) for one in all_agents])
    for one, of_one in zip(all_agents, problems, strict=True):
        require_valid(one, kind.at_home(of_one))


def problems_of_graph(graph: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return all problems of a graph as JSON objects, without using a service or database."""
    settings = read_settings().settings
    from caseworker.main.checks import graph_problems

    return [
        {"place": each.place, "message": each.message, "severity": each.severity.value}
        for each in graph_problems(settings, [graph])[0]
    ]


def upgrade_database() -> None:
    """Upgrade the schema of the configured database to the newest revision."""
    with open_database(logged_settings(), migrate=True):
        return


@dataclass(frozen=True, slots=True)
class SchemaRevision:
    """The revision of the schema of the configured database, next to that of this release."""

    revision: str | None
    """None if the database is empty."""
    newest: str
    """The newest revision that this release knows."""
    advice: str
    """The state of the schema, and what to do if this release cannot use it."""


def revision_of_database() -> SchemaRevision:
    """Return the revision of the configured database; start the embedded one if necessary.

    Raises:
        StartupError: the database cannot be reached.
    """
    settings = logged_settings()
    from caseworker.platform.postgres.schema_version import (
        UnknownRevisionError,
        current_revision,
        our_revisions,
    )

    with database_at(settings) as url, _schema_errors(settings):
        revision, newest = current_revision(url), max(our_revisions())
    if revision is None:
        advice = "The database is empty. Run `caseworker db upgrade`."
    elif revision == newest:
        advice = "The database is up to date."
    elif revision in our_revisions():
        advice = "The database schema is outdated. Run `caseworker db upgrade`."
    elif revision > newest:
        advice = "A newer release has migrated the database; this release works with it."
    else:
        advice = f"{UnknownRevisionError(revision)}."
    return SchemaRevision(revision, newest, advice)


def with_keys(use: Callable[[PostgresKeys], Awaitable[T]]) -> T:
    """Call ``use`` with the API keys in the configured database and return its result."""
    return _with_database(lambda pool: use(PostgresKeys(pool)))


def require_webhook_url(url: str) -> None:
    """Check that the settings allow messages to a URL.

    Raises:
        StartupError: they do not, or the URL is malformed.
    """
    settings = logged_settings()
    from caseworker.features.webhooks.feature import url_rules
    from caseworker.platform.webhook_addresses import AddressRefusedError

    try:
        url_rules(settings.webhooks).read(url)
    except AddressRefusedError as error:
        raise StartupError(f"--webhook: {error}") from None


def revoke_key(key_id: str) -> tuple[ApiKey, Sequence[RunKey]]:
    """Revoke a key and those that it has made; return it, and the runs that were cancelled.

    Raises:
        KeyNotFoundError: the key does not exist.
        StartupError: the database cannot be reached.
    """
    settings = logged_settings()

    async def revoked(pool: Pool) -> tuple[ApiKey, Sequence[RunKey]]:
        key = await PostgresKeys(pool).revoke(OPERATOR, key_id)
        return key, await _cancel_runs_of(pool, [key_id], settings)

    return _with_database(revoked, settings)


@dataclass(frozen=True, slots=True)
class RevokedKeys:
    """The keys that were revoked, and the runs that were cancelled with them."""

    keys: Sequence[ApiKey]
    runs: Collection[RunKey]
    """Open external runs whose keys were revoked."""
    cancelled: Sequence[RunKey]
    """Open runs of standing keys."""


def revoke_all_keys(*, before: datetime, tenant: str | None, but: Sequence[str]) -> RevokedKeys:
    """Revoke the keys that were created before a time, except the API keys with the IDs ``but``.

    Raises:
        KeyNotFoundError: a key in ``but`` does not exist; no key was revoked.
        StartupError: the database cannot be reached.
    """
    settings = logged_settings()
    from caseworker.features.external.postgres import PostgresAttempts

    async def revoked(pool: Pool) -> RevokedKeys:
        attempts = PostgresAttempts(pool, stale_seconds=settings.worker.stale_after_seconds)
        keys = await PostgresKeys(pool).revoke_all(OPERATOR, before=before, tenant=tenant, but=but)
        runs = await attempts.revoke_all(before=before, tenant=tenant)
        cancelled = await _cancel_runs_of(pool, [key.key_id for key in keys], settings)
        return RevokedKeys(keys, runs, cancelled)

    return _with_database(revoked, settings)


async def _cancel_runs_of(
    pool: Pool, key_ids: Collection[str], settings: Settings
) -> Sequence[RunKey]:
    """Cancel the open runs of revoked keys; the processes that own them are notified."""
    from caseworker.features.access.revocation import cancel_runs_of
    from caseworker.main.limits import store_limits
    from caseworker.platform.postgres.engines import transaction
    from caseworker.runs.execute.postgres.runs import cancel_in

    limits = store_limits(settings)

    async def cancel(key: RunKey, *, by: str, reason: str | None = None) -> None:
        async with transaction(pool) as connection:
            await cancel_in(connection, key, CancelRequest(requested_by=by, reason=reason), limits)

    return await cancel_runs_of(PostgresKeys(pool), key_ids, cancel, OPERATOR)


def with_quotas(use: Callable[[PostgresQuotas], Awaitable[T]]) -> T:
    """Call ``use`` with the tenant quota store in the configured database and return its result."""
    settings = logged_settings()
    return _with_database(lambda pool: use(PostgresQuotas(pool, settings.quotas.quota)), settings)


def workers_of_database() -> list[dict[str, Any]]:
    """Return the worker processes registered in the configured database, one dict for each.

    Timestamps are datetimes.
    """
    from caseworker.runs.recover.postgres import list_workers

    return [asdict(worker) for worker in _with_database(list_workers)]


def drain_worker(worker_id: str) -> None:
    """Request that a worker take no more runs and finish or release those it has.

    Raises:
        StartupError: the database cannot be reached, or the worker does not exist.
    """
    from caseworker.runs.recover.postgres import request_drain

    if not _with_database(lambda pool: request_drain(pool, worker_id)):
        raise StartupError(
            f"No worker has the ID {worker_id}. `caseworker workers` lists all workers."
        )


def keep_for(tenant: str, record: str, days: str) -> None:
    """Set how long a tenant's records of one type are kept.

    ``days`` is a number of days, ``forever`` or ``default`` (the configured retention period).

    Raises:
        StartupError: the database cannot be reached, or an argument is invalid.
    """
    from caseworker.features.retention.postgres import FOR_EVER, set_days
    from caseworker.main.features import DROPS

    words = {"forever": FOR_EVER, "default": None}
    if record not in DROPS:
        raise StartupError(f"record: must be one of {', '.join(DROPS)}.")
    if days not in words and not (days.isascii() and days.isdecimal() and 0 < int(days) <= 36_500):
        raise StartupError("days: must be a number from 1 to 36500, `forever` or `default`.")
    period = words[days] if days in words else int(days)
    _with_database(lambda pool: set_days(pool, tenant, record, period))


def _with_database(ask: Callable[[Any], Awaitable[T]], settings: Settings | None = None) -> T:
    """Call ``ask`` with a connection pool of the configured database and return its result."""
    settings = settings or logged_settings()
    from caseworker.main.limits import pool_sizes
    from caseworker.platform.postgres.engines import open_engines

    async def with_pool(url: str) -> T:
        engines = open_engines(url, pool_sizes(settings))
        try:
            return await ask(engines.control)
        finally:
            await engines.dispose()

    with open_database(settings, migrate=False) as url, database_errors():
        return asyncio.run(with_pool(url))


@contextmanager
def recording(
    settings: Settings, record: Path | None, about: Mapping[str, Any]
) -> Iterator[Recorder | None]:
    """Record model replies for the duration of the block, if a file is given.

    Raises:
        StartupError: the file cannot be written.
    """
    if record is None:
        yield None
        return
    from caseworker.main.agents import begin_recording

    try:
        recorder = begin_recording(settings, record, about)
    except OSError as error:
        raise StartupError(f"{record} cannot be written: {error.strerror}") from None
    with closing(recorder):
        yield recorder


@contextmanager
def open_database(settings: Settings, *, migrate: bool) -> Iterator[str]:
    """Yield the database URL; start and migrate the embedded database if no URL is configured.

    An external database is migrated only with ``migrate``.

    Raises:
        StartupError: the database cannot be started, does not answer or is outdated.
    """
    with database_at(settings) as url:
        with _schema_errors(settings):
            from caseworker.platform.postgres.schema_version import is_served_by, upgrade

            if migrate or settings.database.url is None:
                upgrade(url)
            elif not is_served_by(url):
                raise StartupError(
                    "database.url: the database schema is outdated. Run `caseworker db upgrade`, "
                    "or start with --migrate."
                )
        yield url


@contextmanager
def database_at(settings: Settings) -> Iterator[str]:
    """Yield the database URL; start the embedded database if no URL is configured.

    Raises:
        StartupError: the database cannot be started.
    """
    if settings.database.url is not None:
        yield settings.database.url.get_secret_value()
        return
    from caseworker.platform.postgres.embedded import EmbeddedPostgres, EmbeddedPostgresError

    try:
        with EmbeddedPostgres(settings.database.data_dir) as embedded:
            yield embedded.start()
    except EmbeddedPostgresError as error:
        raise StartupError(str(error)) from error


@contextmanager
def _schema_errors(settings: Settings) -> Iterator[None]:
    """Convert errors of the schema and of the database to StartupError, which has one line."""
    from caseworker.platform.postgres.schema_version import MigrationError

    setting = "database.data_dir" if settings.database.url is None else "database.url"
    try:
        with database_errors():
            yield
    except MigrationError as error:
        raise StartupError(f"{setting}: {error}") from None
