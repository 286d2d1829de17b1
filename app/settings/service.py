"""Settings of a process: where it listens and stores, who may come in, what it runs and records."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from app.settings.values import Count, Positive, Seconds, Section, Text, contradiction


def _postgres_url(url: SecretStr) -> SecretStr:
    scheme, _, rest = url.get_secret_value().partition("://")
    if scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise ValueError("must be a URL such as postgresql://user@host:5432/name")
    return SecretStr(f"postgresql://{rest}")


class ServerSettings(Section):
    """The HTTP server."""

    host: Text = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every address of the machine."""
    port: Annotated[int, Field(ge=0, le=65535, strict=True)] = 8080
    """Port to listen on; 0 takes a free one."""
    max_body_kb: Positive = 256
    """Longest request body, in KiB; a longer one is answered 413."""
    max_json_depth: Positive = 64
    """Deepest nesting of arrays and objects in a request body."""
    request_timeout_seconds: Seconds = 30.0
    """How long a request may take, event streams apart; also the longest `Prefer: wait`."""


class DatabaseSettings(Section):
    """PostgreSQL, where all state is kept."""

    url: Annotated[SecretStr, AfterValidator(_postgres_url)] | None = None
    """Such as postgresql://user@host:5432/name, with a password only in the environment. Null
    starts the PostgreSQL that the service brings along."""
    data_dir: Path = Path("data/postgres")
    """Folder of the embedded PostgreSQL, relative to the working directory."""
    pool_size: Positive = 10
    """Connections of a process for requests and runs."""
    control_pool_size: Positive = 2
    """Connections reserved for cancelling and health, so that a busy pool never blocks a stop."""
    connect_timeout_seconds: Seconds = 10.0
    """How long a connection may take to be made, and a request may wait for one."""
    lock_timeout_ms: Positive = 5000
    """How long a statement may wait for a lock."""


class WorkerSettings(Section):
    """The part of a process that executes runs."""

    enabled: bool = True
    """Whether `caseworker serve` executes runs itself, or leaves them to workers."""
    max_runs: Positive = 1000
    """Runs that a process executes at once."""
    max_parallel_steps: Positive = 64
    """Steps of one run that work at once, however wide its graphs are."""
    heartbeat_seconds: Seconds = 2.0
    """How often a process says that it lives, and looks for requests to cancel runs."""
    stale_after_seconds: Seconds = 10.0
    """Silence after which a process counts as dead, at least twice heartbeat_seconds."""
    max_attempts: Positive = 3
    """Workers that a run may lose before it fails."""
    poll_seconds: Seconds = 0.5
    """How often a worker looks into the queue when no notification comes."""
    cancel_grace_seconds: Seconds = 1.0
    """How long a call or step may take to end after it was cancelled; then it is detached."""

    @model_validator(mode="after")
    def _one_late_heartbeat_is_tolerated(self) -> Self:
        if self.stale_after_seconds < 2 * self.heartbeat_seconds:
            problem = "must be at least twice worker.heartbeat_seconds"
            raise contradiction("stale_after_seconds", problem)
        return self


class CancellationSettings(Section):
    """Pending cancels: requests to cancel a run that does not exist yet."""

    intent_ttl_seconds: Seconds = 3600.0
    """How long a pending cancel waits for its run."""
    max_early_intents: Count = 1000
    """Pending cancels that a tenant may have; more are answered 429."""


class TraceSettings(Section):
    """What is recorded of a run besides its structure."""

    payloads: Literal["redacted", "none", "full"] = "redacted"
    """Inputs, outputs and prompts in traces: without secrets, not at all, or as they are."""


class ArtifactSettings(Section):
    """The files that runs make, such as pictures."""

    max_artifact_mb: Annotated[int, Field(ge=1, le=64, strict=True)] = 5
    """Largest file, in MiB, held in memory as a whole; a tool that makes a larger one fails."""
    max_run_mb: Positive = 50
    """All files of a run together, in MiB; at least max_artifact_mb."""
    max_per_run: Positive = 100
    """Files of a run."""

    @model_validator(mode="after")
    def _a_run_holds_its_largest_file(self) -> Self:
        if self.max_run_mb < self.max_artifact_mb:
            raise contradiction("max_run_mb", "must be at least artifacts.max_artifact_mb")
        return self


class EventSettings(Section):
    """The events of runs, as callers follow them."""

    max_streams: Positive = 500
    """Event streams that a process keeps open at once; more are answered 429."""


class AuthSettings(Section):
    """Who may use the API."""

    anonymous: Literal["loopback", "anywhere"] = "loopback"
    """Where requests without a key may come from while no key exists: this machine, or anywhere."""


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
