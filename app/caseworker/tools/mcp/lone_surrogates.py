r"""Replaces lone surrogates in JSON text, such as ``"\ud800"``, which the SDK cannot parse."""

import re
from typing import Final

_ANY: Final = re.compile(rb"\\u[dD][89a-fA-F]")
"""Part of every escape of a surrogate; the search is fast."""
_SURROGATES: Final = re.compile(
    rb"(?<!\\)((?:\\\\)*)(?:(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
"""Escaped backslashes, and after them a pair as group 2, or a lone surrogate."""
_CUT: Final = re.compile(
    rb"\\(?:u(?:[dD](?:[89abAB](?:[0-9a-fA-F](?:[0-9a-fA-F](?:\\(?:u(?:[dD](?:[c-fC-F]"
    rb"[0-9a-fA-F]?)?)?)?)?)?)?|[c-fC-F][0-9a-fA-F]?)?)?)?\Z"
)
"""The start of an escape of a surrogate, or a surrogate whose second half may follow."""
_LONGEST_CUT: Final = 11
"""Maximum number of bytes that ``_CUT`` matches."""


class LoneSurrogates:
    """Replaces the lone surrogates in a JSON text that arrives in chunks."""

    def __init__(self) -> None:
        self._incomplete = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return the text so far; the start of an escape is kept until the next chunk."""
        text = self._incomplete + chunk
        end = _end_of_whole(text)
        self._incomplete = text[end:]
        return replaced(text[:end])

    def end(self) -> bytes:
        """Return the rest of the text, after the last chunk."""
        text, self._incomplete = self._incomplete, b""
        return replaced(text)


def replaced(text: bytes) -> bytes:
    """Return a JSON text whose lone surrogates are replaced by U+FFFD."""
    return _SURROGATES.sub(_replacement, text) if _ANY.search(text) else text


def _replacement(match: re.Match[bytes]) -> bytes:
    return match.group() if match.group(2) else match.group(1) + rb"\ufffd"


def _end_of_whole(text: bytes) -> int:
    """Return where an escape begins that may continue after the text; otherwise its length."""
    start = max(0, len(text) - _LONGEST_CUT)
    while (cut := _CUT.search(text, start)) is not None:
        before = text[: cut.start()]
        if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
            return cut.start()
        start = cut.start() + 1
    return len(text)
