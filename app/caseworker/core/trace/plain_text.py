"""Formats names, durations and costs for lines of text."""

from caseworker.platform.printable import UNPRINTABLE


def plain(text: str) -> str:
    """Replace controls, such as terminal escapes, line breaks and tabs, with ``?``."""
    return UNPRINTABLE.sub("?", text).replace("\n", "?").replace("\t", "?")


def cut(text: str, width: int) -> str:
    """Cut ``text`` to ``width`` characters; a cut text ends with an ellipsis."""
    return text if len(text) <= width else text[: width - 1] + "…"


def duration(ms: int) -> str:
    """Format a duration with a suitable unit, from milliseconds to hours."""
    if ms < 1000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.2f} s"
    minutes, seconds = divmod(ms // 1000, 60)
    if minutes < 60:
        return f"{minutes} m {seconds:02} s"
    return f"{minutes // 60} h {minutes % 60:02} m"


def dollars_text(usd: float | None) -> str:
    """Format US dollars with four decimal places; None is shown as ``unknown``."""
    if usd is None:
        return "unknown"
    return f"${usd:,.4f}" if usd >= 0.0001 or not usd else "<$0.0001"


def counted(number: int, one: str, plural: str = "") -> str:
    """Format a number with its noun, in the singular or plural."""
    return f"{number:,} {one if number == 1 else plural or one + 's'}"
