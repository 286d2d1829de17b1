"""Problem types for all API errors (RFC 9457); ``docs/problems.md`` explains each one."""

from dataclasses import dataclass

URN = "urn:caseworker:problem:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemType:
    """One kind of API error, with its status, title and advice."""

    slug: str
    status: int
    """HTTP status code of responses with this error."""
    title: str
    detail: str
    """Default advice on how to resolve the error. An individual error may give more specific
    advice."""
    retry_after_seconds: int | None = None
    challenge: str | None = None
    """Value of the ``WWW-Authenticate`` header (RFC 6750); None if the header is not sent."""

    @property
    def uri(self) -> str:
        """URI in the ``type`` field, by which clients identify the kind of error."""
        return URN + self.slug


MALFORMED_BODY = ProblemType(
    slug="malformed-body",
    status=400,
    title="Malformed request body",
    detail="Send a single JSON object encoded in UTF-8.",
)
MALFORMED_REQUEST = ProblemType(
    slug="malformed-request",
    status=400,
    title="Malformed HTTP request",
    detail="Send a valid HTTP/1.1 request, with at most 4 pipelined requests.",
)
CREDENTIAL_REQUIRED = ProblemType(
    slug="credential-required",
    status=401,
    title="Authentication required",
    detail="Send an API key or a token from the configured issuer as `Authorization: Bearer ...`.",
    challenge='Bearer realm="caseworker"',
)
CREDENTIAL_REFUSED = ProblemType(
    slug="credential-refused",
    status=401,
    title="Invalid credentials",
    detail="The API key or token is unknown, incomplete, expired or revoked. Send a valid one as "
    "`Authorization: Bearer ...`.",
    challenge='Bearer realm="caseworker", error="invalid_token"',
)
ANONYMOUS_REFUSED = ProblemType(
    slug="anonymous-refused",
    status=403,
    title="Anonymous access is not allowed",
    detail="While no API key exists, the service accepts anonymous requests from localhost only. "
    "Call it from localhost, create an API key, or set auth.anonymous to anywhere.",
)
SCOPE_MISSING = ProblemType(
    slug="scope-missing",
    status=403,
    title="Insufficient permissions",
    detail="Use an API key or token with the required scope.",
    challenge='Bearer realm="caseworker", error="insufficient_scope"',
)
TENANT_REFUSED = ProblemType(
    slug="tenant-refused",
    status=403,
    title="Acting for another tenant requires the bootstrap key",
    detail="Omit tenant, or send the bootstrap key.",
)
ROUTE_NOT_FOUND = ProblemType(
    slug="route-not-found",
    status=404,
    title="Resource not found",
    detail="Check the path. /openapi.json lists all paths.",
)
RUN_NOT_FOUND = ProblemType(
    slug="run-not-found",
    status=404,
    title="Run not found",
    detail="No run has this ID. A pending cancel request does not create a run.",
)
GRAPH_NOT_FOUND = ProblemType(
    slug="graph-not-found",
    status=404,
    title="Graph not found",
    detail="No graph has this name and version. GET /graphs lists all graphs.",
)
AGENT_NOT_FOUND = ProblemType(
    slug="agent-not-found",
    status=404,
    title="Agent not found",
    detail="No agent has this name and version. GET /agents lists all agents.",
)
KEY_NOT_FOUND = ProblemType(
    slug="key-not-found",
    status=404,
    title="API key not found",
    detail="No API key has this ID. GET /keys lists all keys.",
)
ARTIFACT_NOT_FOUND = ProblemType(
    slug="artifact-not-found",
    status=404,
    title="Artifact not found",
    detail=(
        "The run has no artifact with this name. GET /runs/{run_id}/artifacts lists its artifacts."
    ),
)
CALL_NOT_FOUND = ProblemType(
    slug="call-not-found",
    status=404,
    title="Call not found",
    detail=(
        "The run has no call with this node ID. GET /runs/{run_id}/trace lists the calls in nodes."
    ),
)
APPROVAL_NOT_FOUND = ProblemType(
    slug="approval-not-found",
    status=404,
    title="Approval not found",
    detail="The run has no approval with this ID. GET /runs/{run_id}/approvals lists all of them.",
)
THREAD_NOT_FOUND = ProblemType(
    slug="thread-not-found",
    status=404,
    title="Thread not found",
    detail="No thread has this ID. GET /threads lists all threads.",
)
SCHEDULE_NOT_FOUND = ProblemType(
    slug="schedule-not-found",
    status=404,
    title="Schedule not found",
    detail="No schedule has this name. GET /schedules lists all schedules.",
)
MESSAGE_NOT_FOUND = ProblemType(
    slug="message-not-found",
    status=404,
    title="Message not found",
    detail=(
        "The thread has no message with this ID. GET /threads/{thread_id}/messages?tree=true "
        "lists all messages."
    ),
)
DELIVERY_NOT_FOUND = ProblemType(
    slug="delivery-not-found",
    status=404,
    title="Webhook delivery not found",
    detail="No delivery has this ID. GET /webhooks/deliveries lists all deliveries.",
)
METHOD_NOT_ALLOWED = ProblemType(
    slug="method-not-allowed",
    status=405,
    title="Method not allowed",
    detail="Use a method that the Allow header lists.",
)
REQUEST_TIMEOUT = ProblemType(
    slug="request-timeout",
    status=408,
    title="Request timeout",
    detail="Send the request faster. server.head_timeout_seconds limits the time for the "
    "headers, and server.min_kb_per_second sets the minimum rate for the body.",
)
RUN_CONFLICT = ProblemType(
    slug="run-conflict",
    status=409,
    title="Run ID already used for a different request",
    detail="Use another run_id, or repeat the original request unchanged. A run_id and an "
    "Idempotency-Key sent together must identify the same run.",
)
KEY_CONFLICT = ProblemType(
    slug="key-conflict",
    status=409,
    title="API key cannot be rotated or created",
    detail="A rotated, revoked or expired key cannot be rotated, and a tenant can have at most "
    "1,000 active keys. GET /keys lists them.",
)
RUN_NOT_ENDED = ProblemType(
    slug="run-not-ended",
    status=409,
    title="Run has not ended",
    detail="Wait until the run ends or cancel it, then repeat the request.",
)
THREAD_CONFLICT = ProblemType(
    slug="thread-conflict",
    status=409,
    title="Thread ID already used for a different request",
    detail="Use another thread_id, or repeat the original request unchanged.",
)
THREAD_FULL = ProblemType(
    slug="thread-full",
    status=409,
    title="Thread is full",
    detail="Start a new thread.",
)
ANSWER_NOT_ENDED = ProblemType(
    slug="answer-not-ended",
    status=409,
    title="Answer is still in progress",
    detail="Wait until its run ends or cancel the run, then repeat the request.",
)
APPROVAL_DECIDED = ProblemType(
    slug="approval-decided",
    status=409,
    title="Approval is already resolved",
    detail="The approval was already decided, it expired, or its run ended. GET "
    "/runs/{run_id}/approvals shows the outcome.",
)
DELIVERY_PENDING = ProblemType(
    slug="delivery-pending",
    status=409,
    title="Delivery is still in progress",
    detail="Wait until its status is delivered or dead. due_at is the time of the next attempt.",
)
GRAPH_IN_USE = ProblemType(
    slug="graph-in-use",
    status=409,
    title="Graph is in use",
    detail="First delete the graphs and agents that use it.",
)
AGENT_IN_USE = ProblemType(
    slug="agent-in-use",
    status=409,
    title="Agent is in use",
    detail="First delete the graphs and agents that use it.",
)
BODY_TOO_LARGE = ProblemType(
    slug="body-too-large",
    status=413,
    title="Request body too large",
    detail="Reduce the size of the request body.",
)
UNSUPPORTED_MEDIA_TYPE = ProblemType(
    slug="unsupported-media-type",
    status=415,
    title="Unsupported media type",
    detail="Send the body as application/json in UTF-8 without Content-Encoding.",
)
HOST_REFUSED = ProblemType(
    slug="host-refused",
    status=421,
    title="Host not allowed",
    detail="Use an IP address or localhost, or add the host name to server.allowed_hosts.",
)
INVALID_REQUEST = ProblemType(
    slug="invalid-request",
    status=422,
    title="Invalid request",
    detail="Correct the fields listed in errors and repeat the request.",
)
IDEMPOTENCY_MISMATCH = ProblemType(
    slug="idempotency-mismatch",
    status=422,
    title="Idempotency key already used for a different request",
    detail="Use a new Idempotency-Key, or repeat the original request unchanged.",
)
TOO_MANY_PENDING_CANCELS = ProblemType(
    slug="too-many-pending-cancels",
    status=429,
    title="Too many pending cancel requests for unknown runs",
    detail="Check the run IDs. Pending cancel requests expire; retry later.",
    retry_after_seconds=60,
)
QUEUE_FULL = ProblemType(
    slug="queue-full",
    status=429,
    title="Run queue is full",
    detail="The request was not stored. Retry it after the number of seconds in Retry-After.",
    retry_after_seconds=2,
)
QUOTA_EXCEEDED = ProblemType(
    slug="quota-exceeded",
    status=429,
    title="Quota exceeded",
    detail="The request was not stored. Retry it after the number of seconds in Retry-After.",
)
TOO_MANY_SCHEDULES = ProblemType(
    slug="too-many-schedules",
    status=429,
    title="Too many schedules",
    detail="Delete unused schedules. admission.max_schedules sets the limit.",
    retry_after_seconds=60,
)
TOO_MANY_STREAMS = ProblemType(
    slug="too-many-streams",
    status=429,
    title="Too many open event streams",
    detail="Close unused streams, read the events in pages (Accept: application/json), or retry "
    "after the number of seconds in Retry-After.",
    retry_after_seconds=5,
)
HEAD_TOO_LARGE = ProblemType(
    slug="head-too-large",
    status=431,
    title="Request header fields too large",
    detail="Send a shorter URL and fewer or shorter headers. server.max_head_kb and "
    "server.max_headers set the limits.",
)
INTERNAL = ProblemType(
    slug="internal-error",
    status=500,
    title="Internal server error",
    detail="Report the request_id to the operator. A POST can be retried with the same run_id or "
    "Idempotency-Key without creating a second run.",
)
UNAVAILABLE = ProblemType(
    slug="store-unavailable",
    status=503,
    title="Database unavailable",
    detail="The request may not have been stored. Retry it with the same run_id or "
    "Idempotency-Key after the number of seconds in Retry-After; this does not create a "
    "second run.",
    retry_after_seconds=2,
)
TOO_MANY_CONNECTIONS = ProblemType(
    slug="too-many-connections",
    status=503,
    title="Too many open connections",
    detail="Close unused connections, or retry after the number of seconds in Retry-After.",
    retry_after_seconds=2,
)
TOO_MANY_BODIES = ProblemType(
    slug="too-many-bodies",
    status=503,
    title="Too many request bodies in transfer",
    detail=(
        "The request was neither read nor stored. Retry it after the number of seconds in "
        "Retry-After."
    ),
    retry_after_seconds=2,
)
NOT_READY = ProblemType(
    slug="not-ready",
    status=503,
    title="Service not ready",
    detail="Send requests to another replica, or retry later. parts lists what is not ready.",
    retry_after_seconds=2,
)

CATALOGUE = tuple(kind for kind in list(globals().values()) if isinstance(kind, ProblemType))
BY_SLUG = {kind.slug: kind for kind in CATALOGUE}
