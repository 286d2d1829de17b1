"""Encryption of secrets that are stored in the database."""

import base64
import hashlib
from typing import Any


def fernet_of(key: str) -> Any:
    """Return the cipher for a key, which must be hard to guess.

    The library is imported here because it takes 8 MB and few services need it.
    """
    from cryptography.fernet import Fernet

    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest()))
