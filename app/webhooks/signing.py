"""Secrets of tenants and the signatures made with them (standardwebhooks.com)."""

import base64
import secrets
from collections.abc import Sequence
from datetime import datetime

from standardwebhooks.webhooks import Webhook

SECRET_BYTES = 32


def new_secret() -> str:
    """Return a new secret, in the form in which receivers configure it."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


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
