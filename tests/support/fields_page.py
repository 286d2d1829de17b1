"""Writes the tables of fields into `docs/gateway.md`: `python -m tests.support.fields_page`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from caseworker.models.fields.provider_options import OPTIONS
from caseworker.models.fields.table import Fields, FieldSection, Use
from caseworker.models.fields.tables import TABLES

PAGE: Final = Path(__file__).parents[2] / "docs/gateway.md"
BEGIN: Final = "<!-- The tables below are written by `make example`. -->\n"
END: Final = "<!-- End of the tables. -->\n"


def render_page(page: str) -> str:
    """Return the page with the current tables between its two marks."""
    before, _, rest = page.partition(BEGIN)
    tables = "\n".join(_tables())
    return f"{before}{BEGIN}\n{tables}\n{END}{rest.partition(END)[2]}"


def _tables() -> Iterator[str]:
    yield f"### All APIs: options\n\n{_rows(OPTIONS)}"
    for name, table in TABLES.items():
        yield f"### {name.replace('_', ' ').capitalize()}\n"
        for section in table.sections:
            if section is not OPTIONS:
                at = f": {', '.join(f'`{each}`' for each in section.at if each)}"
                yield f"{section.title}{at if any(section.at) else ''}\n\n{_rows(section)}"


def _rows(section: FieldSection) -> str:
    uses = list(Use)
    rows = sorted(section.rows, key=lambda row: uses.index(row.use))
    lines = ["| use | fields |", "|---|---|", *map(_row, rows)]
    return "\n".join(lines) + "\n"


def _row(row: Fields) -> str:
    paths = ", ".join(f"`{path}`" for path in row.paths.split())
    values = ", ".join(f"`{each}`" for each in row.values)
    free = ", ".join(f"`{each}`" for each in row.unless)
    notes = [
        f"values {values}" if values else "",
        f"unless {free}" if free else "",
        f"unless with `{row.unless_with}`" if row.unless_with else "",
        row.reason,
    ]
    about = "; ".join(filter(None, notes))
    fields = f"{paths} ({about})" if about else paths
    return f"| {row.use} | {fields.replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    PAGE.write_text(render_page(PAGE.read_text()))
