"""The schema of all settings, with defaults; sections for the service process are defined here."""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, IPvAnyNetwork, SecretStr, model_validator
from pydantic_settings import BaseSettings

from caseworker.core.trace.frozen_json import DEFAULT_VALUE_LIMITS
from caseworker.models.ports import MAX_EMBEDDINGS_BYTES, MAX_REPLY_BYTES
from caseworker.settings import cases
from caseworker.settings.admission import AdmissionSettings, QuotaSettings
from caseworker.settings.models import ModelsSettings
from caseworker.settings.tools import RetrySettings, ToolSettings
from caseworker.settings.values import Count, Names, Positive, Seconds, Section, Text, key


def _postgres_url(url: SecretStr) -> SecretStr:
    """Validate a URL as libpq parses it; errors never quote any part of it."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    scheme, _, rest = url.get_secret_value().partition("://")
    if scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise ValueError("must be a URL such as postgresql://user@host:5432/name")
    parsed = f"postgresql://{rest}"
    problem = ""
    # libpq would parse text after a bare @ or / in a password as a host, and print it.
    if "@" in rest.partition("@")[2] or "/" in rest[: max(0, rest.find("@"))]:
        problem = "more than one @, or / before @"
    else:
        try:
            conninfo_to_dict(parsed)
        except ProgrammingError as error:
            problem = str(error).partition('"')[0].strip(" :")
    if problem:
        raise ValueError(
            f"cannot be parsed ({problem}): percent-encode special characters, above all in the"
            " password: % as %25, @ as %40, / as %2F"
        )
    return SecretStr(parsed)


def _host_names(names: tuple[str, ...]) -> tuple[str, ...]:
    if any(not name.isascii() or set(name) & set("/:* ") for name in names):
        raise ValueError("must be host names without scheme, port or wildcard")
    return names


def _origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    for origin in origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or origin != f"{parts.scheme}://{parts.netloc}":
            raise ValueError("must be origins such as https://app.example.com, without a path")
    return tuple(origin.lower() for origin in origins)


def _http_url(url: str) -> str:
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise ValueError("must be an http or https URL")
    return url


class ServerSettings(Section):
    """The HTTP server."""

    host: Text = key("127.0.0.1", "Address to listen on; 0.0.0.0 listens on all interfaces.")
    port: Annotated[Count, Field(le=65535)] = key(8080, "Port to listen on; 0 selects a free port.")
    public_url: Annotated[Text, AfterValidator(_http_url)] | None = key(
        None, "URL at which clients reach the service, for the gateway of external runs."
    )
    workers: Positive = key(1, "Number of `caseworker serve` processes that share the port.")
    advertise_url: Annotated[Text, AfterValidator(_http_url)] | None = None
    """URL at which processes on other hosts reach this one, to forward requests for external runs.
    `{host}` in it is replaced by the name of this host. Several processes (`server.workers`) and
    `caseworker worker` each listen on a port of their own for it: this port plus their number, from
    0."""
    max_body_kb: Positive = key(
        256, "Maximum size of a request body, in KiB; larger ones are rejected with 413."
    )
    request_timeout_seconds: Seconds = key(
        30.0, "Maximum duration of a request (except streams) and of `Prefer: wait`."
    )
    allowed_hosts: Annotated[tuple[Text, ...], AfterValidator(_host_names)] | None = None
    """Host names accepted in requests, in addition to `host`, localhost and IP addresses. Null
    accepts no other name, or any name with `auth.anonymous: anywhere`."""
    trusted_proxies: tuple[IPvAnyNetwork, ...] = ()
    """Addresses or networks of proxies, such as 10.0.0.0/8, whose `X-Forwarded-Proto` and
    `X-Forwarded-Host` are used in the base URLs of external runs."""
    cors_origins: Annotated[tuple[Text, ...], AfterValidator(_origins)] = ()
    """Origins of web pages, such as https://app.example.com, that may call the service (CORS). The
    service's own pages always may."""
    docs_url: Annotated[Text, AfterValidator(_http_url)] | None = key(
        None, "URL of the published documentation, to whose page the `type` of problems refers."
    )
    max_connections: Positive = key(
        2000,
        "Maximum number of concurrent requests; further ones wait, then 503. A tenth more "
        "connections may be open.",
    )
    max_head_kb: Positive = key(
        32, "Maximum size of request line and headers, in KiB; larger ones are rejected with 431."
    )
    max_headers: Positive = key(
        100, "Maximum number of headers of a request; more are rejected with 431."
    )
    max_bodies_mb: Positive = key(
        64, "Maximum total size of request bodies in transfer, in MiB; more are rejected with 503."
    )
    head_timeout_seconds: Seconds = key(10.0, "Timeout for receiving the request headers (408).")
    keep_alive_seconds: Positive = key(20, "Maximum idle time of a keep-alive connection.")
    min_kb_per_second: Positive = key(
        8, "Minimum transfer rate of request bodies (else 408) and of responses."
    )


