"""Command that runs a program as an external run."""

import shlex
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn
from urllib.parse import quote

import typer
from caseworker_client import (
    Access,
    ApiError,
    CaseworkerClient,
    CaseworkerError,
    RetryPolicy,
    Run,
    ServiceUnreachableError,
)

from caseworker.cli.budget_options import with_budget
from caseworker.cli.command_process import run_command
from caseworker.cli.exec_with_key import directed_to, execute_with_key, standing_client
from caseworker.cli.model_options import MODEL_NAMES, models_of
from caseworker.cli.output import fail
from caseworker.cli.runs import ChosenId
from caseworker.cli.service import NOT_COMPLETED, Url, connected, end_by, explained
from caseworker.cli.streams import note

cli = typer.Typer()

FINISH_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.5
"""Seconds between two requests to a service that is away."""
IDLE_SECONDS: Final = 600
"""Default of ``--idle-seconds``, which the service applies."""
AWAY: Final = 75
"""Exit code (``EX_TEMPFAIL``) after a command failed because the service was away."""
_SINGLE_ATTEMPT: Final = RetryPolicy(attempts=1)
_STOPPED: Final = ("halted", "cancelled")


@cli.command("exec", context_settings={"allow_interspersed_args": False})
@with_budget
def exec_program_command(
    context: typer.Context,
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
        typer.Option(help=f"Model that the command may call: {MODEL_NAMES}"),
    ] = None,
    idle_seconds: Annotated[
        float | None,
        typer.Option(help="Seconds without a heartbeat after which the run fails (600)."),
    ] = None,
    finish_seconds: Annotated[
        float,
        typer.Option(min=0, help="Seconds to wait for a service that is away after the command."),
    ] = FINISH_SECONDS,
    restarts: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of times that a failed command is started again. With at least 1, a "
            "command that failed while the service was away is always started again.",
        ),
    ] = 0,
    no_replay: Annotated[
        bool, typer.Option("--no-replay", help="Replay no recorded reply to later attempts.")
    ] = False,
    key: Annotated[
        bool,
        typer.Option(
            "--key",
            help="Call models with the standing key in CASEWORKER_KEY, and open no run. Prints "
            "the amount that the key has spent meanwhile.",
        ),
    ] = False,
    key_file: Annotated[
        Path | None,
        typer.Option(help="Like --key, with the standing key in a file.", dir_okay=False),
    ] = None,
) -> None:
    """Run a program whose model calls go through the service.

    The program is an external run, unless it uses a standing key.

    Exits with the command's code (128 + N after signal N), 3 if the run was halted, 4 if cancelled,
    and 75 if the command failed while the service was away. Its run is then open. With a standing
    key, 3 means that a limit has halted a session of the key.
    """
    if key or key_file is not None:
        _require_no_options_of_runs(context)
        with standing_client(url, key_file, command) as client:
            execute_with_key(client, command)
    if shutil.which(command[0]) is None:
        note(f"{command[0]}: command not found")
        raise typer.Exit(127)
    limits = dict(budget) if budget_usd is None else {**budget, "max_cost_usd": budget_usd}
    fields = {
        "run_id": run_id,
        "from": source and {"run_id": source},
        "name": name,
        "models": models_of(model),
        "idle_seconds": idle_seconds,
        "replay": False if no_replay else None,
        "budget": limits,
    }
    body = {key: value for key, value in fields.items() if value not in (None, {})}
    with connected(url) as client:
        job = _Job(context, client, command, finish_seconds, restarts)
        job.execute({"kind": "external", **body})


