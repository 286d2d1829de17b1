"""Repeats what somebody wrote in a message, safely."""


def quoted(text: str, *, limit: int) -> str:
    """Return the beginning of ``text``, on one line and without characters that do not print.

    Control characters, direction marks and broken surrogates would spoil logs, databases and
    terminals further on.
    """
    shown = "".join(char if char.isprintable() else " " for char in text)
    shown = " ".join(shown.split())
    return shown if len(shown) <= limit else shown[:limit].rstrip() + "..."
