"""Estimates how many tokens a text has, without the tokenizer of its model.

The weights fit 2,241 pieces of prose, code, JSON, logs and tables, and the translations of Django
6.0 in 88 languages, counted with o200k_base (tiktoken 0.14.0, 2026-11-29). On the pieces the
estimate is 1.1 to 1.2 times the count at the median, and 1.0 times at the fifth percentile; on the
translations it is 0.8 to 1.4 times, for Indic scripts 3 times. Rare characters count one token for
each UTF-8 byte, and text without repetitions counts as random. Text that is made to have many
tokens can still exceed the estimate up to two times, so the hard bound of a text is one token for
each byte.
"""

import math
import string
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from caseworker.models.families import Family

_CLASSES: Final = (
    (string.ascii_lowercase.encode(), 0.15),
    (string.ascii_uppercase.encode(), 0.33),
    (string.digits.encode(), 0.8),
    (string.punctuation.encode(), 0.58),
    (b" ", 0.0),
    (b"\n\r\t", 0.5),
    (bytes([*range(9), 11, 12, *range(14, 32), 127]), 1.0),
)
"""Tokens for each ASCII character of a class."""
_WORD_MARKS: Final = bytes(b" x"[not bytes([byte]).isspace()] for byte in range(256))
"""Maps white space to blanks, and other bytes to x."""
_COMMON: Final = (
    (0xA0, 0x17F, 1.4),  # Latin letters with marks
    (0x391, 0x3CE, 0.32),  # Greek
    (0x400, 0x45F, 0.32),  # Cyrillic
    (0x5D0, 0x5EA, 0.32),  # Hebrew
    (0x620, 0x6CC, 0.32),  # Arabic
    (0x900, 0xDFF, 1.6),  # Indic scripts
    (0xE01, 0xE5B, 1.6),  # Thai
    (0x10D0, 0x10FF, 1.6),  # Georgian
    (0x2010, 0x203A, 0.77),  # typographic signs
    (0x20AC, 0x20AC, 0.77),
    (0x2122, 0x2122, 0.77),
    (0x2190, 0x2193, 0.77),
    (0x2500, 0x25CF, 0.77),
    (0x2713, 0x2717, 0.77),
    (0x3001, 0x30FC, 0.77),  # Japanese
    (0xFE0F, 0xFE0F, 1.0),
    (0xFF01, 0xFF5E, 0.77),
    (0x1F300, 0x1F64F, 2.4),  # emoji
    (0x1F680, 0x1F6FF, 2.4),
    (0x1F900, 0x1F9FF, 2.4),
)
"""Common characters beyond ASCII: the first, the last, and the tokens of each."""
_EAST_ASIAN: Final = (
    ("gb2312", 0xB0, 0xD7),
    ("big5", 0xA4, 0xC6),
    ("shift_jis", 0x88, 0x97),
    ("euc_kr", 0xB0, 0xC8),
)
"""Encodings that put the common characters of a language first: their first bytes."""
_TOKENS_PER_EAST_ASIAN: Final = 0.77
_TOKENS_PER_WORD: Final = 0.47
_TOKENS_PER_INDENT: Final = 0.15
"""Tokens for each two blanks in a row."""
_LONG_WORD: Final = 10
"""Letters and digits for each word or symbol, above which a text is random."""
_TOKENS_PER_RANDOM: Final = 0.85
_PIECE_BYTES: Final = 8 * 1024
"""Size of the pieces that are examined, so that random text cannot hide in other text."""
_READ_CHARS: Final = 8 * _PIECE_BYTES
"""Number of characters that are encoded at once."""
_SAMPLE_BYTES: Final = 2_000
"""Size of the smallest piece whose repetitions say something."""
_RANDOM_SHARE: Final = 0.94
"""Share of different groups of four bytes above which text is random. It is at most 0.72 in 8 KiB
of any language, and 0.97 to 1 in random words."""
_TOKENS_PER_UNREPEATED: Final = 0.6
"""Tokens for each byte of such text."""
_MARGIN: Final = 1.08
_REMEMBERED_PIECES: Final = 2**14
"""Maximum number of pieces whose tokens are remembered, in about 2 MB."""


def utf8(text: str) -> bytes:
    """Return a text as UTF-8; halves of surrogate pairs are encoded like other characters."""
    return text.encode("utf-8", "surrogatepass")


