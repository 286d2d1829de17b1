"""Operator commands for the service's processes, configuration and database."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from caseworker.cli.output import AsJson, out, show, show_json, startup_errors, utc_text

cli = typer.Typer()
config_cli = typer.Typer(no_args_is_help=True, help="Inspect the configuration.")
db_cli = typer.Typer(no_args_is_help=True, help="Manage the database.")
cli.add_typer(config_cli, name="config")
cli.add_typer(db_cli, name="db")

Migrate = Annotated[
    bool, typer.Option("--migrate", help="Migrate the database to the newest revision first.")
]

DEMO_QUESTION = "What is 17% of 2,340?"
DEMO_WAIT_SECONDS = 20
NEXT = """\
View all runs in a browser: {url}/ui
Ask a question, wait for the answer, and print an explanation:
  curl -s {url}/runs -H 'Content-Type: application/json' -H 'Prefer: wait=10' \\
    -d '{{"run_id": "mine", "input": "What is 15% of 80?"}}'
  curl -s '{url}/runs/mine/trace?format=explain'
Cancel a run, even before it exists:
  curl -s -X DELETE '{url}/runs/later?reason=changed+our+mind'
Run an agent with a tool and a dollar budget: see README.md.
Documentation: docs/README.md; HTTP API: {url}/docs
Press Ctrl+C to stop the service."""
"""Last lines that ``caseworker serve --demo`` prints: commands to copy into another terminal."""
NEEDS_KEY = """\
The service has keys. Set CASEWORKER_API_KEY to one of them for this example, and add
-H "Authorization: Bearer $CASEWORKER_API_KEY" to the commands below.
In a browser, sign in with the key."""
UNAUTHENTICATED = 401


@cli.command("serve")
def serve_command(
    worker: Annotated[bool, typer.Option(help="Execute runs in this process as well.")] = True,
    migrate: Migrate = False,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo",
            help="Run an example case and print the commands to try next. If no model is "
            "configured, use the recorded model from the README.",
        ),
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of server processes that share the port (server.workers)."
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Record model replies to this file, for replay by the provider `recorded`. An "
            "existing file is overwritten.",
        ),
    ] = None,
) -> None:
    """Serve the HTTP API."""
    from caseworker.main.commands import run_server

    async def started(url: str) -> None:
        out.print(f"Caseworker listens on {url}")
        if demo:
            await _show_demo(url)

    with startup_errors():
        run_server(
            executes=worker,
            migrate=migrate or demo,
            started=started,
            record=record,
            workers=workers,
            demo=demo,
        )


@cli.command()
def worker(migrate: Migrate = False) -> None:
    """Execute queued runs without serving the API."""
    from caseworker.main.commands import run_worker

    with startup_errors():
        run_worker(migrate=migrate)


@cli.command()
def workers(as_json: AsJson = False) -> None:
    """List the worker processes registered in the database."""
    from caseworker.main.commands import workers_of_database

    with startup_errors():
        rows = workers_of_database()
    if as_json:
        show_json(rows)
        return
    for each in rows:
        state = "draining" if each["drain_requested_at"] else "taking runs"
        show(
            f"{each['worker_id']}  {each['host'] or '?'}  pid {each['pid'] or '?'}"
            f"  since {utc_text(each['started_at'])}  {each['runs']} runs  {state}"
            f"  last beat {each['silent_seconds']:.1f} s ago"
        )


@cli.command()
def drain(
    worker_id: Annotated[str, typer.Argument(help="ID of the worker (see `caseworker workers`).")],
) -> None:
    """Drain one worker: it takes no new runs and releases its own.

    The worker starts with its next heartbeat and reports not ready from then on. It releases each
    run once its calls in flight have ended, or after worker.drain_seconds, and stays up. Draining
    cannot be undone; restart the process instead.
    """
    from caseworker.main.commands import drain_worker

    with startup_errors():
        drain_worker(worker_id)
    show(f"Worker {worker_id} is draining and accepts no new runs.")


@cli.command()
def retention(
    tenant: Annotated[str, typer.Argument(help="The tenant.")],
    record: Annotated[
        str, typer.Argument(help="runs, requests, events, snapshots, artifacts or threads.")
    ],
    days: Annotated[str, typer.Argument(help="Number of days, `forever` or `default`.")],
) -> None:
    """Set how long a tenant's stored records are kept.

    This overrides the configuration.
    """
    from caseworker.main.commands import keep_for

    with startup_errors():
        keep_for(tenant, record, days)
    unit = " days" if days.isdecimal() else ""
    show(f"Retention of {record} for tenant {tenant}: {days}{unit}")


@config_cli.command("check")
def config_check(
    load: Annotated[
        bool,
        typer.Option("--load", help="Import plugins, and check the agents, tools and providers."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Validate the configuration as the service would read it.

    Executes no code of this folder without --load. Exits with 1 if an environment variable looks
    like a misspelled setting.
    """
    from caseworker.main.commands import check_configuration

    with startup_errors():
        checked = check_configuration(load=load)
    if as_json:
        show_json(asdict(checked))
    else:
        for warning in checked.warnings:
            show(f"warning: {warning}")
        verdict = "has warnings" if checked.near_misses else "is valid"
        rest = "" if load else " Plugins, agents and tools were not checked: use --load."
        show(f"The configuration {verdict} ({checked.source}).{rest}")
    if checked.near_misses:
        raise typer.Exit(1)


