"""The bundled PostgreSQL server, used when no database is configured."""

from caseworker.platform.postgres.embedded.programs import EmbeddedPostgresError
from caseworker.platform.postgres.embedded.server import EmbeddedPostgres

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError"]
