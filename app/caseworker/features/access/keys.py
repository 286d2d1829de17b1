"""API keys and their format; :mod:`agent_keys` describes standing keys.

A key is ``cwk_<id>_<secret>``. The ID identifies its row. The secret has 256 random bits; only the
SHA-256 of the whole key is stored, so a copy of the database grants no access. A slow password hash
would add nothing, because a secret of that size cannot be guessed.
"""

import hashlib
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from caseworker.features.access.agent_keys import AgentTerms
from caseworker.platform.caller import Caller, KeyScope, with_implied

KEY_PREFIX: Final = "cwk_"
FORM: Final = re.compile(r"cwk_([0-9a-f]{16})_[0-9a-f]{64}", re.ASCII)
MAX_KEYS: Final = 1000
"""Maximum number of active keys per tenant; also the maximum length of a list of keys.

A tenant also keeps at most this many revoked or expired keys.
"""
MAX_OVERLAP: Final = timedelta(days=30)
"""Maximum time that the old key can remain valid after a rotation."""
DEFAULT_OVERLAP: Final = timedelta(days=1)
"""Default time that the old key remains valid after a rotation."""


class KeyNotFoundError(Exception):
    """The key does not exist or belongs to another tenant."""


class KeyConflictError(Exception):
    """The key is revoked, expired or already rotated, or the tenant has too many keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A stored API key, without its secret."""

    key_id: str
    tenant: str
    name: str
    """Name of the key, which identifies the caller in receipts and records."""
    scopes: frozenset[KeyScope]
    """Scopes as granted to the key, without implied ones."""
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    rotated_to: str | None = None
    """ID of the key that replaces this one; None if it was not rotated."""
    agent: AgentTerms | None = None
    """The terms of a standing key; None for other keys."""
    account: str | None = None
    """ID under which the calls of a standing key are counted, which a rotation keeps; None for
    other keys."""
    made_by: str | None = None
    """ID of the key that has made a standing key, which ends with it; None if no key has."""

    def works_at(self, moment: datetime) -> bool:
        """Return whether the key is neither revoked nor expired at ``moment``."""
        return self.revoked_at is None and (self.expires_at is None or moment < self.expires_at)

    @property
    def caller(self) -> Caller:
        """The caller that the key authenticates."""
        scopes = with_implied(self.scopes)
        return Caller(self.tenant, self.name, scopes, key_id=self.key_id)


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key with its secret, which is shown only once."""

    key: ApiKey
    secret: str = field(repr=False)
    """The complete key, as callers send it."""


def sha256_of(credential: str) -> bytes:
    """Return the SHA-256 of a credential, which is stored for keys and used to cache results."""
    return hashlib.sha256(credential.encode()).digest()
