"""The ``caseworker`` command: start the service, call its API and maintain its database."""

from importlib.metadata import version
from typing import Annotated

import typer

from caseworker.cli import (
    agents,
    executing,
    graphs,
    keys,
    processes,
    project,
    quotas,
    runs,
    watching,
)
from caseworker.cli.output import out, startup_errors
from caseworker.main.commands import run_with_client
from caseworker.main.plugins import installed_commands

cli = typer.Typer(
    name="caseworker",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help=(
        "Run LLM agents within hard budgets. Runs can be cancelled at any time, and every call "
        "is traced."
    ),
    epilog="To add tools, functions and model providers, see docs/extending.md (also served at "
    "/docs/extending.md).",
)
cli.add_typer(project.cli)
cli.add_typer(processes.cli)
cli.add_typer(runs.cli)
cli.add_typer(watching.cli)
cli.add_typer(graphs.cli, name="graph")
cli.add_typer(agents.cli)
cli.add_typer(executing.cli)
cli.add_typer(keys.cli, name="keys")
cli.add_typer(quotas.cli, name="quotas")
for _name, _command in installed_commands(startup_errors()(run_with_client)).items():
    cli.command(_name)(startup_errors()(_command))


def _show_version(wanted: bool) -> None:
    if wanted:
        out.print(f"caseworker {version('caseworker')}")
        raise typer.Exit


@cli.callback()
def options(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Handle the options that precede a command, such as ``--version``."""


def main() -> None:
    """Run the command-line interface."""
    cli(prog_name="caseworker")