@config_cli.command("show")
def config_show(
    everything: Annotated[
        bool, typer.Option("--all", help="Include settings that have their default.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show each setting with its value and its source; secrets are masked.

    The source is an environment variable, a line of the configuration file, or the default.
    """
    from caseworker.main.configuration import shown_settings

    with startup_errors():
        settings = [each for each in shown_settings() if everything or each.source != "default"]
    if as_json:
        show_json([asdict(each) for each in settings])
        return
    values = [json.dumps(each.value, ensure_ascii=False) for each in settings]
    key_width = max((len(each.key) for each in settings), default=0)
    width = min(max(map(len, values), default=0), 40)
    for each, value in zip(settings, values, strict=True):
        show(f"{each.key:{key_width}}  {value:{width}}  {each.source}")
    if not everything:
        show("All other settings have their defaults; --all shows them.")


@db_cli.command("upgrade")
def db_upgrade() -> None:
    """Upgrade the database to the newest revision."""
    from caseworker.main.commands import upgrade_database

    with startup_errors():
        upgrade_database()
        out.print("The database is up to date.")


@db_cli.command("current")
def db_current(as_json: AsJson = False) -> None:
    """Show the revision of the database schema, and whether this release can use it."""
    from caseworker.main.commands import revision_of_database

    with startup_errors():
        schema = revision_of_database()
    if as_json:
        show_json(asdict(schema))
        return
    show(f"{schema.revision or 'none'}  (newest of this release: {schema.newest})\n{schema.advice}")


async def _show_demo(url: str) -> None:
    """Run an example case over HTTP; print its answer, its trace and commands to try next."""
    from caseworker_client import AsyncCaseworkerClient, CaseworkerError
    from rich.rule import Rule

    try:
        async with AsyncCaseworkerClient(url) as client:
            run = await client.run_case(DEMO_QUESTION, wait_seconds=DEMO_WAIT_SECONDS)
            explained = await client.explain_run(run.run_id)
    except CaseworkerError as error:
        show(f"The example case failed: {error}")
        if getattr(error, "status", None) == UNAUTHENTICATED:
            show(NEEDS_KEY)
    else:
        out.print(Rule("Example case", align="left"))
        answer = run.result.answer if run.result else f"none yet (status {run.status})"
        show(f"question  {DEMO_QUESTION}\nanswer    {answer}")
        out.print(Rule("Its trace", align="left"))
        show(explained)
        show(f"View this run in a browser: {url}/ui/runs/{run.run_id}\n")
    out.print(Rule("Next", align="left"))
    show(NEXT.format(url=url))
