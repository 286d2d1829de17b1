"""Check the diary of a story against the promises of the service."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from caseworker.runs.run import TERMINAL, Run, RunKey, RunStatus
from tests.support.event_log import event_problems
from tests.support.graph_invariants import regressions, unlike_journal, violations
from tests.support.runs import HEARTBEAT_SECONDS
from tests.support.virtual_cluster import DEAREST, Cluster
from tests.support.virtual_database import SLOWEST_SECONDS

ALLOWED_SECONDS = 0.1 + SLOWEST_SECONDS
"""The time from a permission to its call: the network delay of the answer, and 100 ms."""


SLACK_SECONDS = 1.0
"""The maximum time that the statements of two heartbeats take, in seconds."""


def problems(cluster: Cluster) -> list[str]:
    """Return one sentence for every broken promise."""
    return [
        f"{key.run_id} {problem}"
        for key, row in cluster.database.rows.items()
        if row.run is not None
        for problem in [
            *_about_its_end(cluster, row.run),
            *_about_calls_after_the_cancel_request(cluster, key),
            *_about_calls_in_flight(cluster, key),
            *_about_repeated_calls(cluster, key),
            *_about_its_budget(cluster, row.run),
            *_about_its_records(cluster, row.run),
        ]
    ]


def _about_its_end(cluster: Cluster, run: Run) -> Iterator[str]:
    history = cluster.database.history(run.key)
    ends = [status for status in history if status in TERMINAL]
    if len(ends) != 1 or history[-1] not in TERMINAL:
        yield f"has the history {history}"
    if run.cancel_request is not None and run.status is not RunStatus.CANCELLED:
        yield f"was to be stopped, and is {run.status}"
    if run.cancel_request is None and run.status is RunStatus.CANCELLED:
        yield "is cancelled, and nobody has wished it"


def _about_calls_after_the_cancel_request(cluster: Cluster, key: RunKey) -> Iterator[str]:
    cancel_requested = cluster.database.cancel_requested(key)
    if cancel_requested is None:
        return
    step, at = cancel_requested
    for event in cluster.diary.of(key, "call", "step"):
        if event.at > at + ALLOWED_SECONDS:
            yield f"began a {event.kind} {event.at - at:.3f} s after the wish to stop it"
    for event in cluster.diary.of(key, "call"):
        permitted = event.detail.permitted_at_step
        if event.detail.call.external and (permitted is None or permitted > step):
            yield "passed a barrier after the wish to stop it"


def _about_calls_in_flight(cluster: Cluster, key: RunKey) -> Iterator[str]:
    """Check that the next heartbeat cancels calls that can be cancelled in a living process."""
    cancel_requested = cluster.database.cancel_requested(key)
    if cancel_requested is None or cluster.diary.of(key, "deaf", "lost"):
        return
    for event in cluster.diary.of(key, "call over"):
        if event.at > cancel_requested[1] + HEARTBEAT_SECONDS + SLACK_SECONDS:
            late = event.at - cancel_requested[1]
            yield f"had a call until {late:.3f} s after the wish to stop it"


def _about_repeated_calls(cluster: Cluster, key: RunKey) -> Iterator[str]:
    """Check repeated calls; a frozen process may send the one call that it had permission for."""
    stored = {event.detail: event.step for event in cluster.diary.of(key, "result stored")}
    made = Counter[str]()
    for event in cluster.diary.of(key, "call"):
        call, permitted = event.detail.call, event.detail.permitted_at_step
        made[call.key] += 1
        if call.external and permitted > stored.get(call.key, permitted):
            yield f"made {call.key} again, whose result was stored"
        if call.external and not call.repeatable and made[call.key] > 1:
            yield f"made {call.key} again, which must not be repeated"


def _about_its_budget(cluster: Cluster, run: Run) -> Iterator[str]:
    """Check the budget: work inside a process is free, and is repeated if it is lost."""
    limits, used = run.request.budget, run.usage or {}
    lost = bool(cluster.diary.of(run.key, "lost", "release lost"))
    made = [event.detail.call for event in cluster.diary.of(run.key, "call")]
    counted = sum(call.external or not lost for call in made)
    if limits.max_api_calls is not None and counted > limits.max_api_calls:
        yield f"made {counted} calls of {limits.max_api_calls}"
    charged = used.get("api_calls", 0)
    if charged < counted or (charged > counted and not lost):
        yield f"is charged for {charged} calls and has made {counted}"
    dearest = DEAREST.tokens
    if limits.max_tokens is not None and used.get("tokens", 0) > limits.max_tokens + dearest:
        yield f"used {used['tokens']} tokens of {limits.max_tokens}"


def _about_its_records(cluster: Cluster, run: Run) -> Iterator[str]:
    row = cluster.database.rows[run.key]
    for problem in event_problems([row.events[seq] for seq in sorted(row.events)], run.status):
        yield f"has a log in which {problem}"
    for snapshot in row.snapshots:
        yield from violations(snapshot)
    for earlier, later in pairwise(row.snapshots):
        yield from regressions(earlier, later)
    stored = {record.node_id: record.node for record in row.calls.values()}
    yield from unlike_journal(row.snapshots[-1], stored)


def moment_of_the_cancel_request(cluster: Cluster, key: RunKey) -> str:
    """Return the state of the run when the cancel request was committed."""
    cancel_requested = cluster.database.cancel_requested(key)
    if cancel_requested is None:
        return "never, or too late"
    before = [
        event
        for event in cluster.diary.events
        if event.key == key and event.step < cancel_requested[0]
    ]
    kinds = [event.kind for event in before]
    statuses = [event.detail for event in before if event.kind == "status"]
    if kinds.count("post") > kinds.count("post answered"):
        return "racing the POST"
    if not statuses:
        return "before the POST"
    if statuses[-1] is RunStatus.QUEUED:
        return "in the queue" if len(statuses) == 1 else "in the queue again"
    since = kinds[_last(kinds, "status") :]
    if "settlement begun" in since:
        return "at the settlement"
    if "release begun" in since:
        return "racing a hand-over"
    if since.count("call") > since.count("call over"):
        return "in a call"
    if since[-1:] == ["call over"] and since[-2:-1] == ["try failed"]:
        return "between two tries"
    return "elsewhere in the run"


def _last(kinds: list[str], kind: str) -> int:
    return len(kinds) - 1 - kinds[::-1].index(kind)
