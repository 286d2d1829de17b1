"""Print the output and errors of commands.

A command that fails prints one line to standard error and exits with code 2.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from caseworker.cli.streams import note
from caseworker.core.trace.plain_text import cut, dollars_text, plain
from caseworker.main.errors import StartupError
from caseworker.platform.printable import UNPRINTABLE, printable


class PrintableConsole(Console):
    """A console that replaces controls in texts; only Rich itself may control the terminal.

    The texts come from models, tools and callers.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the segments of a renderable."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


out = PrintableConsole(highlight=False, soft_wrap=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON output.")]

STYLES: Final = {
    "queued": "dim",
    "waiting": "yellow",
    "running": "cyan",
    "completed": "green",
    "failed": "red",
    "halted": "magenta",
    "cancelled": "yellow",
    "skipped": "dim",
}
"""Terminal color for each status of a run, step or call."""


def show(text: str) -> None:
    """Print ``text`` without interpreting Rich markup in it."""
    out.print(text, markup=False)


def show_json(data: Any) -> None:
    """Print ``data`` as JSON; datetimes have microseconds, as in responses of the HTTP API."""
    show(json_of(data, indent=2))


def json_of(data: Any, indent: int | None = None) -> str:
    """Return ``data`` as JSON that the output can encode, in which controls are escaped."""
    is_unicode = out.encoding.startswith("utf")
    written = json.dumps(data, indent=indent, ensure_ascii=not is_unicode, default=_as_json)
    return UNPRINTABLE.sub(lambda match: _escaped(match[0]), written)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def show_table(items: Iterable[Mapping[str, Any]], columns: str) -> None:
    """Print the fields ``columns``, separated by spaces, of all items as an aligned table.

    Only a terminal gets a line with the names of the columns.
    """
    names, records = columns.split(), list(items)
    rows = [[_cell(item.get(name), name) for name in names] for item in records]
    if out.is_terminal:
        rows, records = [names, *rows], [{}, *records]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, item in zip(rows, records, strict=True):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        line, status = Text("  ".join(cells).rstrip(), "" if item else "bold"), item.get("status")
        line.highlight_words([str(status)], STYLES.get(str(status), ""))
        out.print(line)


def show_page(page: Mapping[str, Any], key: str, columns: str, *, as_json: bool) -> None:
    """Print the items ``page[key]`` as a table, or the whole page as JSON.

    If there are more items, a line on standard error shows how to list them.
    """
    if as_json:
        show_json(page)
        return
    show_table(page[key], columns)
    if cursor := page.get("next_cursor"):
        note(f"More {key} exist. To list them, add --cursor {cursor}")


_INSTANT: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?Z")
_MAX_DESCRIPTION: Final = 70


def _cell(value: Any, name: str) -> str:
    """Format a value of an API response, in a column called ``name``, on one line."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case str():
            text = plain(_INSTANT.sub(r"\1Z", value))
            return cut(text, _MAX_DESCRIPTION) if name == "description" else text
        case int() | float() if "cost_usd" in name:
            return dollars_text(value)
        case _:
            return json.dumps(value, ensure_ascii=False)


def fail(message: str) -> NoReturn:
    """Print a message to standard error and exit with code 2."""
    note(message)
    raise typer.Exit(2)


def json_argument(text: str | bytes, what: str) -> Any:
    """Parse JSON from the command line or a file; on a syntax error, print it and exit.

    ``what`` names the text in the error message, which states the line and the column.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        fail(f"{what} is not valid JSON: {error}")


def utc_text(at: datetime) -> str:
    """Format a datetime in UTC as ISO 8601, to the second."""
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _as_json(value: object) -> object:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case Decimal():
            return float(value)
        case frozenset():
            return sorted(value)
        case _:
            raise TypeError(f"{type(value).__name__} is not JSON serializable")


@contextmanager
def startup_errors() -> Iterator[None]:
    """Print a StartupError that the block raises as one line, and exit with code 2."""
    try:
        yield
    except StartupError as error:
        fail(str(error))
