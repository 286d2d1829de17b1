"""Runs migrations on the connection that the caller hands over in ``config.attributes``."""

from alembic import context

from app.adapters.postgres.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    include_name=lambda name, kind, _: kind != "table" or name in metadata.tables,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
