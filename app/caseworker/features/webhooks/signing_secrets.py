"""Signing secrets of webhooks: generation, and encryption for storage."""

import base64
import secrets
from collections.abc import Sequence

from caseworker.platform.sealing import fernet_of

SECRET_BYTES = 32
_PREFIX = "whsec_"


class SecretBox:
    """Encrypts stored secrets if a key is configured; also reads unencrypted secrets."""

    def __init__(self, key: str | None = None) -> None:
        """Derive the encryption key from ``key``, which must be hard to guess.

        None stores new secrets without encryption.
        """
        self._fernet = None if key is None else fernet_of(key)

    def sealed(self, secret: str) -> str:
        """Return a secret in the form to store: encrypted if a key is configured."""
        return secret if self._fernet is None else self._fernet.encrypt(secret.encode()).decode()

    def opened(self, stored: Sequence[str]) -> list[str]:
        """Return stored secrets in plain text; omit secrets that the key cannot decrypt."""
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


def new_secret() -> str:
    """Generate a secret in the format in which receivers configure it."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