class DatabaseSettings(Section):
    """PostgreSQL, which stores all state."""

    url: Annotated[SecretStr, AfterValidator(_postgres_url)] | None = None
    """URL of the database, such as postgresql://user@host:5432/name. Null starts the embedded
    PostgreSQL."""
    data_dir: Path = key(Path("data/postgres"), "Data directory of the embedded PostgreSQL.")
    pool_size: Positive = key(10, "Connections per process for requests and runs.")
    control_pool_size: Positive = key(
        3, "Connections reserved for cancel requests and health checks."
    )
    connect_timeout_seconds: Seconds = key(
        10.0, "Timeout for acquiring a new or pooled connection."
    )
    lock_timeout_ms: Positive = key(5000, "Maximum time that a statement waits for a lock.")


class WorkerSettings(Section):
    """How a process executes runs."""

    enabled: bool = key(
        True, "Whether `caseworker serve` executes runs; if false, only `caseworker worker` does."
    )
    max_runs: Positive = key(1000, "Maximum number of concurrent runs per process.")
    max_parallel_steps: Positive = key(
        64, "Maximum number of concurrent steps per run, across all its graphs."
    )
    heartbeat_seconds: Seconds = key(
        1.0, "Interval of heartbeats and of polling for cancel requests."
    )
    stale_after_seconds: Seconds = key(
        10.0, "Time without a heartbeat after which a worker is lost; at least two heartbeats."
    )
    max_attempts: Positive = key(
        3, "Deaths of processes that count against a run before it fails as poisoned."
    )
    poll_seconds: Seconds = key(
        30.0, "Polling interval of the queue; notifications and heartbeats find jobs earlier."
    )
    health_port: Annotated[Count, Field(le=65535)] | None = None
    """Port of `caseworker worker` for /healthz, /readyz and /metrics. Null disables it, 0 selects a
    free port. With several processes (`server.workers`), each adds its number: 0, 1, 2."""
    drain_seconds: Seconds = key(
        60.0, "After `caseworker drain`: longest time for calls in flight to end."
    )
    cancel_grace_seconds: Seconds = key(
        1.0, "Time for a step to end after a cancel before it is abandoned."
    )


class CancellationSettings(Section):
    """Cancel requests, and pending ones: requests to cancel a run that does not exist yet."""

    settle_seconds: Seconds = key(
        0.5,
        (
            "Maximum time for which a cancel request waits for the end of the run, so that its "
            "receipt names all calls."
        ),
    )
    intent_ttl_seconds: Seconds = key(3600.0, "Lifetime of a pending cancel request.")
    max_early_intents: Count = key(
        1000,
        (
            "Maximum number of pending cancel requests per tenant; further ones are rejected with "
            "429."
        ),
    )


