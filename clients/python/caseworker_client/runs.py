"""Operations on runs: create, wait, list, cancel, and look at what they did."""

import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypedDict, Unpack
from urllib.parse import quote

from caseworker_client.errors import CaseworkerError, WaitTimeoutError
from caseworker_client.events import LAST_SEQ, SILENCE_SECONDS, stream_request
from caseworker_client.flow import Emit, Feed, Flow, ReadChunk, Request, Sleep, ask, fetch
from caseworker_client.models import (
    AgentRun,
    Approval,
    ApprovalList,
    Artifact,
    ArtifactList,
    Call,
    CancelledRuns,
    CancelReceipt,
    CaseRun,
    GraphRun,
    Run,
    RunList,
    RunSummary,
    Trace,
)
from caseworker_client.settings import Patience, Settings


class RunFields(TypedDict, total=False):
    """What every run may be given."""

    run_id: str
    """Names the run; left out, the service makes an id up."""
    budget: Mapping[str, float | None]
    """Such as ``{"max_seconds": 30, "max_cost_usd": 0.05}``."""
    deadline: str
    """An instant (RFC 3339) after which it is stopped."""
    start_at: str
    """An instant (RFC 3339) before which it is not begun."""
    seed: int
    metadata: Mapping[str, Any]
    """Comes back with the run."""
    webhook: Mapping[str, Any]
    """Who is told when it ends: ``{"url", "events"?}``."""


class CaseFields(RunFields, total=False):
    """What a case may be given."""

    mode: str
    expected_tools: Sequence[str]
    gold_answer: str
    timezone: str


def create_run(
    settings: Settings,
    body: Mapping[str, Any],
    *,
    wait_seconds: float = 0,
    idempotency_key: str | None = None,
) -> Flow[Run]:
    """Post a run as the API takes it; wait for its end for up to ``wait_seconds``.

    A body without ``run_id`` is sent with an idempotency key, made up unless one is given, so that
    a lost answer can be asked for again and never makes a second run. The service limits the wait
    (to 60 seconds unless it is configured otherwise); the run may go on behind it.
    """
    request = posting(settings, "/runs", body, wait_seconds, idempotency_key)
    return (yield from fetch(settings, request, Run))


def posting(
    settings: Settings,
    path: str,
    body: Mapping[str, Any],
    wait_seconds: float = 0,
    idempotency_key: str | None = None,
) -> Request:
    """Return a request that makes a run, and only one however often it is made."""
    if idempotency_key is None and "run_id" not in body and settings.retry.attempts > 1:
        idempotency_key = str(uuid.uuid4())
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    if wait_seconds > 0:
        headers["Prefer"] = f"wait={math.ceil(wait_seconds)}"
    return Request(
        method="POST",
        path=path,
        json=dict(body),
        headers=headers,
        timeout_seconds=settings.timeout_seconds + wait_seconds,
        repeatable=idempotency_key is not None or "run_id" in body,
    )


def run_case(
    settings: Settings,
    input: str,  # noqa: A002 - the name of the field
    *,
    wait_seconds: float = 0,
    idempotency_key: str | None = None,
    **fields: Unpack[CaseFields],
) -> Flow[CaseRun]:
    """Post a case: a question that is answered with tools and verified."""
    body = {"input": input, **fields}
    request = posting(settings, "/runs", body, wait_seconds, idempotency_key)
    return (yield from fetch(settings, request, CaseRun))


def run_graph(
    settings: Settings,
    graph: str | Mapping[str, Any],
    *,
    inputs: Mapping[str, Any] | None = None,
    wait_seconds: float = 0,
    idempotency_key: str | None = None,
    **fields: Unpack[RunFields],
) -> Flow[GraphRun]:
    """Post a run of a graph, given itself or as ``"name"`` or ``"name@version"``."""
    body = {"kind": "graph", "graph": _definition(graph), "inputs": dict(inputs or {}), **fields}
    request = posting(settings, "/runs", body, wait_seconds, idempotency_key)
    return (yield from fetch(settings, request, GraphRun))


def run_agent(
    settings: Settings,
    agent: str | Mapping[str, Any],
    input: str | None = None,  # noqa: A002 - the name of the field
    *,
    messages: Sequence[Mapping[str, Any]] | None = None,
    inputs: Mapping[str, Any] | None = None,
    wait_seconds: float = 0,
    idempotency_key: str | None = None,
    **fields: Unpack[RunFields],
) -> Flow[AgentRun]:
    """Post a run of an agent, given itself or as ``"name"`` or ``"name@version"``.

    It is told ``input`` or ``messages``; ``inputs`` are the variables of its prompt.
    """
    told = {"input": input, "messages": messages, "inputs": inputs}
    body = {
        "kind": "agent",
        "agent": _definition(agent),
        **{name: value for name, value in told.items() if value is not None},
        **fields,
    }
    request = posting(settings, "/runs", body, wait_seconds, idempotency_key)
    return (yield from fetch(settings, request, AgentRun))


