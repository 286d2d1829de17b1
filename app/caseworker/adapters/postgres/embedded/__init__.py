"""The bundled PostgreSQL server, used when no database is configured."""

from caseworker.adapters.postgres.embedded.programs import EmbeddedPostgresError
from caseworker.adapters.postgres.embedded.server import EmbeddedPostgres

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError"]
