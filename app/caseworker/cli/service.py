"""Call the service from commands, explain errors, and map run statuses to exit codes."""

from collections.abc import Callable
from typing import Annotated, Final

import httpx
import typer
from caseworker_client import (
    ApiError,
    CaseworkerClient,
    CaseworkerError,
    RetryPolicy,
    ServiceUnreachableError,
)

from caseworker.cli.output import fail, startup_errors
from caseworker.main.commands import service_url
from caseworker.main.configuration import StartupError

Url = Annotated[
    str | None,
    typer.Option(
        envvar="CASEWORKER_URL",
        help="URL of the service (default: the configured server.host and server.port). "
        "CASEWORKER_API_KEY sets the API key.",
    ),
]

NOT_COMPLETED: Final = 1
"""Exit code if a run failed or has not ended, or if a graph is invalid."""
_EXIT_CODES: Final = {"completed": 0, "halted": 3, "cancelled": 4}

_HINTS: Final = {
    401: "Set CASEWORKER_API_KEY to an API key. `caseworker keys create` creates one.",
    403: "Set CASEWORKER_API_KEY to a key with the required scope.",
}
_OTHER_WORDS: Final = {
    "run-not-found": "No run has this ID. `caseworker runs` lists all runs.",
}
_COMPLETION_SECONDS: Final = 2.0


def talk(url: str | None, ask: Callable[[CaseworkerClient], None]) -> None:
    """Connect a client to the service and call ``ask`` with it.

    ``url`` defaults to the configured service. If the service or the connection fails, the error is
    printed and the command exits.
    """
    with startup_errors():
        address = url or service_url()
    try:
        with CaseworkerClient(address) as client:
            ask(client)
    except CaseworkerError as error:
        fail(explained(error))
    except httpx.InvalidURL as error:
        fail(f"{address} is not a valid URL: {error}. Use one such as http://127.0.0.1:8080.")
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def explained(error: CaseworkerError) -> str:
    """Return the message of an API error, with a hint on how to resolve it.

    The message has one line, plus one for each invalid field.
    """
    if isinstance(error, ServiceUnreachableError):
        start = (
            "Start the service (`caseworker serve`), or set its URL with --url or CASEWORKER_URL."
        )
        return f"{error}. {start}"
    if not isinstance(error, ApiError):
        return str(error)
    if (known := _OTHER_WORDS.get(error.type.rpartition(":")[2])) is not None:
        return known
    if (seconds := error.retry_after_seconds) is not None:
        return f"{error} Retry in {seconds:.0f} s."
    title = error.title or f"The service returned status {error.status}"
    hint = _HINTS.get(error.status)
    return str(error) if hint is None else f"{title.rstrip('.')}. {hint}"


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
    try:
        address = context.params.get("url") or service_url()
        once = RetryPolicy(attempts=1)
        with CaseworkerClient(address, timeout_seconds=_COMPLETION_SECONDS, retry=once) as client:
            runs = client.list_runs(limit=100).runs
    except (CaseworkerError, StartupError, httpx.InvalidURL):
        return []  # shell completion cannot show errors
    return [
        (run.run_id, f"{run.kind}, {run.status}")
        for run in runs
        if run.run_id.startswith(incomplete)
    ]


RunId = Annotated[str, typer.Argument(help="The run.", autocompletion=complete_run_id)]
