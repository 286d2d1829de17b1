"""Routes for API keys: create, list, rotate and revoke."""

from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal, Self

from fastapi import Path, Query
from pydantic import AfterValidator, Field, StringConstraints

from caseworker.features.access.agent_keys import COUNTED_LIMITS, AgentTerms
from caseworker.features.access.authentication import Authentication
from caseworker.features.access.keys import (
    DEFAULT_OVERLAP,
    MAX_OVERLAP,
    ApiKey,
    IssuedKey,
    KeyConflictError,
    KeyNotFoundError,
)
from caseworker.features.access.postgres import PostgresKeys
from caseworker.features.access.revocation import cancel_runs_of
from caseworker.platform.caller import (
    MAX_NAME_CHARS,
    TENANT_FORM,
    Caller,
    CredentialRequiredError,
    KeyScope,
)
from caseworker.platform.http.bodies import BodyModel, Instant, QueryModel, View
from caseworker.platform.http.openapi import EVERY_BODY, EVERY_CALLER, EVERY_RUN_ROUTE, answers
from caseworker.platform.http.problems import TENANT_REFUSED, Errors, ProblemType, invalid
from caseworker.platform.http.request import ApiRequest, api_router, requires
from caseworker.platform.validation import refusal
from caseworker.platform.webhook_addresses import AddressRefusedError
from caseworker.runs.http.body import BudgetBody, RequestedBudget
from caseworker.runs.http.fields import IdleSeconds, ModelAliases, ModelNames, WebhookCheck
from caseworker.runs.service import RunService

TenantName = Annotated[str, StringConstraints(pattern=f"^{TENANT_FORM}$")]
ScopeName = Literal["read", "run", "approve", "admin"]
_USUAL: ScopeName = "run"


def _printable(name: str) -> str:
    if not name.isprintable() or name.isspace():
        raise refusal("This must contain only printable characters and must not be blank.")
    return name


def _countable(budget: RequestedBudget | None) -> RequestedBudget | None:
    limits = {} if budget is None else budget.to_json()
    for name, limit in limits.items():
        if limit is not None and name not in COUNTED_LIMITS:
            counted = ", ".join(COUNTED_LIMITS)
            raise refusal(f"Accounts do not count {name}. They count {counted}.")
    return budget


AccountBudget = Annotated[BudgetBody | None, AfterValidator(_countable)]


class KeyWebhookBody(BodyModel):
    """Where to send a message when 70 and 90 % of a budget are spent.

    It is signed with the secret from `POST /webhooks/secret`.
    """

    url: Annotated[str, Field(examples=["https://example.com/hooks/caseworker"])]
    """Public https URL that receives the messages."""


class NewKeyBody(BodyModel):
    """An API key or a standing key to create."""

    kind: Literal["api", "agent"] = "api"
    """Kind of the key. An `agent` key is a standing key: it opens external runs at the gateway, and
    may do nothing else."""
    name: (
        Annotated[
            str,
            StringConstraints(min_length=1, max_length=MAX_NAME_CHARS),
            AfterValidator(_printable),
        ]
        | None
    ) = None
    """Name of the key, which identifies its user in receipts and records. An `agent` key may omit
    it."""
    scopes: Annotated[list[ScopeName], Field(min_length=1, max_length=3)] | None = None
    """Scopes of the key: what its user may do. `run`, the default, and `approve` include `read`;
    `admin` includes all scopes. An `agent` key has the scope `read`, for the runs of its
    sessions."""
    budget: AccountBudget = None
    """Limits of each session of an `agent` key over all its runs. The unnamed session gets them
    again each UTC day. Required for these keys; null is unlimited, here and below. All budgets may
    have `max_cost_usd`, `max_tokens`, `max_llm_calls` and `max_api_calls`."""
    budget_per_day: AccountBudget = None
    """Limits of all sessions of an `agent` key together, in a UTC day. Required for these keys."""
    budget_per_month: AccountBudget = None
    """Limits of all sessions of an `agent` key together, in a month in UTC."""
    models: ModelNames | ModelAliases | None = None
    """Models that the holder of an `agent` key may call: a list of configured names, or a map from
    the names that clients send to configured names. Defaults to all configured models."""
    idle_seconds: IdleSeconds | None = None
    """Seconds without an accepted call after which a run of an `agent` key ends as completed;
    defaults to 600. The next call of its session opens another run."""
    max_sessions_per_hour: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Maximum number of new sessions of an `agent` key in an hour; defaults to 60."""
    max_open_sessions: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Maximum number of sessions of an `agent` key with a run that has not ended; defaults to
    50."""
    webhook: KeyWebhookBody | None = None
    """Receiver of a message when the calls of an `agent` key have spent 70 and 90 % of one of its
    budgets."""
    tenant: TenantName | None = None
    """Tenant that the key belongs to; defaults to the caller's. Only the operator may name another
    tenant."""
    expires_at: Instant | None = None
    """Time at which the key expires. If omitted, it is valid until it is revoked."""

    def require_fields_of_kind(self) -> None:
        """Check that the body has the fields of its kind.

        Raises:
            ProblemError: a field is missing, or belongs to the other kind.
        """
        field_names = self.model_fields_set
        if self.kind == "api":
            for name in sorted(field_names & _OF_AGENTS):
                raise invalid(name, "Only keys of kind agent have this field.")
            if self.name is None:
                raise invalid("name", "This field is required.")
        elif "scopes" in field_names:
            raise invalid("scopes", "A key of kind agent has no scopes: it works at the gateway.")
        for name in ("budget", "budget_per_day"):
            if self.kind == "agent" and name not in field_names:
                raise invalid(name, "This field is required; null is unlimited.")

    @property
    def agent(self) -> AgentTerms | None:
        """The terms of a standing key; None for an API key."""
        if self.kind == "api":
            return None
        budgets = ((name, getattr(self, name)) for name in _BUDGETS)
        plain = (
            (name, getattr(self, name)) for name in sorted(_OF_AGENTS - {*_BUDGETS, "webhook"})
        )
        return AgentTerms(
            webhook=None if self.webhook is None else self.webhook.model_dump(),
            **{name: budget.to_json() for name, budget in budgets if budget is not None},
            **{name: value for name, value in plain if value is not None},
        )


