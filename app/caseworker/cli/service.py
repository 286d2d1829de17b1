"""Call the service from commands, explain errors, and map run statuses to exit codes."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final  # noqa: TID251 - see below

import typer

from caseworker.cli.output import AsJson, fail, show, show_json, show_page, startup_errors
from caseworker.main.errors import StartupError
from caseworker.main.service_address import API_KEY, ServiceAddress, service_address

if TYPE_CHECKING:  # the import takes longer than printing the help of a command
    from caseworker_client import CaseworkerClient as CaseworkerClient
    from caseworker_client import CaseworkerError
    from caseworker_client import Event as Event
    from caseworker_client import Run as Run
    from caseworker_client import RunSummary as RunSummary
    from caseworker_client import Validation as Validation
else:
    CaseworkerClient = CaseworkerError = Event = Run = RunSummary = Validation = Any

Url = Annotated[
    str | None,
    typer.Option(
        envvar="CASEWORKER_URL",
        help="URL of the service (default: the configured server.host and server.port). "
        "CASEWORKER_API_KEY sets the API key.",
    ),
]

BASE_PATHS: Final = {"OPENAI": "/gateway/openai/v1", "ANTHROPIC": "/gateway/anthropic"}
"""Paths of the gateway's base URLs, by the first part of the variables of clients."""

NOT_COMPLETED: Final = 1
"""Exit code if a run failed or has not ended, or if a graph is invalid."""
_EXIT_CODES: Final = {"completed": 0, "halted": 3, "cancelled": 4}

_LISTS: Final = {
    "run": "runs",
    "agent": "agents list",
    "graph": "graphs list",
    "thread": "threads list",
    "schedule": "schedules list",
    "delivery": "webhooks list",
    "artifact": "artifacts list RUN",
    "approval": "approvals",
}
"""The command that lists all resources of a kind, by the start of the problem type of its 404."""
_LIST_ROUTE: Final = re.compile(r"GET /(agents|graphs|models|schedules|threads|tools)\b")
_COMPLETION_SECONDS: Final = 2.0


@contextmanager
def connected(url: str | None, key_variable: str = API_KEY) -> Iterator[CaseworkerClient]:
    """Connect a client to the service; ``url`` defaults to the configured one.

    ``key_variable`` is the environment variable with the key.

    If the service or the connection fails, the error is printed and the command exits.
    """
    import httpx
    from caseworker_client import ApiError, CaseworkerClient, CaseworkerError

    with startup_errors():
        address = service_address(url, key_variable)
    try:
        if not address.url.startswith(("http://", "https://")):
            raise httpx.InvalidURL("it must start with http:// or https://")
        with CaseworkerClient(address.url, api_key=address.api_key) as client:
            yield client
    except ApiError as error:
        fail(explained(error, address))
    except CaseworkerError as error:
        fail(explained(error))
    except httpx.InvalidURL as error:
        fail(f"{address.url} is not a valid URL: {error}. Use one such as http://127.0.0.1:8080.")


def explained(error: CaseworkerError, address: ServiceAddress | None = None) -> str:
    """Return the message of an API error of the service at an address, with a hint to resolve it.

    The message has one line, plus one for each invalid field.
    """
    from caseworker_client import ApiError, ServiceUnreachableError

    if isinstance(error, ServiceUnreachableError):
        start = (
            "Start the service (`caseworker serve`), or set its URL with --url or CASEWORKER_URL."
        )
        return f"{error}. {start}"
    if not isinstance(error, ApiError):
        return str(error)
    if (seconds := error.retry_after_seconds) is not None:
        return f"{error} Retry in {seconds:.0f} s."
    kind, _, problem = error.code.partition("-")
    title = (error.title or f"The service returned status {error.status}").rstrip(".")
    if problem == "not-found" and kind in _LISTS:
        return f"{title}. `caseworker {_LISTS[kind]}` lists all that exist."
    if error.status == 401 and address is not None and address.withheld is not None:
        return (
            f"{title}. The API key of {address.withheld} was not sent, because another source sets "
            f"the URL. To send it, set CASEWORKER_URL to {address.url} there too."
        )
    if error.status == 401 and address is not None and address.api_key:
        return f"{title}. Set CASEWORKER_API_KEY to another API key: this one is not valid here."
    if error.status == 401:
        return f"{title}. Set CASEWORKER_API_KEY. `caseworker keys create` creates an API key."
    if error.status == 403:
        return f"{title}. Set CASEWORKER_API_KEY to a key with the required scope."
    fields = "\n".join(f"{each.field}: {each.message}" for each in error.errors)
    text = _LIST_ROUTE.sub(r"`caseworker \1 list`", fields or str(error))
    return text.replace("POST /webhooks/secret", "`caseworker webhooks secret`")


