"""CLI commands that run agents and send messages in threads."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from caseworker_client import CaseworkerClient, StreamedText

from caseworker.cli.budget_options import with_budget
from caseworker.cli.output import AsJson, fail, out, show, show_json, startup_errors
from caseworker.cli.runs import ChosenId, Wait, post, read_json
from caseworker.cli.service import Url, end_by, talk
from caseworker.main.commands import read_agent

cli = typer.Typer()
agent_cli = typer.Typer(no_args_is_help=True, help="Run agents.")
thread_cli = typer.Typer(no_args_is_help=True, help="Run agents and chat with them in threads.")
cli.add_typer(agent_cli, name="agent")
cli.add_typer(thread_cli, name="thread")

ThreadId = Annotated[str, typer.Argument(help="The thread.")]
_AGENT_HELP = "Registered agent (NAME or NAME@VERSION), or a YAML or JSON file that defines one."
_SUFFIXES = (".yaml", ".yml", ".json")


@agent_cli.command("run")
@with_budget
def run_agent(
    agent: Annotated[str, typer.Argument(help=_AGENT_HELP)],
    text: Annotated[str | None, typer.Argument(help="Input for the agent.")] = None,
    *,
    budget: Mapping[str, float],
    inputs: Annotated[
        str | None, typer.Option(help="Values of the agent's variables, as a JSON object.")
    ] = None,
    url: Url = None,
    wait: Wait = 30,
    run_id: ChosenId = None,
    as_json: AsJson = False,
) -> None:
    """Run an agent and print its answer."""
    body: dict[str, Any] = {"kind": "agent", "agent": _agent(agent)}
    if text is not None:
        body["input"] = text
    if inputs is not None:
        body["inputs"] = read_json(inputs, "value of --inputs")
    post(body, url, wait=wait, run_id=run_id, budget=budget, as_json=as_json)


@thread_cli.command()
def say(
    thread_id: ThreadId,
    text: Annotated[str, typer.Argument(help="Message text.")],
    agent: Annotated[
        str | None, typer.Option(help=f"Agent for a new thread. {_AGENT_HELP}")
    ] = None,
    url: Url = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the events of the answer, one per line.")
    ] = False,
) -> None:
    """Send a message in a thread and print the answer as it is streamed."""
    answering = None if agent is None else _agent(agent)

    def ask(client: CaseworkerClient) -> None:
        if answering is not None:
            client.create_thread(thread_id=thread_id, agent=answering)
        written, status, run_id = StreamedText(), "", ""
        for event in client.stream_message(thread_id, text):
            before, run_id = written.content, event.run_id
            if as_json:
                show(json.dumps(event.as_json()))
            elif written.add(event):
                _show_piece(before, written.content)
            if event.ends:
                status = event.type.removeprefix("run.")
        if as_json:
            end_by(status)
            return
        if not written.content:
            answers = client.list_messages(thread_id)
            said = next((one.content for one in answers if one.run_id == run_id), None)
            out.print(said or "", markup=False, end="")
        out.print()
        if status != "completed":
            show(f"status  {status}\nrun     {run_id}")
        end_by(status)

    talk(url, ask)


@thread_cli.command("show")
def show_thread(thread_id: ThreadId, url: Url = None, as_json: AsJson = False) -> None:
    """Print the newest branch of a thread."""

    def ask(client: CaseworkerClient) -> None:
        messages = client.list_messages(thread_id)
        if as_json:
            show_json([message.as_json() for message in messages])
            return
        for message in messages:
            show(f"{message.role:9}  {message.content or f'({message.status})'}")

    talk(url, ask)


def _agent(given: str) -> dict[str, Any]:
    """Return the agent defined in a file, or a reference to a registered agent."""
    path = Path(given)
    if path.suffix in _SUFFIXES or "/" in given:
        if not path.exists():
            fail(
                f"File not found: {given!r}. Write a registered agent without a directory or "
                "file extension."
            )
        with startup_errors():
            return read_agent(path)
    name, _, version = given.partition("@")
    if not version:
        return {"name": name}
    if not version.isdecimal():
        fail(f"{given}: the version must be a number, such as {name}@2.")
    return {"name": name, "version": int(version)}


def _show_piece(before: str, now: str) -> None:
    """Print the text added since ``before``; if the text was restarted, print it on a new line."""
    goes_on = now.startswith(before)
    out.print(now[len(before) :] if goes_on else f"\n{now}", markup=False, end="")
