"""API schemas of API keys."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints

from caseworker.api.field_types import Body, Instant, Query, View
from caseworker.features.access.caller import MAX_NAME_CHARS, TENANT_FORM, Scope
from caseworker.features.access.keys import MAX_OVERLAP, USUAL_OVERLAP, ApiKey, IssuedKey
from caseworker.nodes.reading import refusal

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
    """`run` and `approve` include `read`; `admin` includes all scopes."""
    tenant: TenantName | None = None
    """Tenant of the key; defaults to the caller's. Only the operator may name another tenant."""
    expires_at: Instant | None = None
    """If omitted, the key is valid until it is revoked."""


class RotateKeyBody(Body):
    """How to replace a key."""

    overlap_seconds: Annotated[int, Field(ge=0, le=int(MAX_OVERLAP.total_seconds()))] = int(
        USUAL_OVERLAP.total_seconds()
    )
    """How long the old key remains valid; defaults to one day."""


class KeyQuery(Query):
    """Which keys to list."""

    tenant: TenantName | None = None
    """Only for the operator."""


class KeyView(View):
    """An API key, without its secret."""

    key_id: str
    """The public part of the key, after `cwk_`."""
    tenant: str
    name: str
    scopes: list[ScopeName]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    rotated_to: str | None
    """ID of the key that replaces it."""

    @classmethod
    def of(cls, key: ApiKey) -> Self:
        """Convert a key."""
        return cls.model_validate(_shown(key))


class IssuedKeyView(KeyView):
    """A newly created key with its secret, which cannot be retrieved later."""

    key: str
    """The credential to send as `Authorization: Bearer ...`."""

    @classmethod
    def issued(cls, issued: IssuedKey) -> Self:
        """Convert a newly created key."""
        return cls.model_validate({**_shown(issued.key), "key": issued.secret})


class KeyList(View):
    """API keys, newest first."""

    keys: list[KeyView]


def _shown(key: ApiKey) -> dict[str, object]:
    shown = {name: getattr(key, name) for name in ApiKey.__dataclass_fields__}
    return {**shown, "scopes": [scope.value for scope in Scope if scope in key.scopes]}
