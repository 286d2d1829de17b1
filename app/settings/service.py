"""Settings of the process: where it listens, where it stores, who may come in, what it logs."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from app.settings.values import Port, Positive, Seconds, Section, Text

_URL_SCHEMES = ("postgresql://", "postgres://", "postgresql+psycopg://")


def _postgres_url(url: SecretStr) -> SecretStr:
    text = url.get_secret_value()
    for scheme in _URL_SCHEMES:
        if text.startswith(scheme):
            return SecretStr("postgresql://" + text.removeprefix(scheme))
    raise ValueError("must be a PostgreSQL URL")


DatabaseUrl = Annotated[
    SecretStr,
    AfterValidator(_postgres_url),
    Field(json_schema_extra={"expected": "a URL such as postgresql://user@host:5432/name"}),
]


class ServerSettings(Section):
    """The HTTP server."""

    host: Text = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every address of the machine."""
    port: Port = 8080
    """Port to listen on; 0 takes a free one."""
    max_body_kb: Positive = 256
    """Longest request body, in KiB; a longer one is answered 413."""
    max_json_depth: Positive = 64
    """Deepest nesting of arrays and objects in a request body."""
    request_timeout_seconds: Seconds = 30.0
    """How long a request may take, event streams apart; also the longest `Prefer: wait`."""


class DatabaseSettings(Section):
    """PostgreSQL, where all state is kept."""

    url: DatabaseUrl | None = None
    """Where PostgreSQL is, such as postgresql://user@host:5432/name. Without a URL the service
    starts the PostgreSQL that it brings along. A URL with a password belongs in the
    environment."""
    data_dir: Path = Path("data/postgres")
    """Folder of the embedded PostgreSQL, relative to the working directory."""
    pool_size: Positive = 10
    """Connections of a process for requests and runs."""
    control_pool_size: Positive = 2
    """Connections kept apart for cancelling, health and readiness, so that a busy pool never
    blocks a stop."""
    connect_timeout_seconds: Seconds = 10.0
    """How long a connection may take to be made, and a request may wait for one."""
    lock_timeout_ms: Positive = 5000
    """How long a statement may wait for a lock."""


class AuthSettings(Section):
    """Who may use the API."""

    anonymous: Literal["loopback", "anywhere"] = "loopback"
    """From where requests without a key are taken while no key exists: from this machine alone,
    or from anywhere."""


class ShutdownSettings(Section):
    """How the process ends."""

    grace_seconds: Seconds = 5.0
    """How long requests and runs in flight may take to end or to be handed over after SIGTERM."""


class LoggingSettings(Section):
    """Log lines, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level that is logged."""
    format: Literal["json", "console"] = "json"
    """One JSON object a line, or lines for people."""
