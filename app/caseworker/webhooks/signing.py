"""Secrets of tenants, stored and used for signatures (standardwebhooks.com)."""

import base64
import hashlib
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from standardwebhooks.webhooks import Webhook

SECRET_BYTES = 32
_PREFIX = "whsec_"


class SecretBox:
    """Encrypts what is stored, if there is a key; opens what was stored before as well."""

    def __init__(self, key: str | None = None) -> None:
        """Take a key that nobody can guess: its hash is what encrypts."""
        self._fernet = None if key is None else _fernet_of(key)

    def sealed(self, secret: str) -> str:
        """Return a secret as it is stored."""
        return secret if self._fernet is None else self._fernet.encrypt(secret.encode()).decode()

    def opened(self, stored: Sequence[str]) -> list[str]:
        """Return those of the secrets that this key opens."""
        return [secret for each in stored if (secret := self._opened(each)) is not None]

    def _opened(self, stored: str) -> str | None:
        if stored.startswith(_PREFIX):
            return stored
        if self._fernet is None:
            return None
        from cryptography.fernet import InvalidToken

        try:
            opened: bytes = self._fernet.decrypt(stored)
        except InvalidToken:
            return None
        return opened.decode()


def _fernet_of(key: str) -> Any:
    """Return what encrypts; its library takes 8 MB, which a service without a key does not need."""
    from cryptography.fernet import Fernet

    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest()))


def new_secret() -> str:
    """Return a new secret, in the form in which receivers configure it."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def signed_headers(
    keys: Sequence[str], *, message_id: str, at: datetime, body: bytes
) -> dict[str, str]:
    """Return the headers that identify, date and sign a body, with one signature for each secret.

    ``at`` is when it is sent, UTC: receivers refuse what was signed more than some minutes ago.
    """
    text = body.decode()
    signatures = (Webhook(key).sign(message_id, at, text) for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
