"""Repeats what somebody wrote in a message, safely."""


def quoted(text: str, *, limit: int) -> str:
    """Return the beginning of ``text``, on one line, with every character one that prints.

    Control characters, direction marks and broken surrogates would spoil logs, databases and
    terminals further on; each becomes a replacement character.
    """
    line = " ".join(text.split())
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
    return shown if len(shown) <= limit else shown[:limit].rstrip() + "..."
