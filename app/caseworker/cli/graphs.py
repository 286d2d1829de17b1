"""Commands that validate and run graphs."""

from collections.abc import Mapping
from typing import Annotated

import typer
from caseworker_client import Validation

from caseworker.cli.budget_options import with_budget
from caseworker.cli.output import AsJson, fail, out, show, show_json, startup_errors
from caseworker.cli.runs import ChosenId, Wait, post, read_json
from caseworker.cli.service import NOT_COMPLETED, Url, talk
from caseworker.main.commands import problems_of_graph

cli = typer.Typer(no_args_is_help=True, help="Validate and run graphs.")

GraphFile = Annotated[
    typer.FileText,
    typer.Argument(help="JSON file with a graph; - reads standard input.", encoding="utf-8"),
]


@cli.command("run")
@with_budget
def run_graph(
    file: GraphFile,
    *,
    budget: Mapping[str, float],
    value: Annotated[
        str | None, typer.Option("--input", help="Input of the graph, as JSON.")
    ] = None,
    url: Url = None,
    wait: Wait = 30,
    run_id: ChosenId = None,
    as_json: AsJson = False,
) -> None:
    """Run a graph and print its outputs."""
    body = {"kind": "graph", "graph": read_json(file.read(), "graph")}
    if value is not None:
        body["input"] = read_json(value, "input")
    post(body, url, wait=wait, run_id=run_id, budget=budget, as_json=as_json)


@cli.command("validate")
def validate_graph(
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
    """Print all problems of a graph; exits with 1 if it is not valid."""
    graph = read_json(file.read(), "graph")
    if not offline:
        talk(url, lambda client: _show(client.validate_graph(graph), as_json=as_json))
        return
    if not isinstance(graph, dict):
        fail("The graph must be a JSON object.")
    with startup_errors():
        problems = problems_of_graph(graph)
    valid = all(each["severity"] != "error" for each in problems)
    found = Validation.model_validate({"valid": valid, "problems": problems})
    _show(found, as_json=as_json)


def _show(found: Validation, *, as_json: bool) -> None:
    """Print the problems of a graph; exit with 1 if it is not valid."""
    if as_json:
        show_json(found.as_json())
    else:
        for each in found.problems:
            show(f"{each.severity}  {each.place or 'graph'}: {each.message}")
        if found.valid:
            out.print("The graph is valid.")
    if not found.valid:
        raise typer.Exit(NOT_COMPLETED)
