"""Commands that show a run: live while it executes, or call by call afterwards."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from threading import Lock
from typing import Annotated, cast

import typer
from caseworker_client import Event
from rich.live import Live
from rich.tree import Tree

from caseworker.cli.output import AsJson, PrintableConsole, json_of, out, show, show_json
from caseworker.cli.run_tree import RunTree
from caseworker.cli.runs import show_end, show_spent
from caseworker.cli.service import RunId, Url, connected, end_by
from caseworker.cli.timeline import MAX_CALLS, print_timeline
from caseworker.core.trace.snapshot import Snapshot

cli = typer.Typer()

EventsAsJson = Annotated[bool, typer.Option("--json", help="Print one event per line as JSON.")]
_DRAWN_A_SECOND = 8


@cli.command()
def events(
    run_id: RunId,
    url: Url = None,
    after: Annotated[
        int, typer.Option(min=0, help="Start after the event with this sequence number.")
    ] = 0,
    as_json: EventsAsJson = False,
) -> None:
    """Print the events of a run until it ends."""
    with connected(url) as client:
        for event in client.stream_events(run_id, after=after):
            fields = event.as_json()
            if as_json:
                show(json_of(fields))
                continue
            details = json.dumps(event.data) if event.data else ""
            words = (f"{event.seq:4}", fields["ts"], event.type, event.step_id, details)
            show("  ".join(word for word in words if word))


@cli.command()
def watch(
    run_id: RunId,
    url: Url = None,
    as_json: EventsAsJson = False,
) -> None:
    """Show a run live as a tree, or line by line without a terminal.

    Reconnects if the connection is lost. Exits with 0 if the run completed, 1 if it failed, 3 if it
    was halted, 4 if it was cancelled.
    """
    with connected(url) as client:
        run = client.get_run(run_id)
        stream = client.stream_events(run_id)
        if as_json:
            for event in stream:
                show(json_of(event.as_json()))
            end_by(client.get_run(run_id).status)
            return
        tree = RunTree(run_id, kind=run.kind, status=run.status)
        if out.is_terminal:
            _draw(tree, stream)
        else:
            for event in stream:
                if (line := tree.tell(event)) is not None:
                    show(line)
        ended = client.get_run(run_id)
        show_end(ended)
        show_spent(ended)
        end_by(ended.status)


@cli.command()
def trace(
    run_id: RunId,
    url: Url = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Print an explanation as text, with requests, replies and costs."
        ),
    ] = False,
    max_calls: Annotated[
        int, typer.Option(min=1, help="Maximum number of calls to show.")
    ] = MAX_CALLS,
    as_json: AsJson = False,
) -> None:
    """Show the calls of a run as a tree with a timeline.

    An asterisk marks the calls on the critical path.
    """
    with connected(url) as client:
        if as_json:
            show_json(client.get_trace(run_id).as_json())
        elif explain:
            show(client.explain_run(run_id))
        else:
            run = client.get_run(run_id)
            snapshot = cast("Snapshot", client.get_trace(run_id).snapshot)
            show(f"run     {run_id}\nstatus  {run.status}")
            show_spent(run)
            print_timeline(snapshot, status=run.status, max_calls=max_calls)


def _draw(tree: RunTree, events: Iterator[Event]) -> None:
    """Redraw the tree until the event stream ends."""
    console, lock = PrintableConsole(highlight=False), Lock()

    def now() -> Tree:
        with lock:
            return tree.draw(datetime.now(UTC), height=console.height)

    with Live(get_renderable=now, console=console, refresh_per_second=_DRAWN_A_SECOND):
        for event in events:
            with lock:
                tree.tell(event)
