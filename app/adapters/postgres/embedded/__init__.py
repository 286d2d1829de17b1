"""The PostgreSQL that the service brings along and uses when no database is configured."""

from app.adapters.postgres.embedded.server import EmbeddedPostgres, EmbeddedPostgresError

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError"]
