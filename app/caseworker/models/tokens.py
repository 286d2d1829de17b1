"""Estimates how many tokens a text has, without the tokenizer of its model.

The weights fit 2,241 pieces of prose, code, JSON, logs and tables in eight languages, counted with
o200k_base (tiktoken 0.14.0, 2026-11-29). On these pieces the estimate is 1.1 to 1.2 times the count
at the median, and 1.0 times at the fifth percentile. Random characters count one token each. Text
that is made to have many tokens can exceed the estimate, so the hard bound of a text is one token
for each of its UTF-8 bytes.
"""

import math
import string
from collections.abc import Iterable, Iterator
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
    # The first bytes of longer characters: common alphabets, rare ones, East Asian and typographic
    # characters, Indic ones, and what is outside of the first plane.
    (bytes([*range(0xC2, 0xC6), *range(0xCE, 0xD2), *range(0xD7, 0xDC)]), 0.32),
    (bytes([*range(0xC6, 0xCE), *range(0xD2, 0xD7), *range(0xDC, 0xE0)]), 1.5),
    (bytes([0xE2, *range(0xE3, 0xEE), 0xEF]), 0.77),
    (b"\xe0", 1.6),
    (b"\xe1\xee", 3.0),
    (bytes(range(0xF0, 0xF5)), 2.4),
)
"""Tokens for each byte of a class."""
_WORD_MARKS: Final = bytes(b" x"[not bytes([byte]).isspace()] for byte in range(256))
"""Maps white space to blanks, and other bytes to x."""
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
_MARGIN: Final = 1.08


def utf8(text: str) -> bytes:
    """Return a text as UTF-8; halves of surrogate pairs are encoded like other characters."""
    return text.encode("utf-8", "surrogatepass")


def near_tokens(text: str, family: Family) -> int:
    """Estimate the tokens of a text from above; made-up text may have more."""
    return near_tokens_of_parts((text,), family)


def near_tokens_of_parts(texts: Iterable[str], family: Family) -> int:
    """Estimate the tokens of the joined texts; see :func:`near_tokens`.

    This takes about 10 ms for a megabyte.
    """
    size, tokens = 0, 0.0
    for piece in _pieces(texts):
        size, tokens = size + len(piece), tokens + _tokens_of(piece)
    return min(size, math.ceil(tokens * family.tokenizer_factor * _MARGIN))


def _pieces(texts: Iterable[str]) -> Iterator[bytes]:
    """Yield the UTF-8 form of the joined texts in pieces of ``_PIECE_BYTES``."""
    content = b""
    for text in texts:
        for start in range(0, len(text), _READ_CHARS):
            content += utf8(text[start : start + _READ_CHARS])
            whole = len(content) - len(content) % _PIECE_BYTES
            for at in range(0, whole, _PIECE_BYTES):
                yield content[at : at + _PIECE_BYTES]
            content = content[whole:]
    if content:
        yield content


def _tokens_of(piece: bytes) -> float:
    size = len(piece)
    counts, rest = [], piece
    for each, _ in _CLASSES:
        others = rest.translate(None, each)
        counts.append(len(rest) - len(others))
        rest = others
    lower, upper, digits, symbols, blanks, *_ = counts
    marks, alphanumeric = piece.translate(_WORD_MARKS), lower + upper + digits
    words = marks.count(b" x") + marks.startswith(b"x")
    if (upper + digits) * 3 > alphanumeric and blanks * 20 < size:  # random characters
        return float(size)
    tokens = sum(n * weight for n, (_, weight) in zip(counts, _CLASSES, strict=True))
    tokens += _TOKENS_PER_WORD * words + _TOKENS_PER_INDENT * piece.count(b"  ")
    random = max(0, alphanumeric - _LONG_WORD * (words + symbols))
    return min(size, tokens + _TOKENS_PER_RANDOM * random)
