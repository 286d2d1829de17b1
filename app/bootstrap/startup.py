"""Gives a process a database to talk to."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import OperationalError

from app.adapters.postgres.embedded import EmbeddedPostgres, EmbeddedPostgresError
from app.adapters.postgres.migrating import is_served_by, upgrade
from app.bootstrap.errors import StartupError
from app.settings.schema import Settings


@contextmanager
def database(settings: Settings, *, migrate: bool) -> Iterator[str]:
    """Return the URL of the database; the embedded one runs, migrated, while the block does.

    Another database is migrated only with ``migrate``.

    Raises:
        StartupError: the database cannot be started, does not answer or is outdated.
    """
    if settings.database.url is not None:
        url = settings.database.url.get_secret_value()
        _prepare(url, migrate=migrate)
        yield url
        return
    try:
        with EmbeddedPostgres(settings.database.data_dir) as embedded:
            url = embedded.start()
            upgrade(url)
            yield url
    except EmbeddedPostgresError as error:
        raise StartupError(str(error)) from error


def _prepare(url: str, *, migrate: bool) -> None:
    try:
        if migrate:
            upgrade(url)
        elif not is_served_by(url):
            raise StartupError(
                "database.url: the database is outdated: run `caseworker db upgrade`, or start "
                "with --migrate."
            )
    except OperationalError:
        raise StartupError(
            "database.url: the database does not answer, or refuses the user."
        ) from None
