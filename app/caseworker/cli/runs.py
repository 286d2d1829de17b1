"""CLI commands that run cases, list and cancel runs, and decide approvals."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Signature, signature
from typing import Annotated, Any, Final

import typer

from caseworker.cli.budget_options import with_budget
from caseworker.cli.output import (
    AsJson,
    fail,
    json_argument,
    json_of,
    show,
    show_json,
    show_table,
)
from caseworker.cli.service import (
    CaseworkerClient,
    Run,
    RunId,
    RunSummary,
    Url,
    complete_run_id,
    connected,
    end_by,
)
from caseworker.cli.streams import note
from caseworker.core.trace.plain_text import counted, dollars_text, duration, plain

cli = typer.Typer()

Wait = Annotated[int, typer.Option(min=0, help="Seconds to wait until the run ends.")]
ChosenId = Annotated[
    str | None, typer.Option("--run-id", help="ID for the run (default: generated).")
]


def post(
    body: Mapping[str, Any],
    *,
    budget: Mapping[str, float],
    url: Url = None,
    wait: Wait = 30,
    run_id: ChosenId = None,
    as_json: AsJson = False,
) -> None:
    """Submit a run, wait for it and print its result.

    ``body`` is the request body without ``run_id`` and ``budget``. ``wait`` is in seconds. The exit
    code depends on the run's status.
    """
    identity = {} if run_id is None else {"run_id": run_id}
    limits = {"budget": dict(budget)} if budget else {}
    until = time.monotonic() + wait
    with connected(url) as client:
        posted = client.create_run({**body, **identity, **limits}, wait_seconds=wait)
        posted = _waited_for(client, posted, until)
        if as_json:
            show_json(posted.as_json())
        else:
            show_end(posted)
        if not posted.ended:
            note_open(client, posted)
        end_by(posted.status)


_SUBMISSION: Final = list(signature(post).parameters.values())[2:]
"""The options of each command that submits a run, next to its limits."""


def submits_run(body_of: Callable[..., Mapping[str, Any]]) -> Callable[..., None]:
    """Turn a function that returns the body of a run into a command, which submits the run."""

    @wraps(body_of)
    def command(*, budget: Mapping[str, float], **arguments: Any) -> None:
        options = {each.name: arguments.pop(each.name) for each in _SUBMISSION}
        post(body_of(**arguments), budget=budget, **options)

    parameters = [*signature(body_of).parameters.values(), *_SUBMISSION]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return with_budget(command)


@cli.command()
@submits_run
def run(text: Annotated[str, typer.Argument(help="The question.")]) -> Mapping[str, Any]:
    """Submit a case and print its answer."""
    return {"input": text}


@cli.command("runs")
def list_runs_command(
    url: Url = None,
    status: Annotated[str | None, typer.Option(help="Filter by status.")] = None,
    kind: Annotated[
        str | None, typer.Option(help="Filter by kind: case, graph, agent or external.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Filter by name of the agent.")] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(help="Filter by metadata KEY=VALUE. Repeatable; all must match."),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=200, help="Maximum number of runs to list.")
    ] = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, newest first."""
    filters = _pairs(metadata)
    with connected(url) as client:
        page = client.list_runs(
            status=status, kind=kind, agent=agent, metadata=filters, limit=limit
        )
        if as_json:
            show_json(page.as_json())
            return
        rows = [{**run.as_json(), **_took_and_cost(run)} for run in page.runs]
        show_table(rows, "created_at kind status took cost run_id")


def _pairs(options: list[str] | None) -> dict[str, str]:
    """Return the values of ``--metadata KEY=VALUE`` by key."""
    filters: dict[str, str] = {}
    for pair in options or ():
        key, sign, value = pair.partition("=")
        if not (key and sign):
            fail(f"--metadata {pair}: must be KEY=VALUE.")
        if key in filters:
            fail(f"--metadata {pair}: {key} is given twice; all filters must match.")
        filters[key] = value
    return filters


