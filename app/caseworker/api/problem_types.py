"""All kinds of API errors (RFC 9457); ``docs/problems.md`` explains each one."""

from dataclasses import dataclass

URN = "urn:caseworker:problem:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemType:
    """One kind of error, with its status, title and advice."""

    slug: str
    status: int
    """The HTTP status."""
    title: str
    detail: str
    """Default advice; an error may give more specific advice."""
    retry_after_seconds: int | None = None
    challenge: str | None = None
    """The ``WWW-Authenticate`` header (RFC 6750)."""

    @property
    def uri(self) -> str:
        """The stable ``type`` that identifies the kind of problem to clients."""
        return URN + self.slug


MALFORMED_BODY = ProblemType(
    slug="malformed-body",
    status=400,
    title="The body cannot be read",
    detail="Send one JSON object in UTF-8.",
)
MALFORMED_REQUEST = ProblemType(
    slug="malformed-request",
    status=400,
    title="The request is not HTTP",
    detail="Send HTTP/1.1, and at most 4 further requests before one is answered.",
)
CREDENTIAL_REQUIRED = ProblemType(
    slug="credential-required",
    status=401,
    title="A credential is needed",
    detail="Send an API key or a token of the configured issuer as `Authorization: Bearer ...`.",
    challenge='Bearer realm="caseworker"',
)
CREDENTIAL_REFUSED = ProblemType(
    slug="credential-refused",
    status=401,
    title="The credential is not valid",
    detail="Send a key or token that works, as `Authorization: Bearer ...`: this one is unknown, "
    "incomplete, expired or revoked.",
    challenge='Bearer realm="caseworker", error="invalid_token"',
)
ANONYMOUS_REFUSED = ProblemType(
    slug="anonymous-refused",
    status=403,
    title="Anonymous callers are not served here",
    detail="Without keys the service answers callers on its own machine alone. "
    "Call it from there, make a key, or set auth.anonymous to anywhere.",
)
SCOPE_MISSING = ProblemType(
    slug="scope-missing",
    status=403,
    title="The credential does not allow this",
    detail="Use a key or token with the scope that is needed.",
    challenge='Bearer realm="caseworker", error="insufficient_scope"',
)
TENANT_REFUSED = ProblemType(
    slug="tenant-refused",
    status=403,
    title="Only the operator may act for another tenant",
    detail="Leave tenant out, or send the bootstrap key of the service.",
)
ROUTE_NOT_FOUND = ProblemType(
    slug="route-not-found",
    status=404,
    title="There is no such resource",
    detail="Check the path; /openapi.json lists all of them.",
)
RUN_NOT_FOUND = ProblemType(
    slug="run-not-found",
    status=404,
    title="There is no such run",
    detail="Check the run id. A pending cancel of a run that does not exist yet is no run.",
)
GRAPH_NOT_FOUND = ProblemType(
    slug="graph-not-found",
    status=404,
    title="There is no such graph",
    detail="Check the name and the version; GET /graphs lists the graphs there are.",
)
AGENT_NOT_FOUND = ProblemType(
    slug="agent-not-found",
    status=404,
    title="There is no such agent",
    detail="Check the name and the version; GET /agents lists the agents there are.",
)
KEY_NOT_FOUND = ProblemType(
    slug="key-not-found",
    status=404,
    title="There is no such key",
    detail="Check the key id; GET /keys lists the keys there are.",
)
ARTIFACT_NOT_FOUND = ProblemType(
    slug="artifact-not-found",
    status=404,
    title="The run has no such file",
    detail="Check the name; GET /runs/{run_id}/artifacts lists the files of a run.",
)
CALL_NOT_FOUND = ProblemType(
    slug="call-not-found",
    status=404,
    title="The run has made no such call",
    detail="Check the node id; GET /runs/{run_id}/trace has those of all calls under nodes.",
)
APPROVAL_NOT_FOUND = ProblemType(
    slug="approval-not-found",
    status=404,
    title="The run asks for no such approval",
    detail="Check the id; GET /runs/{run_id}/approvals lists the approvals of a run.",
)
THREAD_NOT_FOUND = ProblemType(
    slug="thread-not-found",
    status=404,
    title="There is no such thread",
    detail="Check the thread id; GET /threads lists the threads there are.",
)
SCHEDULE_NOT_FOUND = ProblemType(
    slug="schedule-not-found",
    status=404,
    title="There is no such schedule",
    detail="Check the name; GET /schedules lists the schedules there are.",
)
MESSAGE_NOT_FOUND = ProblemType(
    slug="message-not-found",
    status=404,
    title="The thread has no such message",
    detail="Check the message id; GET /threads/{thread_id}/messages?tree=true has all of them.",
)
DELIVERY_NOT_FOUND = ProblemType(
    slug="delivery-not-found",
    status=404,
    title="There is no such delivery",
    detail="Check the delivery id; GET /webhooks/deliveries lists the deliveries there are.",
)
METHOD_NOT_ALLOWED = ProblemType(
    slug="method-not-allowed",
    status=405,
    title="The resource does not know this method",
    detail="Use one of the methods in the Allow header.",
)
REQUEST_TIMEOUT = ProblemType(
    slug="request-timeout",
    status=408,
    title="The request did not arrive in time",
    detail="Send the whole request at once; server.head_timeout_seconds limits its head, and "
    "server.min_kb_per_second is the least rate of its body.",
)
RUN_CONFLICT = ProblemType(
    slug="run-conflict",
    status=409,
    title="The run id belongs to another request",
    detail="Choose another run_id, or repeat the request exactly as it was first sent. "
    "A run_id and an Idempotency-Key that are sent together must belong to the same run.",
)
KEY_CONFLICT = ProblemType(
    slug="key-conflict",
    status=409,
    title="The keys do not allow this",
    detail="A key that was rotated, revoked or has expired cannot be rotated, and a tenant has at "
    "most 1,000 keys that work. GET /keys lists them.",
)
RUN_NOT_ENDED = ProblemType(
    slug="run-not-ended",
    status=409,
    title="The run has not ended",
    detail="Wait for its end, or cancel it, and send the request again.",
)
THREAD_CONFLICT = ProblemType(
    slug="thread-conflict",
    status=409,
    title="The thread id belongs to another request",
    detail="Choose another thread_id, or repeat the request exactly as it was first sent.",
)
THREAD_FULL = ProblemType(
    slug="thread-full",
    status=409,
    title="The thread takes no more messages",
    detail="Begin another thread.",
)
ANSWER_NOT_ENDED = ProblemType(
    slug="answer-not-ended",
    status=409,
    title="The answer is still being written",
    detail="Wait for the end of its run, or cancel it, and send the request again.",
)
APPROVAL_DECIDED = ProblemType(
    slug="approval-decided",
    status=409,
    title="The approval cannot be decided any more",
    detail="Another decision, its time limit, or the end of the run came first; "
    "GET /runs/{run_id}/approvals says which.",
)
DELIVERY_PENDING = ProblemType(
    slug="delivery-pending",
    status=409,
    title="The delivery is still being attempted",
    detail="Wait until it is delivered or dead; due_at says when the next attempt is made.",
)
GRAPH_IN_USE = ProblemType(
    slug="graph-in-use",
    status=409,
    title="Others contain the graph",
    detail="Delete what contains it first, or leave it.",
)
AGENT_IN_USE = ProblemType(
    slug="agent-in-use",
    status=409,
    title="Others contain the agent",
    detail="Delete what contains it first, or leave it.",
)
BODY_TOO_LARGE = ProblemType(
    slug="body-too-large",
    status=413,
    title="The body is too large",
    detail="Send a smaller body.",
)
UNSUPPORTED_MEDIA_TYPE = ProblemType(
    slug="unsupported-media-type",
    status=415,
    title="The body is not plain JSON",
    detail="Send the body as application/json in UTF-8, without a Content-Encoding.",
)
HOST_REFUSED = ProblemType(
    slug="host-refused",
    status=421,
    title="The service does not answer under this host name",
    detail="Call it by an address or by localhost, or add the name to server.allowed_hosts.",
)
INVALID_REQUEST = ProblemType(
    slug="invalid-request",
    status=422,
    title="The request is not valid",
    detail="Correct the fields under errors and send the request again.",
)
IDEMPOTENCY_MISMATCH = ProblemType(
    slug="idempotency-mismatch",
    status=422,
    title="The idempotency key was used for another request",
    detail="Use a new Idempotency-Key for a new request, or repeat the first body unchanged.",
)
TOO_MANY_PENDING_CANCELS = ProblemType(
    slug="too-many-pending-cancels",
    status=429,
    title="Too many cancel requests are pending for runs that do not exist",
    detail="Check the run ids. Cancel requests for unknown runs expire; try again later.",
    retry_after_seconds=60,
)
QUEUE_FULL = ProblemType(
    slug="queue-full",
    status=429,
    title="Too many runs are waiting",
    detail="Nothing was stored. Send the same request again after the time in Retry-After.",
    retry_after_seconds=2,
)
QUOTA_EXCEEDED = ProblemType(
    slug="quota-exceeded",
    status=429,
    title="A quota of the tenant is used up",
    detail="Nothing was stored. Send the same request again after the time in Retry-After.",
)
TOO_MANY_SCHEDULES = ProblemType(
    slug="too-many-schedules",
    status=429,
    title="There are too many schedules",
    detail="Delete schedules that are not needed; admission.max_schedules is the limit.",
    retry_after_seconds=60,
)
TOO_MANY_STREAMS = ProblemType(
    slug="too-many-streams",
    status=429,
    title="Too many event streams are open",
    detail="Close streams that are not read any more, read the events page by page "
    "(Accept: application/json), or try again after the time in Retry-After.",
    retry_after_seconds=5,
)
HEAD_TOO_LARGE = ProblemType(
    slug="head-too-large",
    status=431,
    title="The head of the request is too large",
    detail="Send a shorter URL and fewer or shorter headers; server.max_head_kb and "
    "server.max_headers are the limits.",
)
INTERNAL = ProblemType(
    slug="internal-error",
    status=500,
    title="The service failed",
    detail="Report the request_id to the operator of the service. "
    "A POST may be repeated with the same run_id or Idempotency-Key; it makes no second run.",
)
UNAVAILABLE = ProblemType(
    slug="store-unavailable",
    status=503,
    title="The database does not answer",
    detail="Nothing is known to have been stored. Send the same request again, with the same "
    "run_id or Idempotency-Key, after the time in Retry-After; it makes no second run.",
    retry_after_seconds=2,
)
TOO_MANY_CONNECTIONS = ProblemType(
    slug="too-many-connections",
    status=503,
    title="Too many connections are open",
    detail="Close those that are not used, or try again after the time in Retry-After.",
    retry_after_seconds=2,
)
TOO_MANY_BODIES = ProblemType(
    slug="too-many-bodies",
    status=503,
    title="Too many request bodies are on their way",
    detail="Nothing was read or stored. Send the same request again after the time in Retry-After.",
    retry_after_seconds=2,
)
NOT_READY = ProblemType(
    slug="not-ready",
    status=503,
    title="The service is not ready",
    detail="Send requests to another replica, or wait; parts tells what is missing.",
    retry_after_seconds=2,
)

CATALOGUE = tuple(kind for kind in list(globals().values()) if isinstance(kind, ProblemType))