_BUDGETS: Final = ("budget", "budget_per_day", "budget_per_month")
_OF_AGENTS: Final = frozenset(AgentTerms.__dataclass_fields__)


class RotateKeyBody(BodyModel):
    """Options for replacing a key with a new one."""

    overlap_seconds: Annotated[int, Field(ge=0, le=int(MAX_OVERLAP.total_seconds()))] = int(
        DEFAULT_OVERLAP.total_seconds()
    )
    """Seconds for which the old key remains valid; defaults to one day."""


class KeyQuery(QueryModel):
    """Query parameters that select API keys."""

    tenant: TenantName | None = None
    """Tenant whose keys to list. Only the operator may set it."""


class KeyView(View):
    """An API key, without its secret."""

    key_id: str
    """Public ID of the key: the part after `cwk_` or `cwa_` that is not secret."""
    tenant: str
    kind: Literal["api", "agent"]
    name: str
    scopes: list[ScopeName]
    created_at: datetime
    created_by: str
    made_by: str | None
    """ID of the key that has made this `agent` key, which ends with it; null if no key has."""
    budget: dict[str, int | float | None] | None = None
    """Limits of each session of an `agent` key; null for unlimited, and for other keys."""
    budget_per_day: dict[str, int | float | None] | None = None
    budget_per_month: dict[str, int | float | None] | None = None
    models: list[str] | dict[str, str] | None = None
    idle_seconds: float | None = None
    max_sessions_per_hour: int | None = None
    max_open_sessions: int | None = None
    webhook: dict[str, str] | None = None
    """Receiver of messages about the budgets of an `agent` key: its `url`, without the query, which
    may contain a secret."""
    expires_at: datetime | None
    revoked_at: datetime | None
    rotated_to: str | None
    """ID of the key that replaces this one; null if the key was not rotated."""

    @classmethod
    def of(cls, key: ApiKey) -> Self:
        """Return the view of a key."""
        return cls.of_parts(key, **members_of(key))


class IssuedKeyView(KeyView):
    """A newly created key with its secret, which cannot be retrieved later."""

    key: str
    """Credential to send in the header `Authorization: Bearer ...`."""

    @classmethod
    def issued(cls, issued: IssuedKey) -> Self:
        """Return the view of a newly created key, including its secret."""
        return cls.of_parts(issued.key, **members_of(issued.key), key=issued.secret)


class CallerView(View):
    """The sender of this request, as the service identified it."""

    tenant: str
    name: str
    """Name of the key, or subject of the token."""
    scopes: list[ScopeName]
    """Scopes of the caller, including implied ones."""
    anonymous: bool
    """Whether the request carried no credential."""


class KeyList(View):
    """API keys, newest first."""

    keys: list[KeyView]


def members_of(key: ApiKey) -> dict[str, Any]:
    """Return the fields of the view of a key that are not attributes of it."""
    terms = {} if key.agent is None else key.agent.to_json()
    if terms.get("webhook"):
        terms["webhook"] = {"url": terms["webhook"]["url"].partition("?")[0]}
    return {"kind": "api" if key.agent is None else "agent", "scopes": _in_order(key), **terms}


def _in_order(owner: ApiKey | Caller) -> list[str]:
    return [scope.value for scope in KeyScope if scope in owner.scopes]


