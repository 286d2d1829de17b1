"""The sender of a request: its tenant, name and permissions."""

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
    """Read everything."""
    RUN = "run"
    """Also start, resume and cancel runs, post to threads, and register graphs and agents."""
    APPROVE = "approve"
    """Also decide approvals; a key that starts runs cannot approve their calls without it."""
    ADMIN = "admin"
    """Also tenant-wide operations: keys, erasure and bulk cancellation."""


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
    """Return the scopes and all scopes that they imply."""
    return frozenset().union(*(IMPLIED[scope] for scope in scopes))


def is_tenant(name: str) -> bool:
    """Return whether this is a valid tenant name."""
    return re.fullmatch(TENANT_FORM, name, re.ASCII) is not None


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request."""

    tenant: str
    """Owns the runs that the caller creates; runs of another tenant are invisible to it."""
    name: str
    """Name in cancel receipts and records: the name of the key or the subject of the token."""
    scopes: frozenset[Scope]
    """Granted scopes, implied ones included."""
    operator: bool = False
    """Whether the caller operates the service and may manage keys and limits of any tenant."""
    anonymous: bool = False
    """Whether the request carried no credential."""

    def may(self, scope: Scope) -> bool:
        """Return whether the caller has a scope."""
        return scope in self.scopes


LOCAL: Final = Caller(DEFAULT_TENANT, "anonymous", frozenset(Scope), anonymous=True)
"""An unauthenticated local caller, accepted while no credentials exist."""

ANYBODY: Final = Caller(
    DEFAULT_TENANT, "anonymous", with_implied([Scope.RUN, Scope.APPROVE]), anonymous=True
)
"""An unauthenticated remote caller, accepted if ``auth.anonymous`` is ``anywhere``.

Accepted only while no credentials exist. It may decide approvals, because otherwise no caller
could: without keys, callers cannot be distinguished.
"""

OPERATOR: Final = Caller(DEFAULT_TENANT, "operator", frozenset(Scope), operator=True)
"""The holder of the bootstrap key, or of access to the database."""
