"""Masks secrets of operators and tenants in the response of a server, in all escaped forms.

A server may echo the headers of a request. It may write each character as it is, as an escape of
JSON, as a percent escape or as an entity of HTML, and may escape the escapes again. It may break
lines inside a secret. It may also decode the credentials of HTTP Basic, or encode a secret in
Base64, once or twice.

Texts and secrets are compared without escapes and line breaks. A text is split at its escapes by
the `re` module, in chunks, because a loop in Python would take ten times as long. The places of
the escapes are computed only in chunks with a secret, so that it is masked where the original
text has it.
"""

import base64
import html
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

from caseworker.platform.logs.redaction import names_secret

MASK: Final = "[secret]"
MIN_CHARS: Final = 8
"""Minimum length, in characters, of a secret that is masked."""
_MIN_PLAIN: Final = 4
"""Minimum length, in characters, of a secret without the escapes that it seems to contain."""
_LAYERS: Final = 3
"""Number of layers of escapes of several kinds, such as those of JSON in HTML in a URL."""
_CHUNK_CHARS: Final = 16 * 1024
"""Length of the parts of a text that are split at their escapes in one call, in characters."""
_ESCAPE_CHARS: Final = 128
"""Maximum length of an escape, in characters; see ``_ESCAPE``."""
_FORM_CHARS: Final = 64
"""Length that an excerpt allows for each character of a secret, in characters."""
_DROPPED: Final = frozenset("\r\n\0")
"""Characters that may split a secret."""
_INTRODUCERS: Final = frozenset("\\%&")
_CONSTITUENTS: Final = _INTRODUCERS.union("0123456789abcdefABCDEF+")
"""Characters that escapes consist of, and the plus sign, which may represent a blank."""

_HEX: Final = "[0-9A-Fa-f]"


def _units(prefix: str) -> str:
    """Return the pattern of one or two code units of UTF-16, after the first prefix."""
    return rf"[dD][89abAB]{_HEX}{{2}}{prefix}[dD][c-fC-F]{_HEX}{{2}}|{_HEX}{{4}}"


def _octets(prefix: str) -> str:
    """Return the pattern of a character in UTF-8, or of another byte, after the first prefix."""
    more = f"(?:{prefix}[89abAB]{_HEX})"
    return rf"[c-dC-D]{_HEX}{more}|[eE]{_HEX}{more}{{2}}|[fF]{_HEX}{more}{{3}}|{_HEX}{{2}}"


# Each alternative starts with a literal character, which `re` searches for quickly, and the usual
# escapes come first. Escapes of escapes are bounded: without a bound, some texts would take
# quadratic time.
_PERCENT: Final = "%(?:25){0,4}"
_BACKSLASHES: Final = r"\\\\{0,15}"
_ENTITY: Final = rf"(?:#[xX]{_HEX}{{1,20}};?|#\d{{1,20}};?|\w{{2,40}};|\w{{2,6}})"
_ESCAPE: Final = re.compile(
    rf"({_BACKSLASHES}(?:u(?:{_units(_BACKSLASHES + 'u')}|\{{0{{0,8}}{_HEX}{{1,6}}\}})|U{_HEX}{{8}}"
    rf"|x(?:{_octets(_BACKSLASHES + 'x')})|[nr])?"
    rf"|%(?=[0-9A-Fa-fu])(?:[013-7]{_HEX}|2[0-46-9A-Fa-f]"
    rf"|(?:25){{0,4}}(?:u(?:{_units(_PERCENT + 'u')})|{_octets(_PERCENT)}))"
    rf"|&(?=[#\w])(?:amp;(?![#\w])|(?:amp;?|#38;?|#[xX]26;?){{0,4}}{_ENTITY})"
    r"|\n[\r\n]{0,60}|\r[\r\n]{0,60}|\0)",
    re.ASCII,
)
_AMPERSANDS: Final = re.compile("&(?:(?:amp|#38|#[xX]26);?)*(?=[#a-zA-Z])")


