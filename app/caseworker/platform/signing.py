"""Signatures of HTTP requests as standardwebhooks.com defines them."""

from collections.abc import Sequence
from datetime import datetime

from standardwebhooks.webhooks import Webhook


def signed_headers(
    keys: Sequence[str], *, message_id: str, at: datetime, body: bytes
) -> dict[str, str]:
    """Return the headers with a message's ID, time and signatures, one signature per secret.

    ``at`` is the time of sending in UTC. Receivers reject signatures that are more than a
    few minutes old.
    """
    text = body.decode()
    signatures = (Webhook(key).sign(message_id, at, text) for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
