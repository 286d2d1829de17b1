"""Commands of a caller: run cases and graphs, look at runs, cancel them."""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from caseworker_client import CaseworkerClient, CaseworkerError, Run

from app.bootstrap.commands import service_url
from app.cli.budget_options import with_budget
from app.cli.output import fail, out, show, startup_errors

cli = typer.Typer()
graph_cli = typer.Typer(no_args_is_help=True, help="Validate and run graphs.")
cli.add_typer(graph_cli, name="graph")

Url = Annotated[
    str | None,
    typer.Option(
        envvar="CASEWORKER_URL",
        help="Where the service listens; left out, at the configured server.host and server.port.",
    ),
]
Wait = Annotated[int, typer.Option(min=0, help="Seconds to wait for the end.")]
ChosenId = Annotated[str | None, typer.Option("--run-id", help="Names the run; else made up.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print what the service answers.")]
RunId = Annotated[str, typer.Argument(help="The run.")]
GraphFile = Annotated[
    typer.FileText, typer.Argument(help="A graph as JSON; - is standard input.", encoding="utf-8")
]

EARLY = 1
"""Exit code if the run has not completed, or the graph is not valid."""


@cli.command()
@with_budget
def run(
    text: Annotated[str, typer.Argument(help="The question.")],
    *,
    budget: Mapping[str, float],
    url: Url = None,
    wait: Wait = 30,
    run_id: ChosenId = None,
    as_json: AsJson = False,
) -> None:
    """Post a case and print its answer."""
    post({"input": text}, url, wait=wait, run_id=run_id, budget=budget, as_json=as_json)