@cli.command("erase")
def erase_command(
    url: Url = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(help="Erase data with metadata KEY=VALUE. Repeatable; all must match."),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            help="Erase all data of this tenant, or only its data with the metadata."
            " Requires the bootstrap key."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase all data with certain metadata, or of a tenant.

    Cancels its runs, waits until they have ended, and erases them with their threads, schedules and
    files. Nothing can be restored.
    """
    filters = _pairs(metadata)
    if not (filters or tenant):
        fail("Name the data to erase: --metadata KEY=VALUE, --tenant NAME or both.")
    if not yes:
        _confirm_erasing(filters, tenant)
    with connected(url) as client:
        erased = _erased(client, filters, tenant)
    if as_json:
        show_json({**erased, "complete": True})
    else:
        texts = (counted(number, name.removesuffix("s")) for name, number in erased.items())
        show(f"Erased {', '.join(texts)}.")
        if not any(erased.values()):
            note("There was no run, thread or schedule to erase.")


def _confirm_erasing(filters: Mapping[str, str], tenant: str | None) -> None:
    """Ask on the terminal; exit unless the answer is yes."""
    about = [f"{key}={value}" for key, value in filters.items()] or ["everything"]
    about.append(f"of tenant {tenant}" if tenant else "of the tenant of the key")
    try:
        question = f"Erase {' '.join(about)}? It cannot be restored."
        confirmed = typer.confirm(question, err=True)
    except typer.Abort:
        fail("Nothing was erased. Without a terminal, add --yes.")
    if not confirmed:
        fail("Nothing was erased.")


def _erased(
    client: CaseworkerClient, filters: Mapping[str, str], tenant: str | None
) -> Mapping[str, int]:
    """Erase data until all of it is erased; return the number of erased records by type."""
    erased = Counter(runs=0, threads=0, schedules=0)
    while True:
        part = client.erase_data(metadata=filters or None, tenant=tenant)
        erased.update({name: getattr(part, name) for name in erased})
        if part.complete:
            return erased
        typer.echo(f"Not complete yet; {counted(part.waiting, 'run')} must end.", err=True)


@cli.command()
def cancel(
    run_id: Annotated[
        str,
        typer.Argument(
            help="ID of the run. The run may not exist yet.", autocompletion=complete_run_id
        ),
    ],
    url: Url = None,
    reason: Annotated[str | None, typer.Option(help="Reason, stored with the run.")] = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a run, including a run that does not exist yet.

    --json prints the full receipt.
    """
    with connected(url) as client:
        receipt = client.cancel_run(run_id, reason=reason)
        if as_json:
            show_json(receipt.as_json())
        elif receipt.already_finished:
            show(f"The run has already ended: {receipt.status}.")
        elif receipt.status is None:
            show("No run has this ID yet. It will be cancelled when it is created.")
        elif receipt.status == "cancelled":
            show("The run was cancelled.")
        else:
            show(f"Cancelling the run (status {receipt.status}). No new calls start.")


@cli.command("approvals")
def list_approvals_command(
    run_id: Annotated[
        str | None,
        typer.Argument(help="List only the approvals of this run.", autocompletion=complete_run_id),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List pending approvals.

    With a run and --json, print all approvals of the run.
    """
    with connected(url) as client:
        page = client.list_approvals(run_id)
        if as_json:
            show_json(page.as_json())
            return
        pending = [each.as_json() for each in page.approvals if each.open]
        show_table(pending, "run_id approval_id subject arguments")


@cli.command()
def approve(
    run_id: RunId,
    approval_id: Annotated[str, typer.Argument(help="The approval.")],
    url: Url = None,
    refuse: Annotated[bool, typer.Option("--refuse", help="Refuse the approval.")] = False,
    arguments: Annotated[
        str | None, typer.Option(help="Changed arguments, as a JSON object.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Reason, stored with the run.")] = None,
    as_json: AsJson = False,
) -> None:
    """Approve or refuse a pending approval of a run."""
    changed = None if arguments is None else json_argument(arguments, "--arguments")
    with connected(url) as client:
        if refuse:
            decided = client.refuse(run_id, approval_id, reason=reason)
        else:
            decided = client.approve(run_id, approval_id, arguments=changed, reason=reason)
        if as_json:
            show_json(decided.as_json())
        elif decided.decision is not None:
            show(f"{decided.subject} of run {run_id}: {decided.decision.decision}.")


def _waited_for(client: CaseworkerClient, run: Run, until: float) -> Run:
    """Wait for a run until a monotonic time; a service that restarts ends its own wait early."""
    from caseworker_client import WaitTimeoutError

    remaining = until - time.monotonic()
    if run.ended or run.status == "waiting" or remaining <= 0:
        return run
    try:
        return client.wait_for_run(run.run_id, timeout_seconds=remaining)
    except WaitTimeoutError as error:
        return error.run


def note_open(client: CaseworkerClient, run: RunSummary) -> None:
    """Explain on standard error how to continue with a run that has not ended."""
    pending = [each for each in client.list_approvals(run.run_id).approvals if each.open]
    for each in pending:
        note_approval(run.run_id, each.approval_id, each.subject)
    required = client.get_run(run.run_id).required_action
    for call in [] if required is None else required.calls:
        if call.author == "client":
            note_call(run.run_id, call.call_id, call.name, call.arguments)
    note(f"The run has not ended. `caseworker watch {run.run_id}` shows it until its end.")


def note_approval(run_id: str, approval_id: str, subject: str) -> None:
    """Explain on standard error that a run waits for an approval, and how to decide it."""
    note(
        f"The run waits for an approval of {plain(subject)}. Decide it with\n"
        f"  caseworker approve {run_id} {approval_id}\n"
        f"  caseworker approve {run_id} {approval_id} --refuse"
    )


def note_call(run_id: str, call_id: str, name: str, arguments: Any) -> None:
    """Explain on standard error that a run waits for a tool of its client, and how to answer."""
    note(
        f"The run waits for its client to execute {plain(name)} with {plain(json_of(arguments))}. "
        f"Answer with\n  POST /runs/{run_id}/calls/{call_id}/result "
        '{"output": …} or {"error": {"message": …}}'
    )


def show_end(run: Run) -> None:
    """Print the status and the result of an ended run, or the reason why it stopped."""
    result = {} if run.result is None else run.result.as_json()
    show(f"run     {run.run_id}\nstatus  {run.status}")
    answer = result.get("answer", result.get("output"))
    if answer is None:
        answer = result.get("raw_content") or None
    if answer is not None:
        show(f"answer  {answer if isinstance(answer, str) else json.dumps(answer)}")
    elif run.stop is not None and run.stop.reason:
        show(f"reason  {run.stop.reason}")
    for step_id, outputs in result.get("outputs", {}).items():
        show(f"output  {step_id}: {json.dumps(outputs, ensure_ascii=False)}")


def show_spent(run: RunSummary) -> None:
    """Print one line with cost, tokens and calls of a run; nothing if its usage is unknown."""
    if (used := run.usage) is not None:
        calls = used.llm_calls_small + used.llm_calls_big
        counts = (counted(calls, "LLM call"), counted(used.tool_calls, "tool call"))
        tokens = counted(used.tokens, "token")
        show(f"spent   {', '.join((dollars_text(used.cost_usd), tokens, *counts))}")


def _took_and_cost(run: RunSummary) -> dict[str, str | None]:
    took = None
    if run.started_at and run.finished_at:
        took = duration(max(round((run.finished_at - run.started_at).total_seconds() * 1000), 0))
    return {"took": took, "cost": None if run.usage is None else dollars_text(run.usage.cost_usd)}