def near_tokens(text: str, family: Family) -> int:
    """Estimate the tokens of a text from above; made-up text may have more.

    This takes about 30 ms for a megabyte, and 2 ms if its pieces were estimated before.
    """
    return TextTokens().followed_by((text,)).near(family)


@dataclass(frozen=True, slots=True)
class TextTokens:
    """The estimate of the beginning of a text, to which the rest can be added."""

    size_bytes: int = 0
    """Size of the text in UTF-8, without ``rest``."""
    tokens: float = 0.0
    """Estimated tokens of the same part, for the usual family."""
    rest: bytes = b""
    """The end of the text, which fills no piece yet."""

    def followed_by(self, texts: Iterable[str]) -> "TextTokens":
        """Return the estimate of this text and the texts after it."""
        size, tokens, content = self.size_bytes, self.tokens, self.rest
        for text in texts:
            for start in range(0, len(text), _READ_CHARS):
                content += utf8(text[start : start + _READ_CHARS])
                full_bytes = len(content) - len(content) % _PIECE_BYTES
                for at in range(0, full_bytes, _PIECE_BYTES):
                    tokens += _remembered_tokens_of(content[at : at + _PIECE_BYTES])
                size, content = size + full_bytes, content[full_bytes:]
        return TextTokens(size, tokens, content)

    def near(self, family: Family) -> int:
        """Return the estimate for a family of models."""
        tokens = self.tokens + (_remembered_tokens_of(self.rest) if self.rest else 0)
        size = self.size_bytes + len(self.rest)
        return min(size, math.ceil(tokens * family.tokenizer_factor * _MARGIN))


def _remembered_tokens_of(piece: bytes) -> float:
    """Return the tokens of a piece; the next prompt of a conversation begins with the same ones."""
    digest = blake2b(piece, digest_size=16).digest()
    if (tokens := _remembered.get(digest)) is None:
        if len(_remembered) >= _REMEMBERED_PIECES:
            _remembered.clear()
        tokens = _remembered[digest] = _tokens_of(piece)
    return tokens


_remembered: Final[dict[bytes, float]] = {}
"""Tokens of pieces by their digests. Threads may write it at the same time."""


def _tokens_of(piece: bytes) -> float:
    size = len(piece)
    counts, rest = [], piece
    for each, _ in _CLASSES:
        remainder = rest.translate(None, each)
        counts.append(len(rest) - len(remainder))
        rest = remainder
    lower, upper, digits, symbols, blanks, *_ = counts
    marks, alphanumeric = piece.translate(_WORD_MARKS), lower + upper + digits
    words = marks.count(b" x") + marks.startswith(b"x")
    if (upper + digits) * 3 > alphanumeric and blanks * 20 < size:  # random characters
        return float(size)
    tokens = sum(n * weight for n, (_, weight) in zip(counts, _CLASSES, strict=True))
    tokens += _TOKENS_PER_WORD * words + _TOKENS_PER_INDENT * piece.count(b"  ")
    tokens += _TOKENS_PER_RANDOM * max(0, alphanumeric - _LONG_WORD * (words + symbols))
    if beyond_ascii := rest.decode(errors="ignore"):
        tokens += sum(n * _tokens_of_character(each) for each, n in Counter(beyond_ascii).items())
    if size >= _SAMPLE_BYTES and _is_unrepeated(piece):
        tokens = max(tokens, _TOKENS_PER_UNREPEATED * size)
    return min(size, max(tokens, words))


def _is_unrepeated(piece: bytes) -> bool:
    """Return whether nearly all groups of four bytes differ."""
    groups = memoryview(piece[: len(piece) // 4 * 4]).cast("I")
    half, most_repeated = len(groups) // 2, (1 - _RANDOM_SHARE) * len(groups)
    if half - len(set(groups[:half])) >= most_repeated:  # usual text, whose rest is not examined
        return False
    return len(groups) - len(set(groups)) < most_repeated


@lru_cache(maxsize=2**16)
def _tokens_of_character(character: str) -> float:
    """Return the tokens of a character beyond ASCII."""
    code = ord(character)
    for first, last, tokens in _COMMON:
        if first <= code <= last:
            return tokens
    for encoding, lowest, highest in _EAST_ASIAN:
        with suppress(UnicodeEncodeError):
            encoded = character.encode(encoding)
            if len(encoded) == 2 and lowest <= encoded[0] <= highest:
                return _TOKENS_PER_EAST_ASIAN
    return len(utf8(character))