KEY_NOT_FOUND = ProblemType(
    slug="key-not-found",
    status=404,
    title="API key not found",
    detail="No API key has this ID. GET /keys lists all keys.",
    explanation="No key of the caller's tenant has this ID.",
)
KEY_CONFLICT = ProblemType(
    slug="key-conflict",
    status=409,
    title="API key cannot be rotated or created",
    detail="A rotated, revoked or expired key cannot be rotated, and a tenant can have at most "
    "1,000 active keys. GET /keys lists them.",
    explanation="A key that was already rotated, revoked or has expired cannot be rotated. A "
    "tenant has at most 1,000 valid keys: revoke unused keys.",
)

ERRORS: Errors = {KeyNotFoundError: KEY_NOT_FOUND, KeyConflictError: KEY_CONFLICT}

router = api_router("keys", prefix="/keys")

KeyId = Annotated[str, Path(description="ID of the API key.", pattern="^[0-9a-f]{16}$")]

_RESPONSES_OF_ALL = (*EVERY_RUN_ROUTE, TENANT_REFUSED)
_RESPONSES_OF_ONE = (*EVERY_RUN_ROUTE, KEY_NOT_FOUND)
_USUALLY = RotateKeyBody()


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    responses=answers(*_RESPONSES_OF_ALL, *EVERY_BODY, KEY_CONFLICT),
)
@requires(KeyScope.ADMIN)
async def create_key(body: NewKeyBody, request: ApiRequest) -> IssuedKeyView:
    """Create a key; only this response contains its secret.

    The key belongs to the caller's tenant; the operator may name another tenant. Create the first
    key with the bootstrap key or on the command line. While no API keys exist, local callers manage
    `agent` keys without a credential.
    """
    body.require_fields_of_kind()
    if body.expires_at is not None and body.expires_at <= datetime.now(UTC):
        raise invalid("expires_at", "This must be in the future.")
    if body.webhook is not None:
        try:
            request.limits.webhook_urls.read(body.webhook.url)
        except AddressRefusedError as error:
            raise invalid("webhook.url", str(error)) from None
        tenant = body.tenant if request.caller.operator and body.tenant else request.caller.tenant
        await request.service(WebhookCheck).require_secret(tenant)
    scopes = body.scopes or [_USUAL if body.kind == "api" else "read"]
    issued = await request.service(PostgresKeys).create(
        request.caller if body.kind == "agent" else _require_credential(request),
        name=body.name or "agent",
        scopes=frozenset(map(KeyScope, scopes)),
        tenant=body.tenant,
        expires_at=body.expires_at,
        agent=body.agent,
    )
    request.service(Authentication).forget()
    return IssuedKeyView.issued(issued)


@router.get("", responses=answers(*_RESPONSES_OF_ALL))
@requires(KeyScope.ADMIN)
async def list_keys(query: Annotated[KeyQuery, Query()], request: ApiRequest) -> KeyList:
    """List the newest 1,000 keys of the tenant, newest first, without their secrets.

    The operator sees the keys of all tenants, or of the tenant given.
    """
    keys = await request.service(PostgresKeys).list(request.caller, query.tenant)
    return KeyList(keys=[KeyView.of(each) for each in keys])


@router.post(
    "/{key_id}/rotate",
    status_code=HTTPStatus.CREATED,
    responses=answers(*_RESPONSES_OF_ONE, *EVERY_BODY, KEY_CONFLICT),
)
@requires(KeyScope.ADMIN)
async def rotate_key(
    key_id: KeyId, request: ApiRequest, body: RotateKeyBody = _USUALLY
) -> IssuedKeyView:
    """Create a key that replaces another one; the old key remains valid for a while.

    The new key has the name, the scopes and the lifetime of the old one, starting now.
    """
    overlap = timedelta(seconds=body.overlap_seconds)
    issued = await request.service(PostgresKeys).rotate(request.caller, key_id, overlap=overlap)
    request.service(Authentication).forget()
    return IssuedKeyView.issued(issued)


@router.delete("/{key_id}", responses=answers(*_RESPONSES_OF_ONE))
@requires(KeyScope.ADMIN)
async def revoke_key(key_id: KeyId, request: ApiRequest) -> KeyView:
    """Revoke a key; every process rejects it within five seconds.

    The `agent` keys that it has made are revoked too. The running runs of `agent` keys are
    cancelled, unless another key has replaced theirs.
    """
    keys, caller = request.service(PostgresKeys), request.caller
    revoked = await keys.revoke(caller, key_id)
    request.service(Authentication).forget()
    await cancel_runs_of(keys, [key_id], request.service(RunService).cancel, caller)
    return KeyView.of(revoked)


callers = api_router("callers")


@callers.get("/whoami", responses=answers(*EVERY_CALLER))
async def get_caller(request: ApiRequest) -> CallerView:
    """Return the tenant, the name and the scopes of the caller."""
    return CallerView.of_parts(request.caller, scopes=_in_order(request.caller))


def _require_credential(request: ApiRequest) -> Caller:
    """Return the caller, who must have a credential to create the key that closes the service."""
    if request.caller.anonymous:
        raise CredentialRequiredError
    return request.caller
