"""How names that somebody else chose are put into a sentence."""

from collections.abc import Iterable, Sequence

_LONGEST_NAME_CHARS = 60
_MOST_NAMES = 10


def quoted(name: object) -> str:
    """Return ``name`` as Python would write it, cut to a length that leaves a sentence readable."""
    return _cut(repr(name))


def listed(names: Iterable[str]) -> str:
    """Return ``names`` in alphabetical order, the first few of them if they are many."""
    ordered = sorted(names)
    shown = ", ".join(quoted(name) for name in ordered[:_MOST_NAMES])
    more = len(ordered) - _MOST_NAMES
    return shown if more <= 0 else f"{shown} and {more} more"


def path_of(steps: Sequence[str]) -> str:
    """Return ``a -> b -> a``; the middle of a long path is left out."""
    shown = [_cut(repr(step)[1:-1]) for step in steps]
    left_out = len(shown) - _MOST_NAMES
    if left_out > 0:
        half = _MOST_NAMES // 2
        shown = [*shown[:half], f"({left_out} more)", *shown[-half:]]
    return " -> ".join(shown)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME_CHARS else f"{text[: _LONGEST_NAME_CHARS - 3]}..."