class TraceSettings(Section):
    """Data recorded in traces, in addition to the structure of runs."""

    payloads: Literal["redacted", "none", "full"] = "redacted"
    """How inputs, outputs and prompts appear in traces: with secrets removed, not at all, or
    unchanged."""
    max_payload_chars: Positive = key(
        20_000, "Maximum length of a redacted request or reply; longer ones are truncated."
    )
    max_shown_bytes: Positive = key(
        2_000_000, "Maximum total size of the payloads in trace?payloads=true."
    )


class LimitsSettings(Section):
    """Size limits for values that runs pass on, store and show, in bytes of UTF-8 JSON."""

    max_value_kb: Positive = key(
        DEFAULT_VALUE_LIMITS.max_value_bytes >> 10,
        "Maximum size of one value: of a handle, a template or a tool.",
    )
    max_reply_kb: Positive = key(
        MAX_REPLY_BYTES // 1024, "Maximum size of a model reply, decompressed, in KiB."
    )
    max_embeddings_kb: Annotated[Positive, Field(le=131_072)] = key(
        MAX_EMBEDDINGS_BYTES // 1024, "Maximum size of a reply with embeddings, in KiB."
    )
    max_outputs_kb: Positive = key(
        DEFAULT_VALUE_LIMITS.max_outputs_bytes >> 10, "Maximum size of all outputs of a step."
    )
    max_result_kb: Positive = key(
        DEFAULT_VALUE_LIMITS.max_result_bytes >> 10,
        "Maximum size of all outputs of a run (its result).",
    )
    max_event_kb: Positive = key(
        DEFAULT_VALUE_LIMITS.max_event_bytes >> 10, "Maximum size of the data of one event."
    )
    max_run_mb: Positive = key(
        DEFAULT_VALUE_LIMITS.max_run_bytes >> 20,
        "Maximum data stored by a run; a run that exceeds it is halted.",
    )
    max_page_kb: Positive = key(1024, "Maximum size of the runs on one page of a list.")
    max_depth: Annotated[Positive, Field(ge=8, le=128)] = key(
        DEFAULT_VALUE_LIMITS.max_depth,
        "Maximum nesting depth of lists and objects, also in request bodies.",
    )


class ArtifactSettings(Section):
    """Files that runs create, such as plots."""

    max_artifact_mb: Annotated[Positive, Field(le=64)] = key(
        5, "Maximum size of an artifact, in MiB (held in memory)."
    )
    max_run_mb: Positive = key(
        50, "Maximum total size of the artifacts of a run, in MiB; at least max_artifact_mb."
    )
    max_per_run: Positive = key(100, "Maximum number of artifacts per run.")


DaysKept = Annotated[Positive, Field(le=36_500)] | None


class RetentionSettings(Section):
    """Number of days for which the data of ended runs is kept; null keeps it forever.

    Tenants may override this with `caseworker retention`. See docs/retention.md.
    """

    runs_days: DaysKept = key(None, "Runs with all their data.")
    requests_days: DaysKept = key(None, "Requests of calls: prompts and arguments.")
    events_days: DaysKept = key(None, "Events.")
    snapshots_days: DaysKept = key(None, "Traces stored by the previous release.")
    artifacts_days: DaysKept = key(None, "Artifacts of runs.")
    threads_days: DaysKept = key(
        None, "Threads, counted from their last message; their runs are kept as set by runs_days."
    )
    audit_days: DaysKept = key(None, "Records of administrative acts (GET /audit).")
    sweep_seconds: Seconds = key(600.0, "Interval of the retention job, across all processes.")

    @property
    def unlimited(self) -> list[str]:
        """Record types that are kept forever, so their tables grow without limit.

        Types that are deleted together with their runs are not listed.
        """
        return [name for name in ("runs", "threads") if getattr(self, f"{name}_days") is None]


Api = Literal["chat_completions", "embeddings", "responses", "messages"]
"""An API of the gateway."""


