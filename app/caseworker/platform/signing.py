"""Signatures of HTTP requests as standardwebhooks.com defines them."""

import base64
from collections.abc import Sequence
from datetime import datetime

from standardwebhooks.webhooks import hmac_data


def signed_headers(
    keys: Sequence[str], *, message_id: str, at: datetime, body: bytes
) -> dict[str, str]:
    """Return the headers with a message's ID, time and signatures, one signature per secret.

    ``at`` is the time of sending in UTC. Receivers reject signatures that are more than a
    few minutes old. The body may be binary, which the ``Webhook`` of the library cannot sign.

    Raises:
        ValueError: a secret is empty, or not in Base64.
    """
    timestamp = str(int(at.timestamp()))
    signed = f"{message_id}.{timestamp}.".encode() + body
    signatures = (base64.b64encode(hmac_data(_secret(key), signed)).decode() for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{each}" for each in signatures),
    }


def _secret(key: str) -> bytes:
    """Return the bytes of a secret, which may lack the padding of Base64."""
    secret = base64.b64decode(key.removeprefix("whsec_") + "==")
    if not secret:
        raise ValueError("a secret may not be empty")
    return secret
