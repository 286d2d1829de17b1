"""Measures the figures of docs/benchmarks.md: ``python -m bench [ROW...] [--quick]``."""

import asyncio
import sys
from importlib import import_module
from typing import Annotated, Final

import typer
from rich.console import Console

from bench.harness import Effort, find_rows
from bench.machine import this_machine
from bench.report import show_machine, show_row, write_results

COMMANDS: Final = {
    "growth": "bench.growth.command",
    "migrations": "bench.growth.migrations",
}
"""Measurements with options of their own, by the first argument."""


def main(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="ROW", help="Rows to measure; default: all.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few rounds, smaller sizes.")] = False,
    list_rows: Annotated[bool, typer.Option("--list", help="Name the rows and stop.")] = False,
) -> None:
    """Measure rows next to their peers and compare them with their targets."""
    console, rows = Console(), find_rows()
    if list_rows:
        for name, row in rows.items():
            console.print(f"{name:24} {row.title}")
        return
    for name in set(names or ()) - rows.keys():
        raise typer.BadParameter(f"no row {name}; there are {', '.join(rows)}")
    machine, measured = this_machine(), {}
    show_machine(console, machine)
    for name in names or rows:
        with console.status(f"measuring {name}"):
            figures = asyncio.run(rows[name].measure(Effort(quick=quick)))
        show_row(console, rows[name], figures)
        measured[name] = (rows[name], figures)
    console.print(f"\nwritten to {write_results(machine, measured)}")


if __name__ == "__main__":
    if sys.argv[1:2] and (module := COMMANDS.get(sys.argv[1])):
        del sys.argv[1]
        typer.run(import_module(module).main)
    else:
        typer.run(main)
