"""Keys of steps: the process that executes a step makes one for the code of the step.

A key names its run, and a MAC proves that it comes from the process that owns the run. Other
processes can therefore check it with the database before they read or forward a request. The
process itself knows its keys.
"""

import base64
import hashlib
import hmac
import secrets
from typing import Final

from caseworker.platform.http.bodies import is_storable
from caseworker.runs.run import RunKey

KEY_PREFIX: Final = "cwr_"
_NONCE_CHARS: Final = 32


def key_of_step(run: RunKey, secret: str) -> str:
    """Return a new key for a step of a run; ``secret`` is that of this process."""
    name = base64.urlsafe_b64encode("\n".join((run.tenant, run.run_id)).encode()).decode()
    nonce = secrets.token_hex(_NONCE_CHARS // 2)
    return f"{KEY_PREFIX}{name}.{nonce}{_mac(name, nonce, secret)}"


def run_of(key: str) -> RunKey | None:
    """Return the run that the key of a step names; None for another key."""
    name, _, proof = key.removeprefix(KEY_PREFIX).partition(".")
    try:
        text = base64.b64decode(name.encode("ascii"), altchars=b"-_", validate=True).decode()
        tenant, run_id = text.split("\n")
    except ValueError:
        return None
    return RunKey(tenant, run_id) if proof and is_storable(text) else None


def is_made_with(key: str, secret: str) -> bool:
    """Return whether the process with ``secret`` has made the key of a step."""
    name, _, proof = key.removeprefix(KEY_PREFIX).partition(".")
    nonce, mac = proof[:_NONCE_CHARS], proof[_NONCE_CHARS:]
    return hmac.compare_digest(mac.encode(), _mac(name, nonce, secret).encode())


def _mac(name: str, nonce: str, secret: str) -> str:
    text = f"step {name} {nonce}".encode()
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