def end_by(status: str) -> None:
    """Exit with the code for a run's ``status``; return normally if the run completed.

    Raises:
        typer.Exit: with 1 if the run failed or is unfinished, 3 if it was halted, 4 if cancelled.
    """
    if code := _EXIT_CODES.get(status, NOT_COMPLETED):
        raise typer.Exit(code)


def complete_run_id(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return shell completions for a run ID: the newest runs whose IDs start with ``incomplete``.

    Each completion is a run ID and a description with the run's kind and status.
    """
    import httpx
    from caseworker_client import CaseworkerClient, CaseworkerError, RetryPolicy

    try:
        address = service_address(context.params.get("url"))
        with CaseworkerClient(
            address.url,
            api_key=address.api_key,
            timeout_seconds=_COMPLETION_SECONDS,
            retry=RetryPolicy(attempts=1),
        ) as client:
            runs = client.list_runs(limit=100).runs
    except (CaseworkerError, StartupError, httpx.InvalidURL):
        return []  # shell completion cannot show errors
    return [
        (run.run_id, f"{run.kind}, {run.status}")
        for run in runs
        if run.run_id.startswith(incomplete)
    ]


RunId = Annotated[str, typer.Argument(help="The run.", autocompletion=complete_run_id)]
Cursor = Annotated[str | None, typer.Option(help="Cursor that an earlier list printed.")]
Limit = Annotated[int, typer.Option(min=1, max=200, help="Maximum number of items to list.")]


def add_list(cli: typer.Typer, key: str, columns: str, text: str) -> None:
    """Add the command ``list`` with the help ``text``, which prints a page as a table.

    ``key`` is the plural name of the items, as in the API. ``columns`` are fields of the items.
    """

    @cli.command("list", help=text)
    def list_items(
        url: Url = None, limit: Limit = 50, cursor: Cursor = None, as_json: AsJson = False
    ) -> None:
        with connected(url) as client:
            page = getattr(client, f"list_{key}")(limit=limit, cursor=cursor).as_json()
            show_page(page, key, columns, as_json=as_json)


def add_action(
    cli: typer.Typer,
    name: str,
    text: str,
    method: str,
    message: str | None = None,
    parse: Callable[[str], Iterable[Any]] = lambda item: (item,),
) -> None:
    """Add a command with the help ``text`` that calls a method of the client for one item.

    ``parse`` returns the arguments of the method for a given item. The command prints ``message``,
    in which ``{id}`` and the fields of the result are replaced. Without a message, or with --json,
    it prints the result.
    """

    @cli.command(name, help=text)
    def action(
        item: Annotated[str, typer.Argument(metavar="ID", help="ID or name of the item.")],
        url: Url = None,
        as_json: AsJson = False,
    ) -> None:
        arguments = parse(item)
        with connected(url) as client:
            result = getattr(client, method)(*arguments)
            fields = {} if result is None else result.as_json()
            if message is None or as_json:
                show_json(fields)
            else:
                show(message.format_map({"id": item, **fields}))


def api(client: CaseworkerClient, method: str, path: str, **fields: Any) -> Any:
    """Send a request that the client has no method for, and return the JSON of the response."""
    from caseworker_client.flow import Request, fetch
    from caseworker_client.models import Answer

    request = Request(method=method, path=path, **fields)
    return client.do(fetch(client.settings, request, Answer)).as_json()
