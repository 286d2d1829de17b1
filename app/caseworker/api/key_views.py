"""Keys as callers make and see them."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints

from caseworker.access.caller import MAX_NAME_CHARS, TENANT_FORM, Scope
from caseworker.access.keys import MAX_OVERLAP, USUAL_OVERLAP, ApiKey, IssuedKey
from caseworker.api.field_types import Body, Instant, Query, View
from caseworker.nodes.reading import refusal

TenantName = Annotated[str, StringConstraints(pattern=f"^{TENANT_FORM}$")]
ScopeName = Literal["read", "run", "approve", "admin"]
_USUAL: ScopeName = "run"


def _printable(name: str) -> str:
    if not name.isprintable() or name.isspace():
        raise refusal("This must contain only printable characters and must not be blank.")
    return name


class NewKeyBody(Body):
    """A key to make."""

    name: Annotated[
        str,
        StringConstraints(min_length=1, max_length=MAX_NAME_CHARS),
        AfterValidator(_printable),
    ]
    """What receipts and records call whoever uses it."""
    scopes: Annotated[list[ScopeName], Field(min_length=1, max_length=3)] = Field(
        default_factory=lambda: [_USUAL]
    )
    """`run` contains `read`, and `admin` both."""
    tenant: TenantName | None = None
    """Of another tenant than the caller's own: for the operator alone."""
    expires_at: Instant | None = None
    """Left out, it works until it is revoked."""


class RotateKeyBody(Body):
    """How a key is replaced."""

    overlap_seconds: Annotated[int, Field(ge=0, le=int(MAX_OVERLAP.total_seconds()))] = int(
        USUAL_OVERLAP.total_seconds()
    )
    """How long the old key works on; a day unless given."""


class KeyQuery(Query):
    """Whose keys to list."""

    tenant: TenantName | None = None
    """For the operator alone."""


class KeyView(View):
    """A key, without its secret."""

    key_id: str
    """The part of the key behind `cwk_`."""
    tenant: str
    name: str
    scopes: list[ScopeName]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    rotated_to: str | None
    """The id of the key that replaces it."""

    @classmethod
    def of(cls, key: ApiKey) -> Self:
        """Return the view of a key."""
        return cls.model_validate(_shown(key))


class IssuedKeyView(KeyView):
    """A key that was just made, with its secret, which is shown nowhere else."""

    key: str
    """What to send as `Authorization: Bearer ...`."""

    @classmethod
    def issued(cls, issued: IssuedKey) -> Self:
        """Return the view of a new key."""
        return cls.model_validate({**_shown(issued.key), "key": issued.secret})


class KeyList(View):
    """Keys, the newest first."""

    keys: list[KeyView]


def _shown(key: ApiKey) -> dict[str, object]:
    shown = {name: getattr(key, name) for name in ApiKey.__dataclass_fields__}
    return {**shown, "scopes": [scope.value for scope in Scope if scope in key.scopes]}
