"""The table of routes and loops, in Markdown."""

from collections.abc import Sequence

from bench.growth.measuring import NO_ROWS, Line


def table(lines: Sequence[Line], heads: tuple[str, str]) -> str:
    """Return the table; lines that are not flat are bold."""
    columns = ["what", *heads, "ratio", "first requests", "ratio"]
    rows = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    for line in lines:
        cells = _cells(line)
        if not line.is_flat:
            cells = [f"**{cell}**" if cell else cell for cell in cells]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def summary(lines: Sequence[Line]) -> str:
    """Return sentences that list lines that are not flat, that failed, and that have no rows."""
    missed = [line.title for line in lines if not line.is_flat and not line.failed]
    failed = [f"{line.title} ({line.note})" for line in lines if line.failed]
    empty = [line.title for line in lines if line.note == NO_ROWS]
    return "\n".join(
        (
            f"{len(missed)} of {len(lines)} not flat (above {lines[0].most:g}x): {_listed(missed)}",
            f"Failed: {_listed(failed)}",
            f"Without rows: {_listed(empty)}",
        )
    )


def _listed(titles: Sequence[str]) -> str:
    return f"{'; '.join(titles) or 'none'}."


def _cells(line: Line) -> list[str]:
    title = line.title if line.unit == "ms" else f"{line.title}, {line.unit}"
    if line.sides is None:
        return [title, "", "", "", "", ""]
    values = [f"{side.median:,.3g}" for side in line.sides]
    first = "" if line.first is None else " → ".join(f"{each:,.3g}" for each in line.first)
    return [title, *values, _times(line.ratio), first, _times(line.first_ratio)]


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:,.3g}x"