class SecretMask:
    """Replaces secrets in texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """Mask values of headers or variables, and the secrets in them; see :func:`_parts_of`."""
        parts = {part for secret in secrets for part in _parts_of(secret)}
        self._parts = sorted(part for part in parts if len(part) >= MIN_CHARS)
        forms = set(self._parts)
        for part in self._parts:  # without those after a scheme or a user, whose forms are shorter
            if not {part.partition(" ")[2], part.partition(":")[2]} & forms:
                forms |= set(_encoded(part))
        plain = {_Plain(form).text for form in forms}
        self._secrets = sorted(text for text in plain if len(text) >= _MIN_PLAIN)
        self._letters = [frozenset(text) for text in (*self._secrets, *self._parts)]
        self._margin = _FORM_CHARS * max(map(len, self._secrets + self._parts), default=0)

    def __bool__(self) -> bool:
        """Whether there are secrets."""
        return bool(self._parts)

    def apply_to_bytes(self, content: bytes | bytearray) -> bytes:
        """Return a text in UTF-8 in which each secret is masked."""
        text = content.decode(errors="surrogateescape")
        return self.apply(text).encode(errors="surrogateescape")

    def apply_to(self, value: Any) -> Any:
        """Return a JSON value in which each secret is masked, also in keys."""
        if isinstance(value, str):
            return self.apply(value)
        try:
            # No string has the separators, so a secret with a comma occurs in strings only.
            text = json.dumps(value, ensure_ascii=False, separators=("\1,", "\1:"))
            if not (spans := self._spans(text)):
                return value
            return json.loads(_replaced(text, spans).replace("\1", ""))
        except (TypeError, ValueError, RecursionError):
            return self._in_strings(value)

    def apply(self, text: str) -> str:
        """Return a text in which each secret is replaced with ``[secret]``."""
        return _replaced(text, self._spans(text))

    def excerpt(self, text: str, chars: int) -> str:
        """Return the first characters of a masked text; usually, only these are masked."""
        head = text[: 2 * chars + 2 * self._margin]
        if len(head) < len(text):
            masked = self.apply(head)
            masked = masked[: max(0, len(masked) - 2 * self._margin)]  # its end may be cut
            if len(masked) >= chars:
                return masked[:chars]
        return self.apply(text)[:chars]

    def _in_strings(self, value: Any) -> Any:
        """Mask each string separately; a secret may also occur outside strings, as a number."""
        match value:
            case str():
                return self.apply(value)
            case Mapping():
                return {self.apply(key): self._in_strings(each) for key, each in value.items()}
            case list():
                return [self._in_strings(each) for each in value]
            case _:
                return value

    def _is_possible(self, text: str) -> bool:
        """Return whether a text has the letters of a secret, or digits of escapes of them."""
        letters = set(text)
        if "+" in letters:
            letters.add(" ")
        constituents = frozenset[str]().union(_CONSTITUENTS, *self._letters)
        for _ in range(_LAYERS):
            if not letters.isdisjoint(_INTRODUCERS):
                letters |= {each for each in constituents - letters if _is_escapable(each, letters)}
        return any(map(letters.issuperset, self._letters))

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Return start and end of each secret in a text, in ascending order."""
        if not self._parts or len(text) < _MIN_PLAIN:
            return []
        if len(text) > _CHUNK_CHARS and not self._is_possible(text):
            return []
        spans = _occurrences(text, self._parts)
        plain: _Plain | None = _Plain(text)
        while plain is not None:
            spans += [plain.original(span) for span in _occurrences(plain.text, self._secrets)]
            plain = plain.deeper()
        return _merged(spans)


class _Characters(dict[str, str]):
    """The texts that escapes represent."""

    def __missing__(self, escape: str) -> str:
        text = _meaning(escape)
        is_split = text in _DROPPED or "\ud800" <= text[:1] <= "\udfff"
        self[escape] = text = "" if is_split else text
        return text


class _Plain:
    """A text without escapes, and where its characters are in the original text."""

    def __init__(self, original: str, outer: Self | None = None, layers: int = 1) -> None:
        """Remove one layer of escapes; ``outer`` is the text that ``original`` came from."""
        self._original, self._outer, self._layers = original, outer, layers
        self._characters = _Characters()
        self._starts, self._origins = [0], [0]
        """The start of each chunk in this text, and in the original text."""
        self._chunk: int | None = None
        """The chunk of which the next three lists are computed."""
        self._pieces, self._at, self._origin = list[str](), list[int](), list[int]()
        chunks = list[str]()
        while self._origins[-1] < len(original):
            pieces, end = _pieces(original, self._origins[-1])
            self._origins.append(end)
            chunks.append("".join(self._decoded(pieces)))
            self._starts.append(self._starts[-1] + len(chunks[-1]))
        self.text = "".join(chunks).replace("+", " ")  # in a query, a plus sign is a blank

    def deeper(self) -> "_Plain | None":
        """Return the text without the escapes that the escapes stood for; None if it has none."""
        if self._layers == _LAYERS or self.text == self._original:
            return None
        return _Plain(self.text, self, self._layers + 1)

    def original(self, span: tuple[int, int]) -> tuple[int, int]:
        """Return the original start and end of a part, with the backslashes before it."""
        start, end = self._place(span[0]), self._end(span[1] - 1)
        return (start, end) if self._outer is None else self._outer.original((start, end))

    def _decoded(self, pieces: list[str]) -> list[str]:
        decoded = pieces.copy()
        decoded[1::2] = map(self._characters.__getitem__, pieces[1::2])
        return decoded

    def _piece_at(self, index: int) -> int:
        """Return the number of the piece with a character, in the chunk with it."""
        chunk = bisect_right(self._starts, index) - 1
        if chunk != self._chunk:
            self._chunk = chunk
            self._pieces, _ = _pieces(self._original, self._origins[chunk])
            lengths = map(len, self._decoded(self._pieces))
            self._at = list(accumulate(lengths, initial=self._starts[chunk]))
            self._origin = list(accumulate(map(len, self._pieces), initial=self._origins[chunk]))
        return bisect_right(self._at, index) - 1

    def _is_verbatim(self, piece: int) -> bool:
        return self._at[piece + 1] - self._at[piece] == len(self._pieces[piece])

    def _place(self, index: int) -> int:
        piece = self._piece_at(index)
        if self._at[piece] < index:
            return self._origin[piece] + (index - self._at[piece]) * self._is_verbatim(piece)
        while piece and self._at[piece - 1] == index and not self._pieces[piece - 1].strip("\\"):
            piece -= 1
        return self._origin[piece]

    def _end(self, index: int) -> int:
        piece = self._piece_at(index)
        if self._is_verbatim(piece):
            return self._origin[piece] + index - self._at[piece] + 1
        return self._origin[piece + 1]


