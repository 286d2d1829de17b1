"""The command line: start the service, talk to it, look after its database."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.rule import Rule

from app.bootstrap.commands import (
    check_configuration,
    run_server,
    run_with_client,
    run_worker,
    upgrade_database,
)
from app.bootstrap.configuration import StartupError
from app.client import ApiError, CaseworkerClient, ServiceUnreachableError
from app.harness.command import evaluation_command

cli = typer.Typer(
    name="caseworker",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Runs agents inside hard limits, stoppable at any moment, with a trace of every call.",
)
config_cli = typer.Typer(no_args_is_help=True, help="Look at the configuration.")
db_cli = typer.Typer(no_args_is_help=True, help="Look after the database.")
cli.add_typer(config_cli, name="config")
cli.add_typer(db_cli, name="db")

Migrate = Annotated[
    bool, typer.Option("--migrate", help="Bring the database to the newest revision first.")
]
Url = Annotated[str, typer.Option(help="Where the service listens.")]
DEFAULT_URL = "http://127.0.0.1:8080"

DEMO_QUESTION = "What is 17% of 2,340?"
DEMO_WAIT_SECONDS = 20

out = Console(highlight=False, soft_wrap=True)


@cli.command()
def serve(
    worker: Annotated[bool, typer.Option(help="Also execute runs in this process.")] = True,
    migrate: Migrate = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="Post an example case to the service and show it.")
    ] = False,
) -> None:
    """Serve the HTTP API."""

    async def started(url: str) -> None:
        out.print(f"Caseworker listens on {url}")
        if demo:
            await _show_demo(url)

    with _startup_errors():
        run_server(executes=worker, migrate=migrate or demo, started=started)


@cli.command()
def worker(migrate: Migrate = False) -> None:
    """Execute queued runs, without serving the API."""
    with _startup_errors():
        run_worker(migrate=migrate)


@cli.command()
def run(
    text: Annotated[str, typer.Argument(help="The question.")],
    url: Url = DEFAULT_URL,
    wait: Annotated[int, typer.Option(help="Seconds to wait for the answer.")] = 30,
) -> None:
    """Post a case and print its answer."""

    async def ask(client: CaseworkerClient) -> None:
        posted = await client.post_run({"input": text}, wait_seconds=wait)
        result = posted.get("result") or {}
        out.print(f"run     {posted['run_id']}\nstatus  {posted['status']}", markup=False)
        if result.get("answer") is not None:
            out.print(f"answer  {result['answer']}", markup=False)
        elif (posted.get("stop") or {}).get("reason"):
            out.print(f"reason  {posted['stop']['reason']}", markup=False)
        if posted["status"] != "completed":
            raise typer.Exit(1)

    _talk(url, ask)


@cli.command()
def cancel(
    run_id: Annotated[str, typer.Argument(help="The run, which need not exist yet.")],
    url: Url = DEFAULT_URL,
    reason: Annotated[str | None, typer.Option(help="Why; shown in the run.")] = None,
) -> None:
    """Cancel a run and print the receipt."""

    async def ask(client: CaseworkerClient) -> None:
        out.print_json(data=await client.cancel_run(run_id, reason=reason))

    _talk(url, ask)


@cli.command()
def trace(
    run_id: Annotated[str, typer.Argument(help="The run.")],
    url: Url = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print the snapshot.")] = False,
) -> None:
    """Print what a run did, call by call."""

    async def ask(client: CaseworkerClient) -> None:
        if as_json:
            out.print_json(data=await client.trace(run_id))
        else:
            out.print(await client.explain(run_id), markup=False)

    _talk(url, ask)


@config_cli.command("check")
def config_check() -> None:
    """Read the configuration as the service would and say whether it fits."""
    with _startup_errors():
        for line in check_configuration():
            out.print(line, markup=False)


@db_cli.command("upgrade")
def db_upgrade() -> None:
    """Bring the database to the newest revision."""
    with _startup_errors():
        upgrade_database()
        out.print("The database is at the newest revision.")


def main() -> None:
    """Run the command line."""
    cli()


@contextmanager
def _startup_errors() -> Iterator[None]:
    try:
        yield
    except StartupError as error:
        _fail(str(error))


cli.command("eval")(evaluation_command(_startup_errors()(run_with_client)))


def _talk(url: str, ask: Callable[[CaseworkerClient], Awaitable[Any]]) -> None:
    async def talk() -> None:
        async with CaseworkerClient(url) as client:
            await ask(client)

    try:
        asyncio.run(talk())
    except (ApiError, ServiceUnreachableError) as error:
        _fail(str(error))


async def _show_demo(url: str) -> None:
    """Post an example case over HTTP; print its answer, its trace and where to look."""
    try:
        async with CaseworkerClient(url) as client:
            run = await client.post_run({"input": DEMO_QUESTION}, wait_seconds=DEMO_WAIT_SECONDS)
            explained = await client.explain(run["run_id"])
    except (ApiError, ServiceUnreachableError) as error:
        out.print(f"The example case failed: {error}", markup=False)
        return
    result = run.get("result") or {}
    out.print(Rule("An example case", align="left"))
    out.print(f"question  {DEMO_QUESTION}\nanswer    {result.get('answer')}", markup=False)
    out.print(Rule("Its trace", align="left"))
    out.print(explained, markup=False)
    out.print(Rule("Where to look", align="left"))
    for path in ("/docs", f"/runs/{run['run_id']}", f"/runs/{run['run_id']}/trace", "/readyz"):
        out.print(f"{url}{path}", markup=False)
    out.print("Ctrl+C ends the service.")


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"{message}\n")
    raise typer.Exit(2)
