"""Who sends a request, to which tenant they belong, and what they may do."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from caseworker.runs.run import DEFAULT_TENANT

TENANT_FORM: Final = r"[A-Za-z0-9._:-]{1,64}"
"""What tenants may be called."""

MAX_NAME_CHARS: Final = 200


class Scope(StrEnum):
    """What a caller may do with what belongs to its tenant."""

    READ = "read"
    """Look at everything."""
    RUN = "run"
    """Also start, go on with and cancel runs, talk in threads, and register graphs and agents."""
    APPROVE = "approve"
    """Also decide approvals; a key that starts runs cannot approve their calls without it."""
    ADMIN = "admin"
    """Also what concerns the whole tenant: keys, erasure, cancelling many runs at once."""


IMPLIED: Final[Mapping[Scope, frozenset[Scope]]] = MappingProxyType(
    {
        Scope.READ: frozenset({Scope.READ}),
        Scope.RUN: frozenset({Scope.READ, Scope.RUN}),
        Scope.APPROVE: frozenset({Scope.READ, Scope.APPROVE}),
        Scope.ADMIN: frozenset(Scope),
    }
)
"""Every scope, with those that it contains."""


def with_implied(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """Return scopes with all that they contain."""
    return frozenset().union(*(IMPLIED[scope] for scope in scopes))


def is_tenant(name: str) -> bool:
    """Tell whether a tenant may be called so."""
    return re.fullmatch(TENANT_FORM, name, re.ASCII) is not None


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request."""

    tenant: str
    """Owns the runs that the caller makes; those of others do not exist for it."""
    name: str
    """What cancel receipts and records call it: that of its key, or the subject of its token."""
    scopes: frozenset[Scope]
    """What it may do, with all that is implied."""
    operator: bool = False
    """Whether it runs the service: it may also make keys and set limits for other tenants."""
    anonymous: bool = False
    """Whether it has shown no credential."""

    def may(self, scope: Scope) -> bool:
        """Tell whether the caller has a scope."""
        return scope in self.scopes


LOCAL: Final = Caller(DEFAULT_TENANT, "anonymous", frozenset(Scope), anonymous=True)
"""Somebody on this machine, while no credentials exist."""

ANYBODY: Final = Caller(
    DEFAULT_TENANT, "anonymous", with_implied([Scope.RUN, Scope.APPROVE]), anonymous=True
)
"""Somebody somewhere, where ``auth.anonymous`` is ``anywhere`` and no credentials exist.

It may decide approvals: without keys no caller could, and callers cannot be distinguished.
"""

OPERATOR: Final = Caller(DEFAULT_TENANT, "operator", frozenset(Scope), operator=True)
"""Who holds the bootstrap key, or the database."""