def _require_no_options_of_runs(context: typer.Context) -> None:
    """Refuse options that belong to a run, because a standing key has its own limits."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        is_given = source is not None and source.name == "COMMANDLINE"
        if is_given and option.name not in ("command", "url", "key", "key_file"):
            fail(f"{option.opts[0]}: a standing key has its own; only a run has this option")


class _Keeper:
    """Keeps the run of a command from becoming idle, and notes whether the service was away.

    It was away if it did not answer, or if a process opened the run while the command worked: its
    calls may then have failed.
    """

    def __init__(self, client: CaseworkerClient, run_id: str) -> None:
        self.client = client
        self.was_away = False
        self.has_ended = False
        """Whether the run was stopped or this attempt was superseded."""
        self._run_id = run_id
        self._opened_at: Any = None

    def beat(self) -> None:
        """Send a heartbeat."""
        try:
            state = self.client.heartbeat(self._run_id)
        except CaseworkerError as error:
            self.was_away |= _is_away(error)
            self.has_ended |= isinstance(error, ApiError) and error.status == 409
            return
        self.has_ended |= state.status in _STOPPED
        opened_at = state.as_json().get("opened_at")
        self.was_away |= None not in (self._opened_at, opened_at) and opened_at != self._opened_at
        self._opened_at = opened_at or self._opened_at

    def finish(self, code: int, *, is_killed: bool) -> Run:
        """Finish the run by an exit code, unless it stays open; return the run.

        It stays open if the command was killed, or failed while the service was away.

        Raises:
            CaseworkerError: the service is away, or another attempt was opened.
        """
        try:
            if code and (is_killed or self.was_away):
                self.client.heartbeat(self._run_id)
            elif code:
                error = {"class": "ExitCode", "message": f"The command exited with code {code}."}
                self.client.finish_run(self._run_id, error=error)
            else:
                self.client.finish_run(self._run_id, {"exit_code": 0})
        except ApiError as error:
            if error.code != "external-run-ended":
                self.was_away |= _is_away(error)
                raise
        except ServiceUnreachableError:
            self.was_away = True
            raise
        return self.client.get_run(self._run_id)


@dataclass(slots=True)
class _Job:
    """A command that is executed in a run, and again after failures if that is allowed."""

    context: typer.Context
    client: CaseworkerClient
    command: list[str]
    finish_seconds: float
    most_restarts: int
    restarts: int = 0

    def execute(self, body: Mapping[str, Any]) -> None:
        """Create or resume the run of a body, and run the command in it.

        Raises:
            typer.Exit: always, unless the run has completed before.
            CaseworkerError: the service refused the run.
        """
        run = self._created(body)
        while run.access is not None:
            url = self.client.settings.base_url
            page = f"{url}/ui/runs/{quote(run.run_id, safe='')}"
            _say(run, f"attempt {run.attempt} ({page})")
            with CaseworkerClient(url, api_key=run.access.key, retry=_SINGLE_ATTEMPT) as client:
                keeper = _Keeper(client, run.run_id)
                code, is_interrupted = run_command(
                    self.command, _variables(run, run.access, url), keeper
                )
                if code:
                    keeper.beat()
                if is_interrupted or not self._may_restart(keeper, code):
                    self._finish(run, keeper, code, is_interrupted=is_interrupted)
            _say(run, f"starts the command again, which exited with code {code}.")
            run = self._opened_again({**body, "run_id": run.run_id}, run)
        reason = f": {run.stop.reason}" if run.stop and run.stop.reason else ""
        _say(
            run,
            f"has ended ({run.status}{reason}), so the command was not started. Continue it with "
            f"--from {run.run_id}, after a halt with higher limits.",
        )
        end_by(run.status)

    def _created(self, body: Mapping[str, Any]) -> Run:
        try:
            return self.client.create_run(body)
        except ApiError as error:
            if error.code == "run-conflict" and (run_id := body.get("run_id")) is not None:
                fail(
                    f"{explained(error)}\nThis command continues a run only with the options that "
                    f"it began with. To continue run {run_id} with others after its end, use "
                    f"--from {run_id} instead of --run-id {run_id}."
                )
            raise

    def _may_restart(self, keeper: _Keeper, code: int) -> bool:
        """Count a failure, unless the service was away; return whether to restart the command."""
        if not code or keeper.has_ended or not self.most_restarts:
            return False
        self.restarts += not keeper.was_away
        return self.restarts <= self.most_restarts

    def _opened_again(self, body: Mapping[str, Any], run: Run) -> Run:
        """Open the next attempt of a run, once the service answers."""
        try:
            return _patiently(partial(self.client.create_run, body), self.finish_seconds)
        except CaseworkerError as error:
            if not _is_away(error):
                raise
            self._leave_open(run, AWAY)

    def _finish(self, run: Run, keeper: _Keeper, code: int, *, is_interrupted: bool) -> NoReturn:
        """Finish the run once the service answers, and exit."""
        is_killed = 128 < code <= 128 + signal.NSIG or is_interrupted
        finish = partial(keeper.finish, code, is_killed=is_killed)
        try:
            ended = _patiently(finish, self.finish_seconds)
        except CaseworkerError as error:
            if not _is_away(error):
                _say(run, explained(error))
                raise typer.Exit(code or NOT_COMPLETED) from None
            if code == 0:
                line = self._line(["true"], run_id=run.run_id)
                _say(run, f"was not finished. {explained(error)} Then finish it with:\n  {line}")
                raise typer.Exit(0) from None
            self._leave_open(run, code if is_interrupted else AWAY)
        away = bool(code and keeper.was_away and not is_interrupted)
        if not ended.ended:
            self._leave_open(run, AWAY if away else code)
        if ended.status != ("failed" if code else "completed") or away:
            _say(run, f"{ended.status}. {(ended.stop and ended.stop.reason) or ''}")
        if code == 0 or ended.status in _STOPPED:
            end_by(ended.status)
        if away:
            line = self._line(self.command, run_id=None, source=run.run_id)
            _say(run, f"can be resumed with:\n  {line}")
        raise typer.Exit(AWAY if away else code)

    def _leave_open(self, run: Run, code: int) -> NoReturn:
        """Exit with a code, and print the line that resumes the run."""
        line = self._line(self.command, run_id=run.run_id)
        seconds = self.context.params["idle_seconds"] or IDLE_SECONDS
        later = f"After {seconds:g} seconds without a heartbeat it has failed"
        other = f"use --from {run.run_id} instead of --run-id {run.run_id}."
        _say(run, f"is open. Resume it with:\n  {line}\n{later}: then {other}")
        raise typer.Exit(code) from None

    def _line(self, command: list[str], **changed: str | None) -> str:
        """Return the shell line for a command with the options of this one, partly changed."""
        words, context = self.context.command_path.split(), self.context
        for option in context.command.params:
            name = option.name or ""
            source = context.get_parameter_source(name)
            is_given = source is not None and source.name == "COMMANDLINE"
            value = changed[name] if name in changed else is_given and context.params[name]
            if option.param_type_name != "option" or value is None or value is False:
                continue
            for each in value if isinstance(value, list | tuple) else (value,):
                words += [option.opts[0]] if each is True else [option.opts[0], str(each)]
        return shlex.join([*words, "--", *command])


def _variables(run: Run, access: Access, url: str) -> dict[str, str]:
    """Return the environment variables that direct the clients of a command to a run."""
    mcp_url = access.as_json().get("mcp_url")
    return {
        **directed_to(access.openai_base_url, access.anthropic_base_url, access.key, url),
        "CASEWORKER_RUN_KEY": access.key,
        "CASEWORKER_RUN_ID": run.run_id,
    } | ({"CASEWORKER_MCP_URL": mcp_url} if mcp_url else {})


def _is_away(error: CaseworkerError) -> bool:
    """Return whether the service may answer the same request later."""
    if isinstance(error, ApiError):
        return error.status in (502, 503, 504)
    return isinstance(error, ServiceUnreachableError)


def _patiently(send: Callable[[], Run], seconds: float) -> Run:
    """Send a request, and repeat it for some seconds while the service is away.

    Raises:
        CaseworkerError: the error of the last request.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            return send()
        except CaseworkerError as error:
            if not _is_away(error) or time.monotonic() >= until:
                raise
        time.sleep(PAUSE_SECONDS)


def _say(run: Run, text: str) -> None:
    note(f"caseworker: run {run.run_id} {text}".rstrip())
