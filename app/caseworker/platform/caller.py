"""The sender of a request: its tenant, name and permissions, and errors about them.

Error messages never contain a credential.
"""

import re
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

DEFAULT_TENANT: Final = "default"
"""Tenant of callers without credentials, of the operator, and of agents from the operator's
folder."""

TENANT_FORM: Final = (
    "(?:[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,63}|[.][A-Za-z0-9_:-][A-Za-z0-9._:-]{0,62}"
    "|[.][.][A-Za-z0-9._:-]{1,62})"
)
"""Regular expression for valid tenant names: 1 to 64 of these characters, except ``.`` and ``..``
alone, which cannot be URL path segments."""

MAX_NAME_CHARS: Final = 200


class KeyScope(StrEnum):
    """A permission on the resources of the caller's tenant."""

    READ = "read"
    """Read all resources of the tenant."""
    RUN = "run"
    """Start, resume and cancel runs, post to threads, and register graphs and agents; includes
    ``read``."""
    APPROVE = "approve"
    """Decide approvals. A key that may only start runs cannot approve their calls."""
    ADMIN = "admin"
    """Manage the tenant: keys, erasure and bulk cancellation."""


IMPLIED: Final[Mapping[KeyScope, frozenset[KeyScope]]] = MappingProxyType(
    {
        KeyScope.READ: frozenset({KeyScope.READ}),
        KeyScope.RUN: frozenset({KeyScope.READ, KeyScope.RUN}),
        KeyScope.APPROVE: frozenset({KeyScope.READ, KeyScope.APPROVE}),
        KeyScope.ADMIN: frozenset(KeyScope),
    }
)
"""Maps each scope to all scopes that it grants, itself included."""


def with_implied(scopes: Iterable[KeyScope]) -> frozenset[KeyScope]:
    """Return the given scopes together with all scopes that they imply."""
    return frozenset().union(*(IMPLIED[scope] for scope in scopes))


def is_tenant(name: str) -> bool:
    """Return whether ``name`` is a valid tenant name."""
    return re.fullmatch(TENANT_FORM, name, re.ASCII) is not None


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request."""

    tenant: str
    """Tenant that owns the runs that the caller creates. Runs of other tenants are invisible to the
    caller."""
    name: str
    """Name of the key, or subject of the token, for cancel receipts and records."""
    scopes: frozenset[KeyScope]
    """Scopes that the caller has, including implied ones."""
    operator: bool = False
    """Whether the caller operates the service, and so may manage the keys and limits of any
    tenant."""
    anonymous: bool = False
    """Whether the request carried no credential."""
    run_id: str | None = None
    """The only run that the caller's key may be used for; None for other credentials."""
    key_id: str | None = None
    """Public ID of the caller's API key; None for other credentials."""

    @property
    def identity(self) -> str:
        """Text that identifies the caller within its tenant: a key by its ID, others by name.

        It is empty for the operator, and for work that no request started.
        """
        if self.operator:
            return ""
        return f"name:{self.name}" if self.key_id is None else f"key:{self.key_id}"

    @property
    def sees_all_tenants(self) -> bool:
        """Whether the caller may manage the resources of any tenant.

        Operators may, and local callers while no credentials exist.
        """
        return self.operator or (self.anonymous and KeyScope.ADMIN in self.scopes)


LOCAL: Final = Caller(DEFAULT_TENANT, "anonymous", frozenset(KeyScope), anonymous=True)
"""The caller of a local request without a credential, which is accepted while no credentials
exist."""

REMOTE: Final = Caller(
    DEFAULT_TENANT, "anonymous", with_implied([KeyScope.RUN, KeyScope.APPROVE]), anonymous=True
)
"""The caller of a remote request without a credential, if ``auth.anonymous`` is ``anywhere``.

Such a request is accepted only while no credentials exist. The caller may decide approvals, because
otherwise no caller could: without keys, callers cannot be distinguished.
"""

OPERATOR: Final = Caller(DEFAULT_TENANT, "operator", frozenset(KeyScope), operator=True)
"""The holder of the bootstrap key, or of direct access to the database."""


ACTING: Final[ContextVar[Caller]] = ContextVar("acting", default=OPERATOR)
"""The caller of the current request; on the command line it is the operator."""


class AccessRefusedError(Exception):
    """The caller is not authenticated, or lacks the permission for this request."""


class CredentialRequiredError(AccessRefusedError):
    """The request carries no credential, and the service requires one."""


class InvalidCredentialError(AccessRefusedError):
    """The credential is unknown, expired or revoked; the message does not say which."""


class ScopeMissingError(AccessRefusedError):
    """The caller is authenticated but lacks the required scope."""

    def __init__(self, scope: str) -> None:
        super().__init__(f"This operation requires the scope {scope}.")
        self.scope = scope


class OtherTenantError(AccessRefusedError):
    """The caller named another tenant, which only the operator of the service may do."""