def _definition(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return a definition or the reference to a registered one, as the API takes it."""
    if not isinstance(given, str):
        return dict(given)
    name, at, version = given.partition("@")
    if not at:
        return {"name": name}
    return {"name": name, "version": int(version) if version.isdecimal() else version}


def get_run(settings: Settings, run_id: str) -> Flow[Run]:
    """Return a run: its state, its result and what it has spent."""
    return (yield from fetch(settings, _get(run_id), Run))


def wait_for_run(
    settings: Settings, run_id: str, *, timeout_seconds: float | None = None
) -> Flow[Run]:
    """Return a run once it has ended, also if the service is restarted meanwhile.

    The service is not polled: it keeps an empty stream open, and ends it when the run ends.

    Raises:
        WaitTimeoutError: it has not ended within ``timeout_seconds``; it goes on.
    """
    until = math.inf if timeout_seconds is None else time.monotonic() + timeout_seconds
    patience = Patience(settings.retry, begun=True)
    while True:
        asked_at = time.monotonic()
        run = yield from fetch(settings, _get(run_id), Run, patience)
        if run.ended:
            return run
        left = until - time.monotonic()
        if timeout_seconds is not None and left <= 0:
            raise WaitTimeoutError(run, timeout_seconds)
        yield from _end_of_stream(settings, run_id, until)
        if time.monotonic() - asked_at < 1:  # the service closes, or something cuts streams off
            yield Sleep(min(patience.pause(), max(until - time.monotonic(), 0)))
        else:
            patience.progressed()


def _end_of_stream(settings: Settings, run_id: str, until: float) -> Flow[None]:
    """Wait until the service closes a stream that begins behind all events, or until ``until``."""
    silence = min(SILENCE_SECONDS, max(until - time.monotonic(), 0.001))
    request = stream_request(run_id, LAST_SEQ, timeout_seconds=silence)
    once = Patience(replace(settings.retry, attempts=1))
    try:
        yield from ask(settings, request, once, stream=True)
    except CaseworkerError:
        return  # the next question about the run meets it too, unless it passes
    while (yield ReadChunk()) is not None:
        if until - time.monotonic() < silence < SILENCE_SECONDS:
            return  # the time limit of the next read would be too long


def list_runs(
    settings: Settings,
    *,
    status: str | None = None,
    kind: str | None = None,
    agent: str | None = None,
    thread_id: str | None = None,
    metadata: Mapping[str, str] | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Flow[RunList]:
    """Return a page of runs, newest first, without their results.

    ``agent`` is the name of a registered agent, also of one that answers in threads; ``metadata``
    are values that a run must have.
    """
    chosen = {
        "status": status,
        "kind": kind,
        "agent": agent,
        "thread_id": thread_id,
        **{f"metadata.{name}": value for name, value in (metadata or {}).items()},
        "created_after": None if created_after is None else created_after.isoformat(),
        "created_before": None if created_before is None else created_before.isoformat(),
        "cursor": cursor,
    }
    params = {name: value for name, value in chosen.items() if value is not None}
    request = Request(method="GET", path="/runs", params={"limit": str(limit), **params})
    return (yield from fetch(settings, request, RunList))


def iterate_runs(
    settings: Settings,
    *,
    status: str | None = None,
    kind: str | None = None,
    agent: str | None = None,
    thread_id: str | None = None,
    metadata: Mapping[str, str] | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    page_size: int = 50,
) -> Feed[RunSummary]:
    """Yield runs, newest first; pages are asked for as they are needed."""
    cursor = None
    while True:
        page = yield from list_runs(
            settings,
            status=status,
            kind=kind,
            agent=agent,
            thread_id=thread_id,
            metadata=metadata,
            created_after=created_after,
            created_before=created_before,
            limit=page_size,
            cursor=cursor,
        )
        for run in page.runs:
            yield Emit(run)
        if (cursor := page.next_cursor) is None:
            return


def cancel_run(
    settings: Settings, run_id: str, *, reason: str | None = None
) -> Flow[CancelReceipt]:
    """Cancel a run, which need not exist yet."""
    params = {} if reason is None else {"reason": reason}
    request = Request(method="DELETE", path=_path(run_id), params=params)
    return (yield from fetch(settings, request, CancelReceipt))


def cancel_runs(
    settings: Settings,
    *,
    status: str | None = None,
    kind: str | None = None,
    agent: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    reason: str | None = None,
) -> Flow[CancelledRuns]:
    """Stop the runs that fit, the oldest 1,000 at once; ask again while there are ``more``."""
    chosen = {
        "status": status,
        "kind": kind,
        "agent": agent,
        "metadata": None if metadata is None else dict(metadata),
        "created_after": None if created_after is None else created_after.isoformat(),
        "created_before": None if created_before is None else created_before.isoformat(),
        "reason": reason,
    }
    body = {name: value for name, value in chosen.items() if value is not None}
    request = Request(method="POST", path="/runs/cancel", json=body)
    return (yield from fetch(settings, request, CancelledRuns))


def erase_run(settings: Settings, run_id: str) -> Flow[None]:
    """Erase a run that has ended, with everything that it stored."""
    yield from ask(settings, Request(method="DELETE", path=_path(run_id, "record")))


def list_approvals(
    settings: Settings, run_id: str | None = None, *, limit: int = 50, cursor: str | None = None
) -> Flow[ApprovalList]:
    """Return a page of the approvals that wait for a decision, or all approvals of a run."""
    if run_id is not None:
        return (yield from fetch(settings, _get(run_id, "approvals"), ApprovalList))
    params = {"limit": str(limit)} if cursor is None else {"limit": str(limit), "cursor": cursor}
    request = Request(method="GET", path="/approvals", params=params)
    return (yield from fetch(settings, request, ApprovalList))


def approve(
    settings: Settings,
    run_id: str,
    approval_id: str,
    *,
    arguments: Mapping[str, Any] | None = None,
    reason: str | None = None,
) -> Flow[Approval]:
    """Approve what a run asks for; ``arguments`` take the place of those it asked for."""
    return (yield from _decide(settings, run_id, approval_id, "approve", arguments, reason))


def refuse(
    settings: Settings, run_id: str, approval_id: str, *, reason: str | None = None
) -> Flow[Approval]:
    """Refuse what a run asks for; an agent is told the reason."""
    return (yield from _decide(settings, run_id, approval_id, "refuse", None, reason))


def _decide(
    settings: Settings,
    run_id: str,
    approval_id: str,
    decision: str,
    arguments: Mapping[str, Any] | None,
    reason: str | None,
) -> Flow[Approval]:
    chosen = {"decision": decision, "arguments": arguments, "reason": reason}
    body = {name: value for name, value in chosen.items() if value is not None}
    path = _path(run_id, f"approvals/{quote(approval_id, safe='')}")
    request = Request(method="POST", path=path, json=body, repeatable=True)
    return (yield from fetch(settings, request, Approval))


def get_trace(settings: Settings, run_id: str, *, payloads: bool = False) -> Flow[Trace]:
    """Return what a run did, call by call; with ``payloads`` also what each asked and got."""
    params = {"payloads": "true"} if payloads else {}
    return (yield from fetch(settings, _get(run_id, "trace", params), Trace))


def explain_run(settings: Settings, run_id: str) -> Flow[str]:
    """Return what a run did as a text for people."""
    response = yield from ask(settings, _get(run_id, "trace", {"format": "explain"}))
    return response.text


def get_call(settings: Settings, run_id: str, node_id: str) -> Flow[Call]:
    """Return one call of a run, with what it asked and what it got."""
    return (yield from fetch(settings, _get(run_id, f"calls/{quote(node_id, safe='')}"), Call))


def list_artifacts(settings: Settings, run_id: str) -> Flow[list[Artifact]]:
    """Return the files that a run has made so far, without their bytes."""
    return (yield from fetch(settings, _get(run_id, "artifacts"), ArtifactList)).artifacts


def get_artifact(settings: Settings, run_id: str, name: str) -> Flow[bytes]:
    """Return the bytes of a file that a run has made."""
    response = yield from ask(settings, _get(run_id, f"artifacts/{quote(name, safe='')}"))
    return response.content


def _get(run_id: str, part: str = "", params: Mapping[str, str] | None = None) -> Request:
    return Request(method="GET", path=_path(run_id, part), params=params or {})


def _path(run_id: str, part: str = "") -> str:
    return f"/runs/{quote(run_id, safe='')}" + (f"/{part}" if part else "")
