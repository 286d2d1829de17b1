"""Commands for agents."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from caseworker.cli.definitions import add_definition_commands, reference, show_registered
from caseworker.cli.output import AsJson, fail, json_argument, startup_errors
from caseworker.cli.runs import submits_run
from caseworker.cli.service import Url, connected

cli = typer.Typer(
    no_args_is_help=True,
    help="Run, register, show and delete agents.",
)

AGENT_HELP = "Registered agent (NAME or NAME@VERSION), or a YAML or JSON file that defines one."
_SUFFIXES = (".yaml", ".yml", ".json")


@cli.command("run")
@submits_run
def run_agent_command(
    agent: Annotated[str, typer.Argument(help=AGENT_HELP)],
    text: Annotated[str | None, typer.Argument(help="Input for the agent.")] = None,
    *,
    inputs: Annotated[
        str | None, typer.Option(help="Values of the agent's variables, as a JSON object.")
    ] = None,
) -> Mapping[str, Any]:
    """Run an agent and print its answer."""
    body: dict[str, Any] = {"kind": "agent", "agent": agent_argument(agent)}
    if text is not None:
        body["input"] = text
    if inputs is not None:
        body["inputs"] = json_argument(inputs, "--inputs")
    return body


@cli.command("register")
def register_agent_command(
    file: Annotated[Path, typer.Argument(help="YAML or JSON file; - reads standard input.")],
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Register an agent from a file as the next version of its name."""
    agent = _read(file)
    with connected(url) as client:
        show_registered("agent", client.register_agent(agent), as_json=as_json)


add_definition_commands(cli, "agent")


def agent_argument(argument: str) -> dict[str, Any]:
    """Return the agent defined in a file, or a reference to a registered agent."""
    path = Path(argument)
    return _read(path) if path.suffix in _SUFFIXES or "/" in argument else reference(argument)


def _read(path: Path) -> dict[str, Any]:
    from caseworker.main.agent_file import read_agent

    if not path.exists():
        fail(f"File not found: {str(path)!r}. A registered agent has no directory or extension.")
    with startup_errors():
        return read_agent(path)
