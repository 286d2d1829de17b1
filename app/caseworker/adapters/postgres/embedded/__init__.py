"""The PostgreSQL that the service brings along and uses when no database is configured."""

from caseworker.adapters.postgres.embedded.programs import EmbeddedPostgresError
from caseworker.adapters.postgres.embedded.server import EmbeddedPostgres

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError"]
