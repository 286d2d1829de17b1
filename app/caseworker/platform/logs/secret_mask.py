"""Masks secrets of operators and tenants in the response of a server, in all escaped forms.

A server may echo the headers of a request. It may write each character as it is, as an escape of
JSON, as a percent escape or as an entity of HTML, and may escape the escapes again. It may also
decode the credentials of HTTP Basic, or encode a secret in Base64.

Texts and secrets are compared without escapes. The places of the escapes are kept, so that a
secret is masked where the original text has it.
"""

import base64
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from html.entities import html5
from typing import Any, Final
from urllib.parse import urlsplit

from caseworker.platform.logs.redaction import names_secret

MASK: Final = "[secret]"
LEAST_CHARS: Final = 8
"""Minimum length, in characters, of a secret that is masked."""
_LEAST_PLAIN: Final = 4
"""Minimum length, in characters, of a secret without the escapes that it seems to contain."""
_LAYERS: Final = 3
"""Number of layers of escapes of several kinds, such as those of JSON in HTML in a URL."""
# Escapes of escapes are bounded: without a bound, some texts would take quadratic time.
_ESCAPE: Final = re.compile(
    r"\\{0,15}\\(?:u00|x)([0-9A-Fa-f]{2})"
    r"|%(?:25){0,4}([0-9A-Fa-f]{2})"
    r"|&(?:amp;|#38;|#[xX]26;){0,4}(?:#[xX]0{0,9}([0-9A-Fa-f]{2});?|#0{0,9}(\d{2,3});?|(\w{2,40};))"
    r"|\\{1,16}",
    re.ASCII,
)
_ENTITIES: Final = {
    name: text for name, text in html5.items() if name[-1] == ";" and len(text) == 1
}


class SecretMask:
    """Replaces secrets in texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """Mask values of headers or variables, and the secrets in them; see :func:`_parts_of`."""
        parts = {part for secret in secrets for part in _parts_of(secret)}
        parts = {part for part in parts if len(part) >= LEAST_CHARS}
        parts |= {encoded for part in parts for encoded in _in_base64(part)}
        plain = {part: _Plain(part).text for part in parts}
        self._secrets = {text for text in plain.values() if len(text) >= _LEAST_PLAIN}
        self._of_escapes = [part for part, text in plain.items() if len(text) < _LEAST_PLAIN]

    def __bool__(self) -> bool:
        """Whether there are secrets."""
        return bool(self._secrets or self._of_escapes)

    def apply_to_bytes(self, content: bytes | bytearray) -> bytes:
        """Return a text in UTF-8 in which each secret is masked."""
        text = content.decode(errors="surrogateescape")
        return self.apply(text).encode(errors="surrogateescape")

    def apply_to(self, value: Any) -> Any:
        """Return a JSON value in which each secret is masked, also in keys."""
        match value:
            case str():
                return self.apply(value)
            case Mapping():
                return {self.apply(key): self.apply_to(each) for key, each in value.items()}
            case list():
                return [self.apply_to(each) for each in value]
            case _:
                return value

    def apply(self, text: str) -> str:
        """Return a text in which each secret is replaced with ``[secret]``."""
        for secret in self._of_escapes:
            text = text.replace(secret, MASK)
        if not self._secrets:
            return text
        plain: _Plain | None = _Plain(text)
        spans = list[tuple[int, int]]()
        while plain is not None:
            spans += [span for secret in self._secrets for span in plain.spans_of(secret)]
            plain = plain.deeper()
        parts, end = list[str](), 0
        for start, stop in sorted(spans):
            if start >= end:
                parts += [text[end:start], MASK]
            end = max(end, stop)
        return "".join((*parts, text[end:]))


class _Plain:
    """A text without escapes, and where its characters are in the original text."""

    def __init__(self, original: str, outer: "_Plain | None" = None, layers: int = 1) -> None:
        """Remove one layer of escapes; ``outer`` is the text that ``original`` came from."""
        self._original, self._outer, self._layers = original, outer, layers
        pieces, self._at, self._origin, self._width = list[str](), [0], [0], [1]
        length, end = 0, 0

        def add(piece: str, origin: int, width: int) -> None:
            nonlocal length
            pieces.append(piece)
            self._at.append(length)
            self._origin.append(origin)
            self._width.append(width)
            length += len(piece)

        is_plain = not any(map(original.__contains__, "\\%&"))
        for found in () if is_plain else _ESCAPE.finditer(original):
            start = found.start()
            if (character := _character(found)) is None:
                continue
            if start > end:
                add(original[end:start], end, 1)
            end = found.end()
            add(character, start, end - start)
        if end < len(original):
            add(original[end:], end, 1)
        self.text = "".join(pieces).replace("+", " ")  # in a query, a plus sign is a blank

    def deeper(self) -> "_Plain | None":
        """Return the text without the escapes that the escapes stood for; None if it has none."""
        if self._layers == _LAYERS or self.text == self._original:
            return None
        return _Plain(self.text, self, self._layers + 1)

    def spans_of(self, secret: str) -> Iterator[tuple[int, int]]:
        """Yield start and end of each occurrence in the original text."""
        at = self.text.find(secret)
        while at >= 0:
            end = at + len(secret)
            yield self._place(at), self._end(end - 1)
            at = self.text.find(secret, end)

    def _place(self, index: int) -> int:
        """Return the original place of a character, with the backslashes before it."""
        piece = bisect_left(self._at, index, 1)
        if piece == len(self._at) or self._at[piece] > index:
            piece -= 1
        place = self._origin[piece] + index - self._at[piece]
        return place if self._outer is None else self._outer._place(place)

    def _end(self, index: int) -> int:
        """Return the original end of a character."""
        piece = bisect_right(self._at, index) - 1
        end = self._origin[piece] + (index - self._at[piece] + 1) * self._width[piece]
        return end if self._outer is None else self._outer._end(end - 1)


def _character(escape: re.Match[str]) -> str | None:
    """Return the character that an escape represents, or "" for backslashes before a character."""
    code, percent, hexadecimal, decimal, name = escape.groups()
    if name is not None:
        return _ENTITIES.get(name)
    if decimal is not None:
        return chr(int(decimal))
    digits = code or percent or hexadecimal
    return "" if digits is None else chr(int(digits, 16))


def secrets_in(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of environment variables with names of secrets, and passwords in URLs."""
    for name, value in variables.items():
        if names_secret(name):
            yield value
        with suppress(ValueError):
            yield urlsplit(value).password or ""


def _parts_of(secret: str) -> Iterator[str]:
    """Yield a secret, the part after a scheme such as ``Bearer``, and what Basic encodes."""
    scheme, _, credentials = secret.rpartition(" ")
    yield from (secret, credentials)
    if scheme.lower() == "basic":
        with suppress(ValueError):
            decoded = base64.b64decode(credentials).decode()
            yield from (decoded, decoded.partition(":")[2])


def _in_base64(secret: str) -> Iterator[str]:
    """Yield the common part of all Base64 texts that contain a secret, for each position."""
    data = secret.encode()
    for before in range(3):
        padded = bytes(before) + data
        start, end = -(-before * 8 // 6), len(padded) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(padded).decode()[start:end]
