"""Names, durations and money as a person reads them in a line."""


def plain(text: str) -> str:
    """Return ``text`` with ``?`` for characters that could steer a terminal or break a line."""
    return "".join(character if character.isprintable() else "?" for character in text)


def cut(text: str, width: int) -> str:
    """Return at most ``width`` characters."""
    return text if len(text) <= width else text[: width - 1] + "…"


def duration(ms: int) -> str:
    """Return a duration in units that fit it."""
    if ms < 1000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.2f} s"
    minutes, seconds = divmod(ms // 1000, 60)
    if minutes < 60:
        return f"{minutes} m {seconds:02} s"
    return f"{minutes // 60} h {minutes % 60:02} m"


def money(usd: float | None) -> str:
    """Return dollars to a hundredth of a cent."""
    if usd is None:
        return "unknown"
    return f"${usd:,.4f}" if usd >= 0.0001 or not usd else "<$0.0001"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
