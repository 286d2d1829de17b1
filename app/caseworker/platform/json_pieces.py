"""Writes long JSON values in pieces, so that other threads can run in between.

The encoder of the standard library holds the interpreter's lock until a whole value is written: a
tenth of a second for 10 to 20 MB.
"""

from array import array
from collections.abc import Iterator
from json import JSONEncoder
from typing import Any, Final

import orjson

_PIECE_CHARS: Final = 256 * 1024
"""Number of characters that are written without a pause."""
_PIECE_VALUES: Final = 2_000
_BATCH: Final = 50
"""Number of elements of a long list that are written together if they are short."""


class PieceEncoder:
    """Writes JSON like ``json.dumps(value, ensure_ascii=False)``, in pieces of limited size.

    Values consist of dicts with text keys, lists, texts, numbers, booleans and None,
    and of arrays of integers, which are written without blanks.
    """

    def __init__(
        self, *, sort_keys: bool = False, separators: tuple[str, str] = (", ", ": ")
    ) -> None:
        self._sorts = sort_keys
        self._comma, self._colon = separators
        self._encoder = JSONEncoder(
            ensure_ascii=False, sort_keys=sort_keys, separators=separators
        ).encode

    def pieces(self, value: Any) -> Iterator[str]:
        """Yield the text of a value; the joined pieces are the text that ``json.dumps`` returns."""
        if _is_short(value):
            yield self._encoder(value)
        elif isinstance(value, str):
            yield '"'
            for at in range(0, len(value), _PIECE_CHARS):
                yield self._encoder(value[at : at + _PIECE_CHARS])[1:-1]
            yield '"'
        elif isinstance(value, array):
            yield orjson.dumps(value.tolist()).decode()
        elif isinstance(value, dict):
            start = "{"
            for name, each in sorted(value.items()) if self._sorts else value.items():
                yield start
                yield from self.pieces(name)
                yield self._colon
                yield from self.pieces(each)
                start = self._comma
            yield "}"
        else:
            start = "["
            for at in range(0, len(value), _BATCH):
                yield start
                yield from self._elements(value[at : at + _BATCH])
                start = self._comma
            yield "]"

    def _elements(self, batch: list[Any]) -> Iterator[str]:
        if _is_short(batch):
            yield self._encoder(batch)[1:-1]
            return
        for at, each in enumerate(batch):
            if at:
                yield self._comma
            yield from self.pieces(each)


def _is_short(value: Any) -> bool:
    """Return whether a value may be written at once."""
    waiting, chars = [value], 0
    for each in waiting:
        if isinstance(each, str):
            chars += len(each)
        elif isinstance(each, array):
            return False
        elif isinstance(each, dict | list):
            if len(waiting) + len(each) > _PIECE_VALUES:
                return False
            if isinstance(each, dict):
                chars += sum(map(len, each))
                waiting += each.values()
            else:
                waiting += each
        if chars > _PIECE_CHARS:
            return False
    return True
