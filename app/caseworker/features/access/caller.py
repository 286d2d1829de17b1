"""The sender of a request, with its tenant, its name and its permissions."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from caseworker.runs.run import DEFAULT_TENANT

TENANT_FORM: Final = r"[A-Za-z0-9._:-]{1,64}"
"""Regular expression for valid tenant names."""

MAX_NAME_CHARS: Final = 200


class Scope(StrEnum):
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


IMPLIED: Final[Mapping[Scope, frozenset[Scope]]] = MappingProxyType(
    {
        Scope.READ: frozenset({Scope.READ}),
        Scope.RUN: frozenset({Scope.READ, Scope.RUN}),
        Scope.APPROVE: frozenset({Scope.READ, Scope.APPROVE}),
        Scope.ADMIN: frozenset(Scope),
    }
)
"""Maps each scope to all scopes that it grants, itself included."""


def with_implied(scopes: Iterable[Scope]) -> frozenset[Scope]:
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
    scopes: frozenset[Scope]
    """Scopes that the caller has, including implied ones."""
    operator: bool = False
    """Whether the caller operates the service, and so may manage the keys and limits of any
    tenant."""
    anonymous: bool = False
    """Whether the request carried no credential."""

    def may(self, scope: Scope) -> bool:
        """Return whether the caller has the permission ``scope``."""
        return scope in self.scopes


LOCAL: Final = Caller(DEFAULT_TENANT, "anonymous", frozenset(Scope), anonymous=True)
"""The caller of a local request without a credential, which is accepted while no credentials
exist."""

ANYBODY: Final = Caller(
    DEFAULT_TENANT, "anonymous", with_implied([Scope.RUN, Scope.APPROVE]), anonymous=True
)
"""The caller of a remote request without a credential, if ``auth.anonymous`` is ``anywhere``.

Such a request is accepted only while no credentials exist. The caller may decide approvals, because
otherwise no caller could: without keys, callers cannot be distinguished.
"""

OPERATOR: Final = Caller(DEFAULT_TENANT, "operator", frozenset(Scope), operator=True)
"""The holder of the bootstrap key, or of direct access to the database."""
