"""Runs a command with a standing key, and reports the amount that the key spent during it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

import typer
from caseworker_client import CaseworkerClient, CaseworkerError, KeyUsage

from caseworker.cli.command_process import run_command
from caseworker.cli.output import fail
from caseworker.cli.service import BASE_PATHS, connected, explained
from caseworker.cli.streams import note
from caseworker.features.access.agent_keys import AGENT_FORM, AGENT_PREFIX
from caseworker.main.service_address import STANDING_KEY

HALTED: Final = 3
_OPENAI: Final = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
_ANTHROPIC: Final = ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE", "ANTHROPIC_API_URL")
"""Base URLs. LangChain and LiteLLM prefer the older names, if they are set."""
_KEYS: Final = (
    *("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CASEWORKER_API_KEY"),
)


def directed_to(openai_url: str, anthropic_url: str, key: str, url: str) -> dict[str, str]:
    """Return the environment variables that direct clients to the gateway with a key."""
    return {
        **dict.fromkeys(_OPENAI, openai_url),
        **dict.fromkeys(_ANTHROPIC, anthropic_url),
        **dict.fromkeys(_KEYS, key),
        "CASEWORKER_URL": url,
    }


@contextmanager
def standing_client(
    url: str | None, key_file: Path | None, command: list[str]
) -> Iterator[CaseworkerClient]:
    """Connect to the service with the standing key in the environment or in a file.

    The key is not an argument, because all users of a machine can read the arguments of processes.
    """
    if command[0].startswith(AGENT_PREFIX):
        fail(
            "--key: other users of this machine can read a key on the command line. Set "
            f"{STANDING_KEY}, or use --key-file."
        )
    if shutil.which(command[0]) is None:
        note(f"{command[0]}: command not found")
        raise typer.Exit(127)
    if key_file is not None:
        try:
            os.environ[STANDING_KEY] = key_file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            fail(f"--key-file: {error}")
    with connected(url, STANDING_KEY) as client:
        if AGENT_FORM.fullmatch(_key_of(client)) is None:
            fail(
                f"{STANDING_KEY} must have a standing key (cwa_...) from the same source as the "
                "URL. `caseworker keys create --agent` creates one."
            )
        yield client


def _key_of(client: CaseworkerClient) -> str:
    return client.settings.headers.get("Authorization", "").removeprefix("Bearer ")


def execute_with_key(client: CaseworkerClient, command: list[str]) -> NoReturn:
    """Run a command with a standing key; print the amount that the key spent during it.

    Raises:
        typer.Exit: with the code of the command, or 3 if a limit has halted a session.
        CaseworkerError: the service did not answer before the command.
    """
    before, url = client.key_usage(), client.settings.base_url.rstrip("/")
    if before.refusal is not None:
        note(f"caseworker: calls without a session are refused. {before.refusal.message}")
    openai_url, anthropic_url = (url + path for path in BASE_PATHS.values())
    code, _ = run_command(command, directed_to(openai_url, anthropic_url, _key_of(client), url))
    try:
        usage = client.key_usage(since=before.at)
    except CaseworkerError as error:
        note(f"caseworker: the amount spent is unknown. {explained(error)}")
        raise typer.Exit(code) from None
    note(f"caseworker: key {usage.key_id} spent {_difference(usage, before)}.")
    if (halt := usage.halted or (code and usage.refusal)) is not None and halt:
        note(f"caseworker: halted. {halt.message}")
        raise typer.Exit(HALTED)
    raise typer.Exit(code)


def _difference(usage: KeyUsage, before: KeyUsage) -> str:
    """Return the text for the amounts that were spent between two times."""
    cost_usd = max(0.0, usage.cost_usd - before.cost_usd)
    calls, tokens = usage.llm_calls - before.llm_calls, usage.tokens - before.tokens
    return f"${cost_usd:.6f} in {calls} model calls with {tokens} tokens"
