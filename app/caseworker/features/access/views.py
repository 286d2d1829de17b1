"""API schemas for API keys."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints

from caseworker.features.access.keys import MAX_OVERLAP, USUAL_OVERLAP, ApiKey, IssuedKey
from caseworker.platform.caller import MAX_NAME_CHARS, TENANT_FORM, Scope
from caseworker.platform.http.field_types import Body, Instant, Query, View
from caseworker.platform.validation import refusal

TenantName = Annotated[str, StringConstraints(pattern=f"^{TENANT_FORM}$")]
ScopeName = Literal["read", "run", "approve", "admin"]
_USUAL: ScopeName = "run"


def _printable(name: str) -> str:
    if not name.isprintable() or name.isspace():
        raise refusal("This must contain only printable characters and must not be blank.")
    return name


class NewKeyBody(Body):
    """An API key to create."""

    name: Annotated[
        str,
        StringConstraints(min_length=1, max_length=MAX_NAME_CHARS),
        AfterValidator(_printable),
    ]
    """Name of the key, which identifies its user in receipts and records."""
    scopes: Annotated[list[ScopeName], Field(min_length=1, max_length=3)] = Field(
        default_factory=lambda: [_USUAL]
    )
    """Scopes of the key: what its user may do. `run` and `approve` include `read`; `admin` includes
    all scopes."""
    tenant: TenantName | None = None
    """Tenant that the key belongs to; defaults to the caller's. Only the operator may name another
    tenant."""
    expires_at: Instant | None = None
    """Time at which the key expires. If omitted, it is valid until it is revoked."""


class RotateKeyBody(Body):
    """Options for replacing a key with a new one."""

    overlap_seconds: Annotated[int, Field(ge=0, le=int(MAX_OVERLAP.total_seconds()))] = int(
        USUAL_OVERLAP.total_seconds()
    )
    """Seconds for which the old key remains valid; defaults to one day."""


class KeyQuery(Query):
    """Query parameters that select API keys."""

    tenant: TenantName | None = None
    """Tenant whose keys to list. Only the operator may set it."""


class KeyView(View):
    """An API key, without its secret."""

    key_id: str
    """Public ID of the key: the part after `cwk_` that is not secret."""
    tenant: str
    name: str
    scopes: list[ScopeName]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    rotated_to: str | None
    """ID of the key that replaces this one; null if the key was not rotated."""

    @classmethod
    def of(cls, key: ApiKey) -> Self:
        """Return the view of a key."""
        return cls.model_validate(_shown(key))


class IssuedKeyView(KeyView):
    """A newly created key with its secret, which cannot be retrieved later."""

    key: str
    """Credential to send in the header `Authorization: Bearer ...`."""

    @classmethod
    def issued(cls, issued: IssuedKey) -> Self:
        """Return the view of a newly created key, including its secret."""
        return cls.model_validate({**_shown(issued.key), "key": issued.secret})


class KeyList(View):
    """API keys, newest first."""

    keys: list[KeyView]


def _shown(key: ApiKey) -> dict[str, object]:
    shown = {name: getattr(key, name) for name in ApiKey.__dataclass_fields__}
    return {**shown, "scopes": [scope.value for scope in Scope if scope in key.scopes]}
