"""Commands for threads, in which agents chat."""

from typing import Annotated, Any

import typer

from caseworker.cli.agents import AGENT_HELP, agent_argument
from caseworker.cli.output import AsJson, json_of, out, show, show_json
from caseworker.cli.runs import note_approval, show_end
from caseworker.cli.service import Event, Url, add_action, add_list, connected, end_by

cli = typer.Typer(no_args_is_help=True, help="Chat with agents in threads.")

ThreadId = Annotated[str, typer.Argument(help="The thread.")]

_TEXT = "Delete a thread and its messages, not its runs."
add_action(cli, "delete", _TEXT, "delete_thread", "Deleted thread {id}.")
add_list(cli, "threads", "thread_id created_at title metadata", "List threads, newest first.")


@cli.command("show")
def show_thread(thread_id: ThreadId, url: Url = None, as_json: AsJson = False) -> None:
    """Print the newest branch of a thread."""
    with connected(url) as client:
        messages = client.list_messages(thread_id)
        if as_json:
            show_json([message.as_json() for message in messages])
            return
        for message in messages:
            show(f"{message.role:9}  {message.content or f'({message.status})'}")


@cli.command("create")
def create_thread_command(
    agent: Annotated[str, typer.Argument(help=AGENT_HELP)],
    thread_id: Annotated[
        str | None, typer.Option("--id", help="ID of the thread (default: generated).")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the thread.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Create a thread in which an agent answers, and print its ID."""
    options = {"thread_id": thread_id, "title": title}
    fields: Any = {name: value for name, value in options.items() if value is not None}
    with connected(url) as client:
        thread = client.create_thread(agent=agent_argument(agent), **fields)
        if as_json:
            show_json(thread.as_json())
        else:
            show(thread.thread_id)


@cli.command("say", hidden=True)
@cli.command()
def send(
    thread_id: ThreadId,
    text: Annotated[str, typer.Argument(help="Message text.")],
    agent: Annotated[str | None, typer.Option(help=f"Agent for a new thread. {AGENT_HELP}")] = None,
    url: Url = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the events of the answer, one per line.")
    ] = False,
) -> None:
    """Send a message and print the answer as it is streamed."""
    answering = None if agent is None else agent_argument(agent)
    with connected(url) as client:
        from caseworker_client import StreamedText

        if answering is not None:
            client.create_thread(thread_id=thread_id, agent=answering)
        written, status, run_id = StreamedText(), "", ""
        for event in client.stream_message(thread_id, text):
            run_id = event.run_id
            if as_json:
                show(json_of(event.as_json()))
            else:
                _show_event(written, event)
            if event.ends:
                status = event.type.removeprefix("run.")
        if not as_json:
            if not written.content:
                answers = client.list_messages(thread_id)
                answer = next((one.content for one in answers if one.run_id == run_id), None)
                out.print(answer or "", markup=False, end="")
            out.print()
            if status != "completed":
                show_end(client.get_run(run_id))
        end_by(status)


def _show_event(written: Any, event: Event) -> None:
    """Print the text that an event adds to a ``StreamedText``, or explain the approval request."""
    before = written.content
    if written.add(event):
        _show_piece(before, written.content)
    elif event.type == "approval.requested":
        approval_id, subject = event.data.get("approval_id"), event.data.get("subject")
        note_approval(event.run_id, str(approval_id), str(subject))


def _show_piece(before: str, now: str) -> None:
    """Print the text added since ``before``; if the text was restarted, print it on a new line."""
    is_continuation = now.startswith(before)
    out.print(now[len(before) :] if is_continuation else f"\n{now}", markup=False, end="")
