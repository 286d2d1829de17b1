"""Command that runs a program as an external run."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Final
from urllib.parse import quote

import typer
from caseworker_client import Access, ApiError, CaseworkerClient, CaseworkerError, RetryPolicy, Run

from caseworker.cli.budget_options import with_budget
from caseworker.cli.output import fail
from caseworker.cli.runs import ChosenId
from caseworker.cli.service import NOT_COMPLETED, Url, connected, end_by, explained

cli = typer.Typer()

HEARTBEAT_SECONDS: Final = 5.0
GRACE_SECONDS: Final = 10.0
"""Seconds between SIGTERM and SIGKILL, if the service has stopped the run."""
_PATIENT: Final = RetryPolicy(attempts=10)
"""Retries for half a minute, so that a restart of the service does not lose the outcome."""
_STOPPED: Final = ("halted", "cancelled")
_TYPED: Final = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to the command as well."""
_FORWARDED: Final = (*_TYPED, signal.SIGTERM, signal.SIGHUP)
_OPENAI: Final = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
_ANTHROPIC: Final = ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE", "ANTHROPIC_API_URL")
"""Base URLs. LangChain and LiteLLM prefer the older names, if they are set."""
_KEYS: Final = (
    *("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    *("CASEWORKER_API_KEY", "CASEWORKER_RUN_KEY"),
)


@cli.command("exec", context_settings={"allow_interspersed_args": False})
@with_budget
def execute(
    command: Annotated[list[str], typer.Argument(help="The command and its arguments.")],
    *,
    budget: Mapping[str, float],
    budget_usd: Annotated[
        float | None, typer.Option(min=0, help="The same as --max-cost-usd.")
    ] = None,
    url: Url = None,
    run_id: ChosenId = None,
    source: Annotated[
        str | None, typer.Option("--from", help="Ended run whose recorded calls are replayed.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the agent.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Model that the command may call: NAME, or NAME=CONFIGURED to call a configured "
            "model by another name (* is any other name). Repeatable (default: all)."
        ),
    ] = None,
    idle_seconds: Annotated[
        float | None,
        typer.Option(help="Seconds without a heartbeat after which the run fails (600)."),
    ] = None,
    no_replay: Annotated[
        bool, typer.Option("--no-replay", help="Replay no recorded reply to later attempts.")
    ] = False,
) -> None:
    """Run a program whose model calls go through the service.

    The program is an external run.

    Exits with the command's code (128 + N after signal N), 3 if the run was halted, 4 if cancelled.
    """
    if shutil.which(command[0]) is None:
        sys.stderr.write(f"{command[0]}: command not found\n")
        raise typer.Exit(127)
    named = (each.partition("=") for each in model or ())
    limits = dict(budget) if budget_usd is None else {**budget, "max_cost_usd": budget_usd}
    fields = {
        "run_id": run_id,
        "from": source and {"run_id": source},
        "name": name,
        "models": {seen: configured or seen for seen, _, configured in named},
        "idle_seconds": idle_seconds,
        "replay": False if no_replay else None,
        "budget": limits,
    }
    body = {key: value for key, value in fields.items() if value not in (None, {})}
    with connected(url) as client:
        run = client.create_run({"kind": "external", **body})
        if run.access is None:
            ended = f"has ended ({run.status}), so the command was not started."
            _say(
                run,
                f"{ended} Continue it with --from {run.run_id}, after a halt with higher limits.",
            )
            end_by(run.status)
        else:
            address = client.settings.base_url
            page = f"{address}/ui/runs/{quote(run.run_id, safe='')}"
            _say(run, f"attempt {run.attempt} ({page})")
            _execute(command, run, _variables(run, run.access, address))


def _variables(run: Run, access: Access, url: str) -> dict[str, str]:
    """Return the environment variables that direct the clients of a command to a run."""
    mcp_url = access.as_json().get("mcp_url")
    return {
        **dict.fromkeys(_OPENAI, access.openai_base_url),
        **dict.fromkeys(_ANTHROPIC, access.anthropic_base_url),
        **dict.fromkeys(_KEYS, access.key),
        "CASEWORKER_URL": url,
        "CASEWORKER_RUN_ID": run.run_id,
    } | ({"CASEWORKER_MCP_URL": mcp_url} if mcp_url else {})


def _execute(command: list[str], run: Run, variables: Mapping[str, str]) -> None:
    """Run a command until it exits, finish the run, and exit with its code.

    The command stays in this process group, so the terminal treats both as one job.
    """
    try:
        process = subprocess.Popen(command, env={**os.environ, **variables})  # noqa: S603
    except OSError as error:
        fail(f"{command[0]}: {error.strerror}")
    exited, interrupted = threading.Event(), False

    def forward(number: int, _: object) -> None:
        nonlocal interrupted
        interrupted = True
        if number not in _TYPED or not _is_foreground():
            process.send_signal(number)

    url, key = variables["CASEWORKER_URL"], variables["CASEWORKER_RUN_KEY"]
    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    with CaseworkerClient(url, api_key=key, retry=RetryPolicy(attempts=1)) as client:
        keeper = threading.Thread(target=_keep, args=(client, run.run_id, process.pid, exited))
        keeper.start()
        code = process.wait()
        exited.set()
        keeper.join()
    for number, handler in before.items():
        signal.signal(number, handler)
    code = 128 - code if code < 0 else code
    is_killed = 128 < code <= 128 + signal.NSIG or (interrupted and code != 0)
    try:
        with CaseworkerClient(url, api_key=key, retry=_PATIENT) as client:
            ended = _finished(client, run.run_id, code, is_killed=is_killed)
    except CaseworkerError as error:
        _say(run, explained(error))
        raise typer.Exit(code or NOT_COMPLETED) from None
    if not ended.ended:
        _say(run, f"was not finished. Resume it with --run-id {run.run_id} and the same options.")
    elif ended.status != ("failed" if code else "completed"):
        _say(run, f"{ended.status}. {(ended.stop and ended.stop.reason) or ''}")
    if code == 0 or ended.status in _STOPPED:
        end_by(ended.status)
    raise typer.Exit(code)


def _finished(client: CaseworkerClient, run_id: str, code: int, *, is_killed: bool) -> Run:
    """Finish a run by an exit code, unless its command was killed; return the run.

    Raises:
        CaseworkerError: the service does not answer, or another attempt was opened.
    """
    message = f"The command exited with code {code}."
    try:
        if is_killed:
            client.heartbeat(run_id)
        elif code:
            client.finish_run(run_id, error={"class": "ExitCode", "message": message})
        else:
            client.finish_run(run_id, {"exit_code": 0})
    except ApiError as error:
        if error.code != "external-run-ended":
            raise
    return client.get_run(run_id)


def _keep(client: CaseworkerClient, run_id: str, pid: int, exited: threading.Event) -> None:
    """Send heartbeats until the command exits; end it after a stop or in a superseded attempt."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)  # they must interrupt the main thread
    while not exited.wait(HEARTBEAT_SECONDS):
        try:
            is_stopped = client.heartbeat(run_id).status in _STOPPED
        except CaseworkerError as error:
            is_stopped = isinstance(error, ApiError) and error.status == 409
        if is_stopped:
            _kill(pid, exited)
            return


def _kill(pid: int, exited: threading.Event) -> None:
    """Terminate a process and its descendants; kill those that remain after a grace period."""
    import psutil

    with suppress(psutil.Error):
        top = psutil.Process(pid)
        processes = [top, *top.children(recursive=True)]
        for send in (psutil.Process.terminate, psutil.Process.kill):
            for each in processes:
                with suppress(psutil.Error):
                    send(each)
            exited.wait(GRACE_SECONDS)


def _is_foreground() -> bool:
    """Return whether a terminal sends its signals to this process group."""
    try:
        with open(os.ctermid()) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _say(run: Run, text: str) -> None:
    sys.stderr.write(f"caseworker: run {run.run_id} {text}".rstrip() + "\n")
