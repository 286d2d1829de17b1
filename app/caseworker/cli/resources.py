"""Commands for artifacts, schedules, webhooks, tools, models and spend."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from caseworker.cli.agents import AGENT_HELP, agent_argument
from caseworker.cli.budget_options import with_budget
from caseworker.cli.definitions import reference
from caseworker.cli.output import (
    AsJson,
    fail,
    json_argument,
    show,
    show_json,
    show_page,
    startup_errors,
)
from caseworker.cli.runs import Wait, post
from caseworker.cli.service import (
    NOT_COMPLETED,
    Cursor,
    Limit,
    RunId,
    Url,
    add_action,
    add_list,
    api,
    connected,
)
from caseworker.cli.streams import note
from caseworker.platform.suggestions import suggestion

cli = typer.Typer()


def _group(name: str, text: str) -> typer.Typer:
    group = typer.Typer(no_args_is_help=True, help=text)
    cli.add_typer(group, name=name)
    return group


artifacts = _group("artifacts", "List and download the files that runs have created.")
schedules = _group("schedules", "Create runs at recurring times.")
webhooks = _group("webhooks", "List, repeat and test webhook deliveries.")
tools = _group("tools", "List, show and call the tools of the service.")
models = _group("models", "List the configured models and test their endpoints.")


@artifacts.command("list")
def list_artifacts_command(run_id: RunId, url: Url = None, as_json: AsJson = False) -> None:
    """List the files that a run has created."""
    with connected(url) as client:
        page = {"artifacts": [each.as_json() for each in client.list_artifacts(run_id)]}
        show_page(page, "artifacts", "name media_type size_bytes created_at", as_json=as_json)


@artifacts.command()
def download(
    run_id: RunId,
    name: Annotated[str, typer.Argument(help="Name of the file.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write (default: the name).")
    ] = None,
    url: Url = None,
) -> None:
    """Download a file that a run has created."""
    target = output or Path(Path(name).name)
    with connected(url) as client:
        content = client.get_artifact(run_id, name)
        try:
            target.write_bytes(content)
        except OSError as error:
            fail(f"{target} cannot be written: {error.strerror}")
    show(f"Wrote {target}.")


add_list(
    schedules,
    "schedules",
    "name cron timezone paused next_at last_at last_run_id last_error",
    "List schedules, by name.",
)
for _name, _text, _method, _message in (
    ("pause", "Pause a schedule.", "pause_schedule", "Schedule {name} is paused."),
    ("resume", "Resume a schedule.", "resume_schedule", "Schedule {name}: next at {next_at}."),
    ("trigger", "Create a run now.", "run_schedule", "run     {run_id}\nstatus  {status}"),
    ("delete", "Delete a schedule, not its runs.", "delete_schedule", "Deleted schedule {id}."),
):
    add_action(schedules, _name, _text, _method, _message)


@schedules.command("create")
@with_budget
def create_schedule_command(
    name: Annotated[str, typer.Argument(help="Name of the schedule.")],
    cron: Annotated[str, typer.Argument(help="Times in cron syntax, such as '0 8 * * 1-5'.")],
    text: Annotated[str | None, typer.Argument(help="Input of the runs.")] = None,
    *,
    budget: Mapping[str, float],
    agent: Annotated[str | None, typer.Option(help=f"Agent to run. {AGENT_HELP}")] = None,
    graph: Annotated[
        str | None, typer.Option(help="Registered graph to run (NAME or NAME@VERSION).")
    ] = None,
    timezone: Annotated[str, typer.Option(help="Time zone of the times.")] = "UTC",
    overlap: Annotated[
        str, typer.Option(help="If the previous run has not ended: skip, allow or cancel_running.")
    ] = "skip",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Create or replace a schedule.

    Its runs execute an agent, a graph or, without either, a case.
    """
    if (agent and graph) or not (agent or graph or text):
        fail("A schedule needs a text, --agent or --graph; it cannot run both.")
    run: dict[str, Any] = {} if text is None else {"input": text}
    if agent:
        run |= {"kind": "agent", "agent": agent_argument(agent)}
    if graph:
        run |= {"kind": "graph", "graph": reference(graph)}
    if budget:
        run["budget"] = dict(budget)
    with connected(url) as client:
        schedule = client.put_schedule(name, cron, run, timezone=timezone, overlap=overlap)
        page = {"schedules": [schedule.as_json()]}
        show_page(page, "schedules", "name cron timezone paused next_at", as_json=as_json)


