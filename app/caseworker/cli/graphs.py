"""Commands for graphs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from caseworker.cli.definitions import add_definition_commands, reference, show_registered
from caseworker.cli.output import AsJson, fail, json_argument, out, show, show_json, startup_errors
from caseworker.cli.runs import submits_run
from caseworker.cli.service import NOT_COMPLETED, Url, connected

cli = typer.Typer(
    no_args_is_help=True,
    help="Validate, run, register, show and delete graphs.",
)

GraphFile = Annotated[str, typer.Argument(help="JSON file with a graph; - reads standard input.")]


@cli.command("run")
@submits_run
def run_graph(
    graph: Annotated[
        str,
        typer.Argument(
            help="JSON file with a graph (- reads standard input), or a registered graph (NAME or "
            "NAME@VERSION)."
        ),
    ],
    *,
    value: Annotated[
        str | None, typer.Option("--input", help="Input of the graph, as JSON.")
    ] = None,
) -> Mapping[str, Any]:
    """Run a graph and print its outputs."""
    body: dict[str, Any] = {"kind": "graph", "graph": _graph(graph)}
    if value is not None:
        body["input"] = json_argument(value, "--input")
    return body


@cli.command("register")
def register_graph_command(
    name: Annotated[str, typer.Argument(help="Name of the graph.")],
    file: GraphFile,
    description: Annotated[str | None, typer.Option(help="Description of the graph.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Register a graph from a file as the next version of a name."""
    graph = _read(file)
    with connected(url) as client:
        registered = client.register_graph(name, graph, description=description)
        show_registered("graph", registered, as_json=as_json)


add_definition_commands(cli, "graph")


@cli.command("validate")
def validate_graph_command(
    file: GraphFile,
    url: Url = None,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline",
            help="Validate without a running service, using the tools and functions installed "
            "locally. Registered graphs and agents are not resolved.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print all problems of a graph.

    Exits with 1 if it is not valid.
    """
    graph = _read(file)
    if not offline:
        with connected(url) as client:
            _show(client.validate_graph(graph), as_json=as_json)
        return
    from caseworker_client import Validation

    from caseworker.main.commands import problems_of_graph

    with startup_errors():
        problems = problems_of_graph(graph)
    valid = all(each["severity"] != "error" for each in problems)
    validation = Validation.model_validate({"valid": valid, "problems": problems})
    _show(validation, as_json=as_json)


def _show(validation: Any, *, as_json: bool) -> None:
    """Print the problems of a graph; exit with 1 if it is not valid."""
    if as_json:
        show_json(validation.as_json())
    else:
        for each in validation.problems:
            show(f"{each.severity}  {each.place or 'graph'}: {each.message}")
        if validation.valid:
            out.print("The graph is valid.")
    if not validation.valid:
        raise typer.Exit(NOT_COMPLETED)


def _graph(argument: str) -> dict[str, Any]:
    """Return the graph in a file, or a reference to a registered graph."""
    is_file = (
        argument == "-" or "/" in argument or argument.endswith(".json") or Path(argument).is_file()
    )
    return _read(argument) if is_file else reference(argument)


def _read(file: str) -> dict[str, Any]:
    try:
        text = Path("/dev/stdin" if file == "-" else file).read_bytes()
    except OSError as error:
        fail(f"{file}: {error.strerror}. A registered graph has no directory or extension.")
    graph = json_argument(text, file)
    if not isinstance(graph, dict):
        fail(f"{file} holds no graph. A graph is a JSON object with steps and edges.")
    return graph
