"""The PostgreSQL that the service brings along and uses when no database is configured."""

from app.adapters.postgres.embedded.programs import EmbeddedPostgresError
from app.adapters.postgres.embedded.server import EmbeddedPostgres

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError"]