def _pieces(text: str, start: int) -> tuple[list[str], int]:
    """Return a text and an escape by turns, for the chunk at an index, and the end of the chunk."""
    chunk = text[start : start + _CHUNK_CHARS]
    pieces, length = _ESCAPE.split(chunk), len(chunk)
    if start + length == len(text):
        return pieces, len(text)
    max_length = length - _ESCAPE_CHARS  # an escape that starts later may be cut
    while length - len(pieces[-1]) >= max_length:
        length -= len(pieces.pop())
    if len(pieces) % 2:
        pieces[-1] = pieces[-1][: len(pieces[-1]) - (length - max_length)]
        length = max_length
    return pieces, start + length


def _is_escapable(character: str, letters: set[str]) -> bool:
    """Return whether some letters can form an escape of a character, with its digits or its name.

    A character other than a letter or digit of ASCII may have a name.
    """
    if not (character.isascii() and character.isalnum()):
        return True
    code = f"{ord(character):x}"
    return any(letters.issuperset(each) for each in (code, code.upper(), str(ord(character))))


def _meaning(escape: str) -> str:
    """Return the text that an escape represents, or "" for backslashes and line breaks."""
    if escape[0] == "&":
        return html.unescape(_AMPERSANDS.sub("&", escape, count=1))
    if len(escape) == 6 and escape[1] == "u" and escape[2] not in "dD{":
        return chr(int(escape[2:], 16))  # the usual form
    bare = escape.lstrip("\\")
    if not bare or bare[0] in "nr\r\n\0":
        return ""
    if bare[:2] == "u{" or bare[0] == "U":
        code = int(bare.strip("Uu{}"), 16)
        return chr(code) if code < 0x110000 else escape
    if "u" in escape:
        units = "".join(unit[:4] for unit in escape.split("u")[1:])
        return bytes.fromhex(units).decode("utf-16-be", errors="surrogatepass")
    if bare[0] == "x":
        octets = bytes.fromhex("".join(octet[:2] for octet in bare.split("x")[1:]))
    else:
        octets = bytes.fromhex("".join(octet[-2:] for octet in escape.split("%")[1:]))
    return _text_of(octets)


def _text_of(octets: bytes) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return octets.decode("latin-1")


def _occurrences(text: str, secrets: Iterable[str]) -> list[tuple[int, int]]:
    """Return start and end of each occurrence of a secret; those that overlap are one."""
    spans = list[tuple[int, int]]()
    for secret in secrets:
        at = text.find(secret)
        while at >= 0:
            spans.append((at, at + len(secret)))
            at = text.find(secret, at + len(secret))
    return _merged(spans)


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans in ascending order; those that overlap are one."""
    merged = list[tuple[int, int]]()
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _replaced(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return a text with the mask at each of the spans, which are in ascending order."""
    parts, last = list[str](), 0
    for start, end in spans:
        parts += [text[last:start], MASK]
        last = end
    return "".join((*parts, text[last:]))


def secrets_in(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of environment variables with names of secrets, and passwords in URLs."""
    for name, value in variables.items():
        if names_secret(name):
            yield value
        with suppress(ValueError):
            yield urlsplit(value).password or ""


def _parts_of(secret: str) -> Iterator[str]:
    """Yield a secret, the part after a scheme such as ``Bearer``, and what Basic encodes."""
    scheme, _, credentials = secret.partition(" ")
    yield from (secret, credentials, secret.rpartition(" ")[2])
    if scheme.lower() == "basic":
        with suppress(ValueError):
            decoded = _text_of(base64.b64decode(credentials))
            yield from (decoded, decoded.partition(":")[2])


def _encoded(secret: str) -> Iterator[str]:
    """Yield the Base64 forms of a secret, of its percent form and of its Base64 forms."""
    yield from _in_base64(quote(secret, safe="", errors="surrogateescape"))
    for encoded in set(_in_base64(secret)):
        yield encoded
        yield from _in_base64(encoded)


def _in_base64(secret: str) -> Iterator[str]:
    """Yield the common part of all Base64 texts that contain a secret, for each position."""
    data = secret.encode(errors="surrogateescape")
    for before in range(3):
        padded = bytes(before) + data
        start, end = -(-before * 8 // 6), len(padded) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(padded).decode()[start:end]
