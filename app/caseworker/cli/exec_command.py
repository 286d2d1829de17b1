"""Command that runs a program as an external run."""

import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
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
from caseworker.cli.model_options import MODEL_NAMES, models_of
from caseworker.cli.output import fail
from caseworker.cli.runs import ChosenId
from caseworker.cli.service import NOT_COMPLETED, Url, connected, end_by, explained
from caseworker.cli.streams import note

cli = typer.Typer()

HEARTBEAT_SECONDS: Final = 5.0
GRACE_SECONDS: Final = 10.0
"""Seconds between SIGTERM and SIGKILL, if the service has stopped the run."""
FINISH_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.5
"""Seconds between two requests to a service that is away."""
IDLE_SECONDS: Final = 600
"""Default of ``--idle-seconds``, which the service applies."""
AWAY: Final = 75
"""Exit code (``EX_TEMPFAIL``) after a command failed because the service was away."""
_SINGLE_ATTEMPT: Final = RetryPolicy(attempts=1)
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
) -> None:
    """Run a program whose model calls go through the service.

    The program is an external run.

    Exits with the command's code (128 + N after signal N), 3 if the run was halted, 4 if cancelled,
    and 75 if the command failed while the service was away. Its run is then open.
    """
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
                code, is_interrupted = _run_command(
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
        **dict.fromkeys(_OPENAI, access.openai_base_url),
        **dict.fromkeys(_ANTHROPIC, access.anthropic_base_url),
        **dict.fromkeys(_KEYS, access.key),
        "CASEWORKER_URL": url,
        "CASEWORKER_RUN_ID": run.run_id,
    } | ({"CASEWORKER_MCP_URL": mcp_url} if mcp_url else {})


def _run_command(
    command: list[str], variables: Mapping[str, str], keeper: _Keeper
) -> tuple[int, bool]:
    """Run a command until it exits; return its code, and whether a signal was to end it.

    The command stays in this process group, so the terminal treats both as one job.
    """
    import psutil

    with _signal_numbers() as numbers:
        try:
            process = subprocess.Popen(command, env={**os.environ, **variables})  # noqa: S603
        except OSError as error:
            fail(f"{command[0]}: {error.strerror}")
        running, exited, is_interrupted = psutil.Process(process.pid), threading.Event(), False
        watched = _end_with_this_process(running)
        thread = threading.Thread(target=_keep, args=(keeper, running, exited))
        thread.start()
        while (code := process.poll()) is None:
            for number in os.read(numbers, 64):
                is_interrupted |= number in _FORWARDED
                if number in _TYPED and _is_foreground():
                    continue
                if number in _FORWARDED:
                    process.send_signal(number)
        os.close(watched)
        exited.set()
        thread.join()
    return 128 - code if code < 0 else code, is_interrupted


@contextmanager
def _signal_numbers() -> Iterator[int]:
    """Return a file descriptor on which the numbers of signals arrive, a byte for each.

    They are SIGCHLD and the signals to forward, unless they are ignored. A handler in Python would
    wait for the end of a blocking call that begins just after its signal; a read returns.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    before = {
        number: signal.signal(number, lambda *_: None)
        for number in (*_FORWARDED, signal.SIGCHLD)
        if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield reading
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        os.close(reading)
        os.close(writing)


def _end_with_this_process(command: Any) -> int:
    """Fork a process that ends the command and its descendants when this process ends.

    This process may be killed, and could then not end them itself. Returns a file descriptor;
    closing it ends the forked process. It has its own session, so that a signal to the process
    group of the command does not reach it. Only a process with one thread may call this.
    """
    reading, writing = os.pipe()
    forked = os.fork()
    if forked:
        os.close(reading)
        os.waitpid(forked, 0)
        return writing
    try:
        if os.fork():  # the second process is not a child of this one, which reaps only the command
            os._exit(0)
        os.setsid()
        os.dup2(reading, 0)
        for descriptor in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.read(0, 1)
        _kill(command, threading.Event())
    finally:
        os._exit(0)


def _keep(keeper: _Keeper, command: Any, exited: threading.Event) -> None:
    """Send heartbeats until the command exits; end it after a stop or in a superseded attempt."""
    keeper.beat()
    while not keeper.has_ended:
        if exited.wait(HEARTBEAT_SECONDS):
            return
        keeper.beat()
    if not exited.is_set():
        _kill(command, exited)


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


def _kill(top: Any, exited: threading.Event) -> None:
    """Terminate a process and its descendants; kill those that remain after a grace period.

    ``top`` is a ``psutil.Process``.
    """
    import psutil

    with suppress(psutil.Error):
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
    note(f"caseworker: run {run.run_id} {text}".rstrip())