@webhooks.command("list")
def list_deliveries(
    url: Url = None,
    status: Annotated[
        str | None, typer.Option(help="Filter by status: pending, delivered or dead.")
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="The same as --status dead.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List webhook deliveries, newest first."""
    state = "dead" if failed else status
    with connected(url) as client:
        page = client.list_webhook_deliveries(status=state, limit=limit, cursor=cursor).as_json()
        columns = "delivery_id run_id type status attempts last_status_code url last_error"
        show_page(page, "deliveries", columns, as_json=as_json)


_DELIVERY_STATE = "Delivery {delivery_id} to {url} is {status}."
add_action(webhooks, "redeliver", "Deliver a webhook again.", "redeliver_webhook", _DELIVERY_STATE)


@webhooks.command()
def secret(url: Url = None) -> None:
    """Create or rotate the secret that signs webhooks, and print it.

    It cannot be shown again. The previous secret also signs for a day.
    """
    with connected(url) as client:
        show(client.rotate_webhook_secret().secret or "")


@webhooks.command("test")
def send_test_message_command(
    receiver: Annotated[str, typer.Argument(metavar="URL", help="URL of the receiver.")],
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Send a signed test message to a URL.

    Exits with 1 if the receiver does not accept it.
    """
    with connected(url) as client:
        receipt = api(client, "POST", "/webhooks/test", json={"url": receiver}, repeatable=False)
        if as_json:
            show_json(receipt)
        else:
            show(f"{receiver}: {receipt['error'] or 'accepted the message.'}")
        if not receipt["delivered"]:
            raise typer.Exit(NOT_COMPLETED)


@tools.command("list")
def list_tools_command(url: Url = None, as_json: AsJson = False) -> None:
    """List the tools that agents may use, including those of MCP servers."""
    with connected(url) as client:
        page = api(client, "GET", "/tools")
        all_tools = page if as_json else {"tools": list(_all_tools(page).values())}
        show_page(all_tools, "tools", "name requires_approval description", as_json=as_json)
        for server in page["servers"]:
            if server["problem"]:
                note(f"MCP server {server['name']}: {server['problem']}")


@tools.command("show")
def show_tool(
    name: Annotated[str, typer.Argument(help="Name of the tool.")], url: Url = None
) -> None:
    """Print a tool and the schema of its arguments as JSON."""
    with connected(url) as client:
        tools = _all_tools(api(client, "GET", "/tools"))
        if name not in tools:
            hint = suggestion(name, tools)
            fail(f"No tool is named {name!r}.{hint} `caseworker tools list` lists all tools.")
        show_json(tools[name])


@tools.command("call")
def call_tool(
    name: Annotated[str, typer.Argument(help="Name of the tool.")],
    arguments: Annotated[str, typer.Argument(help="Arguments as a JSON object.")] = "{}",
    url: Url = None,
    wait: Wait = 30,
    as_json: AsJson = False,
) -> None:
    """Call a tool, as a run of a graph with one step."""
    data = {"tool": name, "args": json_argument(arguments, "ARGUMENTS")}
    graph = {"steps": [{"id": "call", "type": "tool", "data": data}], "edges": []}
    post({"kind": "graph", "graph": graph}, budget={}, url=url, wait=wait, as_json=as_json)


def _all_tools(page: dict[str, Any]) -> dict[str, dict[str, Any]]:
    servers = (tool for server in page["servers"] for tool in server["tools"])
    return {tool["name"]: tool for tool in (*page["tools"], *servers)}


@models.command("list")
def list_models_command(url: Url = None, as_json: AsJson = False) -> None:
    """List the models that runs may call, by name."""
    with connected(url) as client:
        models = client.list_models()
        rows = [
            {**model, "name": name, "fallbacks": ", ".join(f["model"] for f in model["fallbacks"])}
            for name, model in models.items()
        ]
        columns = "name provider model structured_output max_output_tokens fallbacks"
        show_page({"models": models if as_json else rows}, "models", columns, as_json=as_json)


@models.command("test")
def check_endpoint(
    name: Annotated[str, typer.Argument(help="Name of the model, as configured.")],
    as_json: AsJson = False,
) -> None:
    """Test the endpoint of a configured model.

    Uses the configuration of this process and no service. Sends four short requests, which may cost
    money: a plain answer, a stream, a tool call and JSON that follows a schema. Exits with 1 if the
    plain answer fails.
    """
    from caseworker.main.checks import check_model

    with startup_errors():
        checks = check_model(name)
    show_page({"checks": checks}, "checks", "capability works detail", as_json=as_json)
    if not checks[0]["works"]:
        raise typer.Exit(NOT_COMPLETED)


@cli.command()
def spend(
    by: Annotated[str, typer.Option(help="tenant, agent, model, key or metadata.KEY.")] = "agent",
    period: Annotated[str | None, typer.Option(help="Divide by day or month (UTC).")] = None,
    after: Annotated[
        str | None, typer.Option(help="Start of the time range, in RFC 3339 format.")
    ] = None,
    before: Annotated[
        str | None, typer.Option(help="End of the time range, in RFC 3339 format.")
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the cost and usage of runs by tenant, agent, model, key or metadata."""
    query = {"group_by": by, "period": period, "after": after, "before": before}
    params = {name: value for name, value in query.items() if value is not None}
    with connected(url) as client:
        page = api(client, "GET", "/spend", params=params)
        columns = "key runs llm_calls tokens cost_usd cost_usd_estimated"
        show_page(page, "items", f"period {columns}" if period else columns, as_json=as_json)