@graph_cli.command("run")
@with_budget
def run_graph(
    file: GraphFile,
    *,
    budget: Mapping[str, float],
    value: Annotated[
        str | None, typer.Option("--input", help="The input of the graph, as JSON.")
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


@graph_cli.command("validate")
def validate_graph(file: GraphFile, url: Url = None) -> None:
    """Print everything that is wrong with a graph."""
    graph = read_json(file.read(), "graph")

    def ask(client: CaseworkerClient) -> None:
        found = client.validate_graph(graph)
        for problem in found.problems:
            show(f"{problem.severity}  {problem.place or 'graph'}: {problem.message}")
        if not found.valid:
            raise typer.Exit(EARLY)
        out.print("The graph is valid.")

    talk(url, ask)


@cli.command("list")
def list_runs(
    url: Url = None,
    status: Annotated[str | None, typer.Option(help="Only runs of this status.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only of: case, graph or agent.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only of the registered agent NAME.")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option(help="Only with this KEY=VALUE; all of several.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="So many at the most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first."""
    wanted: dict[str, str] = {}
    for pair in metadata or ():
        key, given, value = pair.partition("=")
        if not (key and given):
            fail(f"--metadata {pair}: write KEY=VALUE.")
        wanted[key] = value

    def ask(client: CaseworkerClient) -> None:
        page = client.list_runs(status=status, kind=kind, agent=agent, metadata=wanted, limit=limit)
        if as_json:
            out.print_json(data=page.as_json())
            return
        for run in page.as_json()["runs"]:
            show(f"{run['created_at']}  {run['kind']:5}  {run['status']:9}  {run['run_id']}")

    talk(url, ask)


@cli.command()
def events(
    run_id: RunId,
    url: Url = None,
    after: Annotated[int, typer.Option(min=0, help="Begin behind the event of this number.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print an event a line.")] = False,
) -> None:
    """Follow what happens in a run until it has ended."""

    def ask(client: CaseworkerClient) -> None:
        for event in client.stream_events(run_id, after=after):
            sent = event.as_json()
            if as_json:
                show(json.dumps(sent))
                continue
            details = json.dumps(event.data) if event.data else ""
            words = (f"{event.seq:4}", sent["ts"], event.type, event.step_id, details)
            show("  ".join(word for word in words if word))

    talk(url, ask)


@cli.command()
def cancel(
    run_id: Annotated[str, typer.Argument(help="The run, which need not exist yet.")],
    url: Url = None,
    reason: Annotated[str | None, typer.Option(help="Why; shown in the run.")] = None,
) -> None:
    """Cancel a run and print the receipt."""

    def ask(client: CaseworkerClient) -> None:
        out.print_json(data=client.cancel_run(run_id, reason=reason).as_json())

    talk(url, ask)


@cli.command("approvals")
def list_approvals(
    run_id: Annotated[str | None, typer.Argument(help="Only those of this run.")] = None,
    url: Url = None,
) -> None:
    """Print the approvals that wait for a decision."""

    def ask(client: CaseworkerClient) -> None:
        for each in client.list_approvals(run_id).approvals:
            if each.open:
                asked = json.dumps(each.arguments, ensure_ascii=False)
                show(f"{each.run_id}  {each.approval_id}  {each.subject}  {asked}")

    talk(url, ask)


@cli.command()
def approve(
    run_id: RunId,
    approval_id: Annotated[str, typer.Argument(help="The approval.")],
    url: Url = None,
    refuse: Annotated[bool, typer.Option("--refuse", help="Refuse it instead.")] = False,
    arguments: Annotated[str | None, typer.Option(help="Others, as a JSON object.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why; shown in the run.")] = None,
) -> None:
    """Approve what a run asks for, or refuse it."""
    changed = None if arguments is None else read_json(arguments, "value of --arguments")

    def ask(client: CaseworkerClient) -> None:
        if refuse:
            decided = client.refuse(run_id, approval_id, reason=reason)
        else:
            decided = client.approve(run_id, approval_id, arguments=changed, reason=reason)
        out.print_json(data=decided.as_json())

    talk(url, ask)


@cli.command()
def trace(
    run_id: RunId,
    url: Url = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the snapshot.")] = False,
) -> None:
    """Print what a run did, call by call."""

    def ask(client: CaseworkerClient) -> None:
        if as_json:
            out.print_json(data=client.get_trace(run_id).as_json())
        else:
            show(client.explain_run(run_id))

    talk(url, ask)


def post(
    body: Mapping[str, Any],
    url: str | None,
    *,
    wait: int,
    run_id: str | None,
    budget: Mapping[str, float],
    as_json: bool,
) -> None:
    """Post a run, wait for it, and print what came of it."""
    named = {} if run_id is None else {"run_id": run_id}
    limits = {"budget": dict(budget)} if budget else {}

    def ask(client: CaseworkerClient) -> None:
        posted = client.create_run({**body, **named, **limits}, wait_seconds=wait)
        if as_json:
            out.print_json(data=posted.as_json())
        else:
            _show_end(posted)
        if posted.status != "completed":
            raise typer.Exit(EARLY)

    talk(url, ask)


def _show_end(run: Run) -> None:
    result = run.result or {}
    show(f"run     {run.run_id}\nstatus  {run.status}")
    answer = result.get("answer", result.get("output"))
    if answer is None:
        answer = result.get("raw_content") or None
    if answer is not None:
        show(f"answer  {answer if isinstance(answer, str) else json.dumps(answer)}")
    elif run.stop is not None and run.stop.reason:
        show(f"reason  {run.stop.reason}")
    for step_id, outputs in result.get("outputs", {}).items():
        show(f"output  {step_id}: {json.dumps(outputs, ensure_ascii=False)}")


def read_json(text: str, what: str) -> Any:
    """Return what a text of JSON holds, or end the command."""
    try:
        return json.loads(text)
    except ValueError as error:
        fail(f"The {what} is not JSON: {error}")


def talk(url: str | None, ask: Callable[[CaseworkerClient], None]) -> None:
    """Let a function talk to the service; its refusals end the command."""
    with startup_errors():
        address = url or service_url()
    try:
        with CaseworkerClient(address) as client:
            ask(client)
    except CaseworkerError as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