class GatewaySettings(Section):
    """Model calls of external runs: see docs/external-agents.md."""

    linger_seconds: Annotated[Seconds, Field(le=3600)] = key(
        30.0, "Time for which a call continues after its client has disconnected."
    )
    max_body_kb: Annotated[Positive, Field(le=65_536)] = key(
        20_480, "Maximum size of a model call's body, in KiB; larger ones are rejected with 413."
    )
    record_embeddings_kb: Annotated[Count, Field(le=262_144)] = key(
        65_536,
        "Maximum size of the vectors that a run records to replay them, in KiB; later ones are"
        " requested again, and charged, if an attempt repeats the call.",
    )
    free_fields: dict[Api, Names] = key(
        {},
        "Fields that pass in runs that limit cost or tokens though no rule says what they cost:"
        ' `{chat_completions: ["foo", "messages[].bar"]}`. A running service reads changes of this'
        " key. See docs/gateway.md.",
    )

    @model_validator(mode="after")
    def _frees_only_undecided_fields(self) -> Self:
        if self.free_fields:
            from caseworker.models.fields.tables import TABLES  # builds the tables

            fields = (
                (TABLES[api], path) for api in self.free_fields for path in self.free_fields[api]
            )
            for table, path in fields:
                try:
                    row = table.row_at(path)
                except ValueError as error:
                    raise ValueError(f"free_fields: {error}") from None
                if row is not None:
                    rule = f"is listed as {row.use}; only unlisted fields can be allowed"
                    raise ValueError(f"free_fields: {path!r} {rule}")
        return self


class FaceSettings(Section):
    """OpenAI's API in front of agents: see docs/faces/openai.md."""

    client_system: Literal["append", "ignore"] = key(
        "append",
        "System messages of clients: `append` adds them to the first user message, marked as the"
        " client's; `ignore` drops them. They never replace the agent's prompt.",
    )
    task_model: Text | None = key(
        None,
        "Registered agent, such as `titles` or `titles@2`, that answers the requests of chat front"
        " ends for titles and tags of chats (they begin with `### Task:`); null: the chat's agent.",
    )
    client_wait_seconds: Seconds = key(
        600.0, "Time for a client of chat completions to send the results of its tools."
    )
    max_waiting_runs: Positive = key(
        1000, "Maximum number of runs per key that wait for the results of a client's tools."
    )


class EventSettings(Section):
    """Event streams of runs."""

    max_streams: Positive = key(
        500, "Maximum number of open event streams per process; further ones are rejected with 429."
    )


def _https_url(url: str) -> str:
    parts = urlsplit(url)
    is_local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
    if not parts.hostname or not (is_local or parts.scheme == "https"):
        raise ValueError("must be an https URL")
    return url


Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]


class JwtSettings(Section):
    """JSON Web Tokens from an external issuer, accepted in addition to the service's API keys."""

    issuer: Text | None = key(
        None, "Required `iss` claim of tokens; null: tokens are not accepted."
    )
    audience: Text | None = key(None, "Required `aud` claim of tokens; must be set with an issuer.")
    jwks_url: Annotated[Text, AfterValidator(_https_url)] | None = None
    """URL of the issuer's public keys (JWKS); alternative to jwks_file."""
    jwks_file: Path | None = key(None, "File with the issuer's public keys (JWKS).")
    algorithms: tuple[Algorithm, ...] = key(
        ("RS256", "ES256", "EdDSA"), "Accepted signature algorithms (asymmetric only)."
    )
    tenant_claim: Text = key("tenant", "Claim with the tenant; required in every token.")
    scope_claim: Text = key(
        "scope",
        "Claim with the scopes read, run, approve or admin, as a list or separated by spaces.",
    )
    leeway_seconds: Annotated[Count, Field(le=600)] = key(30, "Allowed clock skew.")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        places = [self.jwks_url, self.jwks_file]
        if self.issuer is None:
            if self.audience or any(places):
                raise ValueError("issuer: required with audience, jwks_url and jwks_file")
            return self
        if self.audience is None:
            raise ValueError(
                "audience: required with an issuer, so that tokens for other services are rejected"
            )
        if places.count(None) != 1:
            raise ValueError("jwks_url: set jwks_url or jwks_file to verify signatures")
        return self


