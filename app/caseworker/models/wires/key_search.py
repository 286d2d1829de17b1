"""Masks the key of an endpoint in its replies, at almost no cost for replies without the key."""

import asyncio
import json
import re
from typing import Final

from caseworker.platform.logs.secret_mask import SecretMask

_SHORT_BYTES: Final = 16 * 1024
"""Size of content that is masked without a thread."""
_ESCAPE: Final = re.compile(rb"\\(?:u00|x)[0-9A-Fa-f]{2}")
"""Escape of JSON or of a programming language."""
_BARE_ESCAPE: Final = re.compile(rb"%[0-9A-Fa-f]{2}|&(?:#|\w{2,40};)")
"""Escape of a URL or of HTML, in content without its backslashes."""


async def masked(content: bytes, mask: SecretMask) -> bytes:
    """Return a reply, or one event of it, in which the secrets are masked."""
    if not may_show(content, mask):
        return content
    if len(content) <= _SHORT_BYTES:
        return _masked(content, mask)
    return await asyncio.to_thread(_masked, content, mask)


def may_show(content: bytes, mask: SecretMask) -> bool:
    """Return whether content may have a secret: it has one as plain text, or it has escapes.

    Without escapes of characters, only backslashes can be between the characters of a secret.
    """
    bare = content.replace(b"\\", b"").replace(b"\0", b"")
    if _BARE_ESCAPE.search(bare) or (len(bare) < len(content) and _ESCAPE.search(content)):
        return True
    return mask.apply_to_bytes(bare) != bare


def _masked(content: bytes, mask: SecretMask) -> bytes:
    if b"\0" not in content:
        return mask.apply_to_bytes(content)
    encoding = json.detect_encoding(content)  # UTF-16 and UTF-32 have zero bytes
    text = mask.apply(content.decode(encoding, "replace")).encode(encoding, "replace")
    bare = text.replace(b"\0", b"")
    hidden = mask.apply_to_bytes(bare)
    return text if hidden == bare else hidden
