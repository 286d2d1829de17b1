"""The ``caseworker`` command: start the service, call its API and maintain its database.

A command's module is imported when the command is used. The list of commands imports none.
"""

import gc
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from caseworker.cli.streams import OutputError, check_output, note, output_failed
from caseworker.main.entry_points import installed_commands

COMMANDS: Final[Mapping[str, Mapping[str, tuple[str | None, str]]]] = {
    "Commands for callers": {
        "run": ("runs", "Submit a case and print its answer."),
        "runs": ("runs", "List runs, newest first."),
        "watch": ("run_views", "Show a run live as a tree, or line by line without a terminal."),
        "events": ("run_views", "Print the events of a run until it ends."),
        "trace": ("run_views", "Show the calls of a run as a tree with a timeline."),
        "cancel": ("runs", "Cancel a run, including a run that does not exist yet."),
        "approvals": ("runs", "List pending approvals."),
        "approve": ("runs", "Approve or refuse a pending approval of a run."),
        "artifacts": ("resources", "List and download the files that runs have created."),
        "exec": ("exec_command", "Run a program whose model calls go through the service."),
        "agents": ("agents", "Run, register, show and delete agents."),
        "graphs": ("graphs", "Validate, run, register, show and delete graphs."),
        "threads": ("threads", "Chat with agents in threads."),
        "schedules": ("resources", "Create runs at recurring times."),
        "webhooks": ("resources", "List, repeat and test webhook deliveries."),
        "tools": ("resources", "List, show and call the tools of the service."),
        "models": ("resources", "List the configured models and test their endpoints."),
        "spend": (
            "resources",
            "Show the cost and usage of runs by tenant, agent, model, key or metadata.",
        ),
        "eval": (None, "Evaluate the service on a data set and compare the results with targets."),
    },
    "Commands for projects": {
        "init": ("project", "Create a project with an agent, a tool, a test and files for Docker."),
        "dev": ("project", "Serve the project in this folder, and reload it on changes."),
        "doctor": ("project", "Check everything that the service needs."),
    },
    "Commands for operators": {
        "serve": ("processes", "Serve the HTTP API."),
        "worker": ("processes", "Execute queued runs without serving the API."),
        "workers": ("processes", "List the worker processes registered in the database."),
        "drain": ("processes", "Drain one worker: it takes no new runs and releases its own."),
        "config": ("processes", "Inspect the configuration."),
        "db": ("processes", "Manage the database."),
        "keys": ("keys", "Create, list, rotate and revoke API keys."),
        "quotas": ("quotas", "Show and set the quotas of tenants."),
        "retention": ("processes", "Set how long a tenant's stored records are kept."),
        "erase": ("runs", "Erase all data with certain metadata, or of a tenant."),
    },
}
"""The module and the help of each command, by panel and name. The entry point of a package provides
a command without a module."""
_PLUGINS: Final = "Commands of installed packages"
_OLDER_NAMES: Final = {"agent": "agents", "graph": "graphs", "thread": "threads"}
_MODULES: Final = {
    name: module for panel in COMMANDS.values() for name, (module, _) in panel.items()
}


class LazyGroup(TyperGroup):
    """The top-level group, which imports the module of a command only when the command runs.

    Until then, placeholders supply the help.
    """

    def __init__(self, **attributes: Any) -> None:
        """Create placeholders for all commands."""
        super().__init__(**attributes)
        plugins = installed_commands()
        for panel, commands in COMMANDS.items():
            for name, (module, text) in commands.items():
                if module or name in plugins:
                    self.add_command(TyperCommand(name, help=text, rich_help_panel=panel))
        for name in sorted(plugins.keys() - _MODULES.keys()):
            text = f"Run the command {name} of an installed package."
            self.add_command(TyperCommand(name, help=text, rich_help_panel=_PLUGINS))

    def get_command(self, _: Any, cmd_name: str) -> Any:
        """Import a command and return it; None if it does not exist."""
        name = _OLDER_NAMES.get(cmd_name, cmd_name)
        if name not in self.commands:
            return None
        if (module := _MODULES.get(name)) is None:
            return _plugin(name)
        group = _group_of(import_module(f"{__name__}.{module}").cli)
        return group.commands.get(name, group)

    def shell_complete(self, _: Any, incomplete: str) -> Any:
        """Complete the name of a command or an option of this group."""
        listed = TyperGroup(name=self.name, commands=dict(self.commands), params=self.params)
        return listed.shell_complete(typer.Context(listed), incomplete)

    def format_commands(self, _: Any, formatter: Any) -> None:
        """Write the commands of each panel."""
        for panel in (*COMMANDS, _PLUGINS):
            listed = [
                (name, each.help or "")
                for name, each in self.commands.items()
                if getattr(each, "rich_help_panel", None) == panel
            ]
            if listed:
                with formatter.section(panel):
                    formatter.write_dl(listed)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command and exit; print an error in its arguments as one line."""
        extra["standalone_mode"] = False
        try:
            code = super().main(*args, **extra)
            sys.stdout.flush()
        except typer.TyperException as error:
            note(_text_of(error))
            code = getattr(error, "exit_code", 2)
        except OutputError as error:
            code = output_failed(error)
        sys.exit(code or 0)


def _text_of(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    text = error.format_message()
    if context is None or "\n" in text:  # without a command, the message is the help of the group
        return text
    if near := getattr(error, "possibilities", None):
        text = f"{error.message}. Did you mean {' or '.join(near)}?"
    return f"{text.rstrip()} See `{context.command_path} --help`."


def _plugin(name: str) -> Any:
    from caseworker.cli.output import startup_errors
    from caseworker.main.with_client import run_with_client

    command = installed_commands()[name](startup_errors()(run_with_client))
    plugin = typer.Typer()
    plugin.command(name)(startup_errors()(command))
    return _group_of(plugin).commands[name]


def _group_of(commands: typer.Typer) -> TyperGroup:
    commands.rich_markup_mode = None  # plain text, because rich takes longer to import than to help
    return typer.main.get_group(commands)


cli = typer.Typer(
    cls=LazyGroup,
    name="caseworker",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help=(
        "Run LLM agents within hard budgets. Runs can be cancelled at any time, and every call "
        "is traced."
    ),
    epilog="To add tools, functions and model providers, see docs/extending.md (also served at "
    "/docs/extending.md).",
)


def _show_version(flag: bool) -> None:
    if flag:
        sys.stdout.write(f"caseworker {version('caseworker')}\n")
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
    # Imports leave 1 MB of garbage, and collecting it would take a quarter of the service's start.
    # A process of the service sets other thresholds when it has started.
    gc.set_threshold(1_000_000)
    # Without its own command line, httpx imports neither click nor rich nor pygments.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    check_output()
    if sys.argv[1:2] != ["exec"]:  # which passes the bytes of arguments on to its command
        sys.argv[1:] = map(_as_text, sys.argv[1:])
    cli(prog_name="caseworker")


def _as_text(argument: str) -> str:
    """Return an argument that the locale could not decode as UTF-8; exit with 2 if it is not."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        try:
            return os.fsencode(argument).decode()
        except UnicodeError:
            note(f"{argument!a}: this argument is not UTF-8.")
            sys.exit(2)
    return argument
