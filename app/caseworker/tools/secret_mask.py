"""Replaces an operator's secrets in the replies of a server, in each form that a text can have.

A server may echo the headers of a request. It may write each character as it is, as an escape of
JSON, as a percent escape or as an entity of HTML, and may escape the escapes again.
"""

import re
from collections.abc import Iterable
from html.entities import html5
from typing import Final

MASK: Final = "[secret]"
_ESCAPES: Final = ("\\", "%", "&")
_NAMES: Final = {
    character: [name for name, text in html5.items() if text == character and name[-1] == ";"]
    for character in map(chr, range(33, 127))
}
# Escapes of escapes are bounded: without a bound, some texts would take quadratic time.
_AMPERSAND: Final = "&(?:amp;|#38;|#x26;){0,4}"
_BACKSLASHES: Final = r"\\{0,15}"
_PERCENT: Final = "%(?:25){0,4}"


class SecretMask:
    """Replaces secrets in texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """Mask ``secrets``; a longer one is masked before its parts."""
        self._secrets = sorted(set(secrets), key=len, reverse=True)
        forms = ("".join(map(_forms_of, secret)) for secret in self._secrets)
        self._pattern = re.compile("|".join(forms), re.ASCII)
        first = {secret[0] for secret in self._secrets} | set(_ESCAPES)
        self._starts = re.compile(f"[{re.escape(''.join(first))}]")

    def apply(self, text: str) -> str:
        """Return a text with each secret replaced by ``[secret]``."""
        if not any(map(text.__contains__, _ESCAPES)):
            for secret in self._secrets:
                text = text.replace(secret, MASK)
            return text
        parts, end = list[str](), 0
        for start in self._starts.finditer(text):  # one search would hold the GIL for long
            at = start.start()
            if at >= end and (match := self._pattern.match(text, at)) and match.group():
                parts += [text[end:at], MASK]
                end = match.end()
        return "".join((*parts, text[end:]))


def _forms_of(character: str) -> str:
    """Return the pattern of the forms in which a text can write a character."""
    code = ord(character)
    names = "".join(f"|{re.escape(name)}" for name in _NAMES.get(character, ()))
    blank = r"|\+" if character == " " else ""
    return (
        rf"(?:{_BACKSLASHES}(?:{re.escape(character)}|\\(?:u00|x)(?i:{code:02x}))"
        rf"|{_PERCENT}(?i:{code:02x}){blank}"
        rf"|{_AMPERSAND}(?:#0*{code};?|#[xX]0*(?i:{code:x});?{names}))"
    )
