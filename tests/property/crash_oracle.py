"""The promises about a run, whatever happens to the processes that execute it."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from caseworker.core.trace.node import estimated_of
from caseworker.engine.events import APPROVAL_REQUESTED, REQUIRED_ACTION
from caseworker.engine.waiting_calls import OUTPUT, Author
from caseworker.runs.run import CallRecord, RunStatus
from tests.property.crash_stories import LOOKS, TOKENS_IN, TOKENS_OUT, PlayedCluster
from tests.support.crashing_cluster import CrashingCluster
from tests.support.crashing_wire import KEY
from tests.support.event_log import event_problems
from tests.support.graph_invariants import stored_steps, unlike_journal, violations
from tests.support.memory_rows import journal_of

NOT_IDEMPOTENT = ("pays", "sends")
UNKNOWN = "outcome_unknown"
SAME = ("steps", "turns", "llm_calls_small")
"""The usage that is counted once, however often the run is executed."""


def problems(told: PlayedCluster, peaceful: PlayedCluster) -> list[str]:
    """Return one sentence for every broken promise; ``peaceful`` had no faults."""
    cluster = told.cluster
    found = [
        *(f"{name} was left over" for name in told.leftover),
        *_about_calls(cluster),
        *_about_approvals(cluster),
    ]
    if cluster.run.status is not RunStatus.COMPLETED:
        return [*found, f"it is {cluster.run.status}: {cluster.run.stop} {cluster.run.result}"]
    return [
        *found,
        *_about_the_result(cluster, peaceful.cluster),
        *_about_usage(cluster, peaceful.cluster),
        *_about_records(cluster),
        *_about_steps(cluster, peaceful.cluster),
        *_about_attempts(cluster),
    ]


def unknown_outcomes(cluster: CrashingCluster) -> int:
    """Return 1 if the run got an unknown outcome of a call, else 0."""
    said = json.dumps([each.value for each in cluster.database.rows[KEY].calls.values()])
    return int(UNKNOWN in said)


def _about_the_result(cluster: CrashingCluster, peaceful: CrashingCluster) -> Iterator[str]:
    found, right = cluster.run.result or {}, peaceful.run.result or {}
    unknown = _unknown_steps(cluster)
    steps, right_steps = found["steps"], right["steps"]
    if steps != right_steps:
        yield f"its steps are {steps}"
    for step, outputs in right["outputs"].items():
        if step not in unknown and found["outputs"].get(step) != outputs:
            yield f"{step} brought {found['outputs'].get(step)} and not {outputs}"


def _unknown_steps(cluster: CrashingCluster) -> frozenset[str]:
    """Return the steps that may have got an unknown outcome of a call."""
    open_in = {
        str(record.call_key).split("/")[0]
        for record in cluster.database.rows[KEY].calls.values()
        if record.node["name"] in NOT_IDEMPOTENT
        and record.node["kind"] == "tool"
        and record.outcome in (None, "unknown")
    }
    return frozenset(open_in)


def _about_calls(cluster: CrashingCluster) -> Iterator[str]:
    """Check that calls are journaled first and not repeated once their result is known."""
    made = Counter(each.call_key for each in cluster.arrivals)
    journaled = {(each.call_key, cluster.fence_of.get(each.node_id)) for each in _calls(cluster)}
    for each in cluster.arrivals:
        known = cluster.known_at.get(each.call_key)
        if known is not None and known < cluster.claimed_at.get(each.fence, 0):
            yield f"{each} was made again, though its result was stored at step {known}"
        if each.name in NOT_IDEMPOTENT and made[each.call_key] > 1:
            yield f"{each} was made {made[each.call_key]} times"
        if (each.call_key, each.fence) not in journaled:
            yield f"{each} was made and is not journaled"
    for record in _calls(cluster):
        if record.outcome == "result" and not made[str(record.call_key)]:
            yield f"{record.call_key} has a result and was never made"


def _about_usage(cluster: CrashingCluster, peaceful: CrashingCluster) -> Iterator[str]:
    """Check that charges equal the calls received outside, with estimates for lost calls."""
    usage, right = cluster.run.usage or {}, peaceful.run.usage or {}
    for name in SAME:
        if usage[name] != right[name]:
            yield f"it counts {usage[name]} {name} and not {right[name]}"
    made = Counter((each.call_key, each.fence) for each in cluster.arrivals)
    charged: dict[str, Any] = defaultdict(int)
    tokens = estimated = 0
    cost = Decimal(0)
    for record in _calls(cluster):
        for name, amount in record.charge.items():
            charged[name] += Decimal(amount) if isinstance(amount, str) else amount
        times = made[str(record.call_key), cluster.fence_of.get(record.node_id, 0)]
        attempts = record.charge.get("tool_calls", record.charge.get("api_calls", 0))
        in_flight = record.outcome not in ("result", "failure", "not_made")
        of_client = record.node["name"] == LOOKS["name"]  # each execution asks, the first one pays
        if not of_client and not times <= attempts <= times + in_flight:
            yield f"{record.call_key} is charged {attempts} times and was made {times} times"
        node = record.node
        guessed, _ = estimated_of(node)
        used = (node["tokens_in"] or 0) + (node["tokens_out"] or 0)
        tokens, estimated = tokens + used, estimated + guessed
        cost += Decimal(str(node["cost_usd"] or 0))
        counted = TOKENS_IN + TOKENS_OUT if node["kind"] == "llm" else 0
        if record.outcome == "result" and (used, guessed) != (counted, 0):
            yield f"{record.call_key} is charged {used} tokens, {guessed} of them estimated"
        if record.outcome != "result" and used != guessed:
            yield f"{record.call_key} was lost and is charged {used}, {guessed} of them estimated"
    for name, amount in (("tokens", tokens), ("tokens_estimated", estimated)):
        if usage[name] != amount:
            yield f"it is charged {usage[name]} {name}, and its calls have {amount}"
    if abs(Decimal(str(usage["cost_usd"])) - cost) > Decimal("1e-9"):
        yield f"it cost {usage['cost_usd']}, and its calls {cost}"
    for name in ("tool_calls", "api_calls", "tokens"):
        if usage.get(name, 0) != charged[name]:
            yield f"it is charged {usage.get(name)} {name}, and its journal has {charged[name]}"


def _about_approvals(cluster: CrashingCluster) -> Iterator[str]:
    row = cluster.database.rows[KEY]
    asked = Counter(each.call_key for each in row.approvals.values())
    if len(asked) != 3 or set(asked.values()) != {1}:
        yield f"it asked {dict(asked)}"
    said = Counter(
        (event.type, event.data.get("approval_id") or event.data.get("call_id"))
        for event in row.events.values()
    )
    for approval_id, call in row.approvals.items():
        kinds: tuple[str, ...] = (APPROVAL_REQUESTED, "approval.approved")
        if call.question.author is Author.CLIENT:
            kinds = (REQUIRED_ACTION,)
            yield from _about_client_call(cluster, call)
        for kind in kinds:
            if said[kind, approval_id] != 1:
                yield f"{kind} of {approval_id} was emitted {said[kind, approval_id]} times"


def _about_client_call(cluster: CrashingCluster, call: Any) -> Iterator[str]:
    """Check that a call of the client is charged once, and that the run uses its answer."""
    of_call = [each for each in _calls(cluster) if each.call_key == call.call_key]
    charged = sum(each.charge.get("tool_calls", 0) for each in of_call)
    if charged != 1:
        yield f"{call.call_key} is charged {charged} times in its executions"
    results = [each.value for each in of_call if each.outcome == "result"]
    if results != [{OUTPUT: call.question.arguments}]:
        yield f"{call.call_key} has the results {results}"


def _about_records(cluster: CrashingCluster) -> Iterator[str]:
    row, run = cluster.database.rows[KEY], cluster.run
    events = [row.events[seq] for seq in sorted(row.events)]
    for problem in event_problems(events, run.status):
        yield f"has a log in which {problem}"
    if len(row.snapshots) != 1:
        yield f"{len(row.snapshots)} ends were stored"
    yield from violations(row.snapshots[-1])
    stored = {node_id: record.node for node_id, record in row.calls.items()}
    yield from unlike_journal(row.snapshots[-1], stored)


def _about_steps(cluster: CrashingCluster, peaceful: CrashingCluster) -> Iterator[str]:
    """Check that every step has a finished node, as in a run without faults."""
    found, right = (
        stored_steps(journal_of(each.database.rows[KEY])) for each in (cluster, peaceful)
    )
    unknown = {f"step:{step_id}" for step_id in _unknown_steps(cluster)}
    for key in (found.keys() | right.keys()) - unknown:
        if found.get(key) != right.get(key):
            yield f"{key} is {found.get(key)} in the journal and not {right.get(key)}"


def _about_attempts(cluster: CrashingCluster) -> Iterator[str]:
    run, row = cluster.run, cluster.database.rows[KEY]
    if run.attempts != run.fence - row.given_back:
        yield f"{run.attempts} attempts: {run.fence} claims, {row.given_back} given back"
    if run.losses > cluster.losses:
        yield f"it counts {run.losses} losses of {cluster.losses}"


def _calls(cluster: CrashingCluster) -> Iterator[CallRecord]:
    for record in cluster.database.rows[KEY].calls.values():
        if record.node["kind"] in ("llm", "tool"):
            yield record
