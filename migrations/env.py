"""Runs migrations on the connection that the caller hands over in ``config.attributes``."""

from alembic import context
from alembic.util import CommandError

connection = context.config.attributes.get("connection")
if connection is None:
    raise CommandError(
        "run `caseworker db current` or `caseworker db upgrade` instead, which connect to the "
        "configured database. For a downgrade, which drops data, call "
        "caseworker.platform.postgres.schema_version.downgrade(url, revision)"
    )
context.configure(connection=connection, transaction_per_migration=True)
with context.begin_transaction():
    context.run_migrations()