def _long_key(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if len(text) < 32 or not (text.isascii() and text.isprintable()) or " " in text:
        raise ValueError(
            "must have at least 32 characters, such as the output of `openssl rand -hex 32`"
        )
    return secret


class AuthSettings(Section):
    """Authentication of API clients: see docs/security.md."""

    anonymous: Literal["loopback", "anywhere"] = "loopback"
    """Where requests without a key may come from while no key, token issuer or bootstrap key
    exists: this machine only, or anywhere."""
    bootstrap_key: Annotated[SecretStr, AfterValidator(_long_key)] | None = None
    """Key for the operator, which can create the first keys for any tenant. Set
    AUTH_BOOTSTRAP_KEY."""
    jwt: JwtSettings = JwtSettings()


class WebhookSettings(Section):
    """Webhooks, which notify callers when runs end: see docs/webhooks.md."""

    allow_http: bool = key(False, "Whether http:// URLs are allowed in addition to https://.")
    allow_private: bool = key(False, "Whether webhooks may call private networks and localhost.")
    timeout_seconds: Seconds = key(
        10.0, "Timeout of one attempt, until the response headers arrive."
    )
    max_attempts: Positive = key(12, "Maximum number of attempts per delivery.")
    first_retry_seconds: Seconds = key(
        5.0, "Back-off after the first failure; each further back-off is 4 times as long."
    )
    longest_retry_seconds: Seconds = key(
        21_600.0, "Maximum back-off, even if Retry-After is longer."
    )
    max_parallel: Positive = key(32, "Maximum number of concurrent attempts per process.")
    max_body_kb: Positive = key(
        1024, "Maximum message size; larger messages omit the result, then the inputs."
    )
    encryption_key: Annotated[SecretStr, AfterValidator(_long_key)] | None = None
    """Key that encrypts newly created signing secrets, the same for all processes. Set
    WEBHOOKS_ENCRYPTION_KEY. Null stores secrets unencrypted."""


class SecretsSettings(Section):
    """Secrets of tenants that the service stores: see docs/mcp.md."""

    encryption_key: Annotated[SecretStr, AfterValidator(_long_key)] | None = None
    """Key that encrypts the credentials of tenants for MCP servers, the same for all processes. Set
    SECRETS_ENCRYPTION_KEY. Null rejects such credentials."""


class AgentSettings(Section):
    """Agents that are defined in files or in code."""

    folder: Path | None = None
    """Folder with agent definitions (*.yaml), which are registered when the API starts: see
    docs/agents.md. Null disables this."""
    plugins: Names = key((), "Code agents to add, by import path such as my_package.agents:report.")


class ShutdownSettings(Section):
    """Time limits when a process shuts down."""

    grace_seconds: Seconds = key(5.0, "Longest time for calls in flight to end after SIGTERM.")


class LoggingSettings(Section):
    """Log lines, which are written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = key("info", "Minimum log level.")
    format: Literal["json", "console"] = key(
        "json", "Output format: JSON objects, or human-readable lines."
    )
    access: bool = key(
        False, "Whether to log every request except probes, with route, status and seconds."
    )


class TelemetrySettings(Section):
    """Metrics and traces of the service: see docs/telemetry.md."""

    metrics: Literal["loopback", "anywhere", "off"] = "loopback"
    """Where requests without a key may read /metrics from: this machine only, or anywhere; off
    disables it."""
    metrics_key: Annotated[SecretStr, AfterValidator(_long_key)] | None = None
    """Bearer token for reading /metrics from other machines. Set TELEMETRY_METRICS_KEY."""
    metrics_labels: tuple[Literal["tenant", "agent"], ...] = key(
        (), "Additional labels for run and cost metrics; at most 100 values each."
    )
    otlp_endpoint: Annotated[Text, AfterValidator(_http_url)] | None = None
    """URL of an OTLP/HTTP collector for spans and metrics, such as http://localhost:4318. Null uses
    OTEL_EXPORTER_OTLP_ENDPOINT; without that, nothing is exported."""
    otlp_metrics_seconds: Seconds | None = key(
        60.0, "Export interval of metrics, unless `metrics` is off; null exports spans only."
    )
    propagate: bool = True
    """Whether to send `traceparent` headers to models, MCP servers and webhooks. This applies to
    runs that came with a `traceparent`, and to all runs if spans are exported."""


class Settings(Section, BaseSettings, case_sensitive=True, hide_input_in_errors=True):
    """All settings; `Settings()` returns the defaults without reading files or the environment."""

    server: ServerSettings = ServerSettings()
    database: DatabaseSettings = DatabaseSettings()
    models: ModelsSettings = ModelsSettings()
    budget: cases.BudgetSettings = cases.BudgetSettings()
    act: cases.ActSettings = cases.ActSettings()
    verifier_thresholds: cases.VerifierSettings = cases.VerifierSettings()
    flags: cases.FlagSettings = cases.FlagSettings()
    retry: RetrySettings = RetrySettings()
    cancellation: CancellationSettings = CancellationSettings()
    trace: TraceSettings = TraceSettings()
    tools: ToolSettings = ToolSettings()
    worker: WorkerSettings = WorkerSettings()
    admission: AdmissionSettings = AdmissionSettings()
    quotas: QuotaSettings = QuotaSettings()
    auth: AuthSettings = AuthSettings()
    limits: LimitsSettings = LimitsSettings()
    artifacts: ArtifactSettings = ArtifactSettings()
    events: EventSettings = EventSettings()
    gateway: GatewaySettings = GatewaySettings()
    faces: FaceSettings = FaceSettings()
    retention: RetentionSettings = RetentionSettings()
    webhooks: WebhookSettings = WebhookSettings()
    secrets: SecretsSettings = SecretsSettings()
    agents: AgentSettings = AgentSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    logging: LoggingSettings = LoggingSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @classmethod
    def settings_customise_sources(cls, *_: Any, **sources: Any) -> tuple[Any, ...]:
        """Return the constructor arguments as the only source of values.

        The loader passes its sources to the constructor.
        """
        return (sources["init_settings"],)

    @model_validator(mode="after")
    def _values_fit_each_other(self) -> Self:
        if self.worker.stale_after_seconds < 2 * self.worker.heartbeat_seconds:
            raise ValueError(
                "worker.stale_after_seconds: must be at least twice worker.heartbeat_seconds"
            )
        sizes = ("max_value_kb", "max_outputs_kb", "max_result_kb")
        for smaller, larger in pairwise(sizes):
            if getattr(self.limits, larger) < getattr(self.limits, smaller):
                raise ValueError(f"limits.{larger}: must be at least limits.{smaller}")
        if self.artifacts.max_run_mb < self.artifacts.max_artifact_mb:
            raise ValueError("artifacts.max_run_mb: must be at least artifacts.max_artifact_mb")
        models = self.models.chains()
        for at, name in enumerate(self.quotas.models or (), 1):
            if name not in models:
                raise ValueError(
                    f"quotas.models.{at}: unknown model; available: {', '.join(models)}"
                )
        steps, default = self.act.max_steps, cases.ActSettings.model_fields["max_steps"].default
        if self.flags.mode == "fallback_only" and steps > 1 and steps != default:
            raise ValueError("act.max_steps: must be 0 or 1 while flags.mode is fallback_only")
        return self
